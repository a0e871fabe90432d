"""HTTP routes of practice: sets and decisions for admins, runs and answers for annotators."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from app.accounts.service import GuardedRoute, RequireScope
from app.annotators.practice import answers, schemas, service
from app.cases.service import case_by_id, image_response, note_exposure
from app.context import Call, reading_call, writing_call
from app.database.engine import ReadSession
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import Conflict, NotFound, list_problem_responses
from app.http.models import Line
from app.labels.service import AlreadyLabelled

router = APIRouter(tags=["practice"], responses=list_problem_responses(), route_class=GuardedRoute)
_Annotator = Annotated[Call, reading_call("reads:own")]
_AnnotatorWrite = Annotated[Call, writing_call("reads:own")]
_ManagerWrite = Annotated[Call, writing_call("manage")]


@router.get("/v1/practice", operation_id="get_practice")
def get_practice(call: _Annotator) -> schemas.OwnPracticeOut:
    """Get your training. Qualification, available sets, and runs."""
    return answers.own_practice(call.session, call.principal)


@router.post(
    "/v1/practice/runs",
    operation_id="begin_practice_run",
    status_code=201,
    response_model=schemas.RunOut,
    responses=list_problem_responses(KeyMissing, NotFound, Conflict),
)
def begin_practice_run(body: schemas.RunIn, once: Idempotent, call: _AnnotatorWrite) -> Response:
    """Start or resume a training run. You never read its cells later."""
    return once(call.session, body, lambda: answers.begin_run(call.session, call.context, call.principal, body))


@router.get("/v1/practice/runs/{run_id}", operation_id="get_practice_run", responses=list_problem_responses(NotFound))
def get_practice_run(run_id: uuid.UUID, call: _Annotator) -> schemas.RunOut:
    """Get one of your runs. A finished qualification has its result."""
    return answers.show_run(call.session, call.principal, run_id)


@router.get(
    "/v1/practice/items/{item_id}", operation_id="get_practice_item", responses=list_problem_responses(NotFound)
)
def get_practice_item(item_id: uuid.UUID, call: _Annotator) -> schemas.PracticeItemOut:
    """Get a cell of a run. In training, an answered cell shows the answers of others."""
    result = answers.show_item(call.session, call.principal, item_id)
    if result.feedback is not None and result.feedback.label_counts is not None:
        case_id = answers.case_of_item(call.session, call.principal, item_id)
        note_exposure(call.context.database, call.session, call.principal, case_id)
    return result


@router.get(
    "/v1/practice/items/{item_id}/image",
    operation_id="get_practice_image",
    response_class=Response,
    responses={
        200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
        **list_problem_responses(NotFound),
    },
)
def get_practice_image(item_id: uuid.UUID, call: _Annotator) -> Response:
    """Get a training image. PNG without metadata."""
    stored = case_by_id(call.session, answers.case_of_item(call.session, call.principal, item_id))
    return image_response(call.context, stored.stored_sha256, kept=False)


@router.post(
    "/v1/practice/items/{item_id}/answer",
    operation_id="answer_practice_item",
    status_code=201,
    response_model=schemas.AnsweredOut,
    responses=list_problem_responses(KeyMissing, NotFound, AlreadyLabelled),
)
def answer_practice_item(
    item_id: uuid.UUID, body: schemas.PracticeAnswerIn, once: Idempotent, call: _AnnotatorWrite
) -> Response:
    """Answer a cell of a run. Training returns the answers of others, a qualification its result at the end."""
    return once(
        call.session,
        body,
        lambda: answers.answer_item(call.session, call.context, call.principal, item_id, body),
        case_id_of=lambda _: answers.case_of_own_item(call.session, call.principal, item_id),
    )


@router.get("/v1/practice/sets", operation_id="list_practice_sets", dependencies=[Depends(RequireScope("manage"))])
def list_practice_sets(session: ReadSession) -> schemas.PracticeSetsOut:
    """List training and qualification sets. Newest first, with their cells and pass rates."""
    return service.list_sets(session)


@router.post(
    "/v1/practice/sets",
    operation_id="add_practice_set",
    status_code=201,
    response_model=schemas.PracticeSetOut,
    responses=list_problem_responses(KeyMissing, Conflict),
)
def add_practice_set(body: schemas.PracticeSetIn, once: Idempotent, call: _ManagerWrite) -> Response:
    """Create a training or qualification set. From completed cells, each used for one purpose only."""
    return once(call.session, body, lambda: service.add_set(call.session, call.context, call.principal, body))


@router.post(
    "/v1/practice/sets/{set_id}/retirement",
    operation_id="retire_practice_set",
    responses=list_problem_responses(NotFound),
)
def retire_practice_set(set_id: uuid.UUID, call: _ManagerWrite) -> schemas.PracticeSetOut:
    """Retire a set. A repeated request changes nothing."""
    return service.retire_set(call.session, call.context, call.principal, set_id)


@router.get(
    "/v1/practice/annotators",
    operation_id="list_qualifications",
    dependencies=[Depends(RequireScope("manage"))],
)
def list_qualifications(session: ReadSession) -> schemas.QualifiedListOut:
    """List the qualifications of annotators. Those with accounts, in alphabetical order."""
    return service.list_qualified(session)


@router.post(
    "/v1/practice/annotators/{name}/decisions",
    operation_id="decide_qualification",
    status_code=201,
    response_model=schemas.QualifiedOut,
    responses=list_problem_responses(KeyMissing, NotFound),
)
def decide_qualification(name: Line, body: schemas.DecisionIn, once: Idempotent, call: _ManagerWrite) -> Response:
    """Decide on a qualification. Qualify an annotator, withdraw it, or allow further attempts, with a reason."""
    return once(
        call.session,
        body,
        lambda: service.add_qualification_decision(call.session, call.context, call.principal, name, body),
    )
