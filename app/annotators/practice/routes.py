"""HTTP routes of practice: sets and decisions for admins, runs and answers for annotators."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from app.accounts.permissions import GuardedRoute, Policy
from app.annotators.practice import answers, sets
from app.annotators.practice.schemas import (
    AnsweredOut,
    DecisionIn,
    OwnPracticeOut,
    PracticeAnswerIn,
    PracticeItemOut,
    PracticeSetIn,
    PracticeSetOut,
    PracticeSetsOut,
    QualifiedListOut,
    QualifiedOut,
    RunIn,
    RunOut,
)
from app.cases.blindness import note_exposure
from app.cases.presenters import image_answer
from app.cases.queries import case_by_id
from app.context import Parts
from app.database.engine import Reader, Writer
from app.database.idempotency import Idempotent
from app.http.errors import AlreadyLabelled, Conflict, KeyMissing, NotFound, responses
from app.http.models import Line
from app.http.principal import Principal

router = APIRouter(tags=["practice"], route_class=GuardedRoute)
_Annotator = Annotated[Principal, Depends(Policy("reads:own"))]
_Manager = Annotated[Principal, Depends(Policy("manage"))]


@router.get("/v1/practice", operation_id="get_practice", responses=responses())
def get_practice(principal: _Annotator, session: Reader) -> OwnPracticeOut:
    """Whether reads go to the caller, which sets they may work through, and their runs."""
    return answers.own_practice(session, principal)


@router.post(
    "/v1/practice/runs",
    operation_id="begin_practice_run",
    status_code=201,
    response_model=RunOut,
    responses=responses(KeyMissing, NotFound, Conflict),
)
def begin_practice_run(
    body: RunIn, context: Parts, principal: _Annotator, once: Idempotent, session: Writer
) -> Response:
    """Begin a run of a set, or go on with the one that is open; its cells come to the caller in no read any more."""
    return once(session, body, lambda: answers.begin(session, context, principal, body))


@router.get("/v1/practice/runs/{run_id}", operation_id="get_practice_run", responses=responses(NotFound))
def get_practice_run(run_id: uuid.UUID, principal: _Annotator, session: Reader) -> RunOut:
    """One of the caller's own runs; a qualification has its result at the end."""
    return answers.show_run(session, principal, run_id)


@router.get("/v1/practice/items/{item_id}", operation_id="get_practice_item", responses=responses(NotFound))
def get_practice_item(item_id: uuid.UUID, context: Parts, principal: _Annotator, session: Reader) -> PracticeItemOut:
    """The next cell of a run, or in training one that the caller has answered, with how others answered."""
    shown = answers.show_item(session, principal, item_id)
    if shown.feedback is not None and shown.feedback.label_counts is not None:
        case_id = answers.case_of_item(session, principal, item_id)
        note_exposure(context.database, session, principal, case_id)
    return shown


@router.get(
    "/v1/practice/items/{item_id}/image",
    operation_id="get_practice_image",
    response_class=Response,
    responses={
        200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
        **responses(NotFound),
    },
)
def get_practice_image(item_id: uuid.UUID, context: Parts, principal: _Annotator, session: Reader) -> Response:
    """The pixels of a cell that the caller may look at, as PNG."""
    stored = case_by_id(session, answers.case_of_item(session, principal, item_id))
    return image_answer(context, stored.stored_sha256, kept=False)


@router.post(
    "/v1/practice/items/{item_id}/answer",
    operation_id="answer_practice_item",
    status_code=201,
    response_model=AnsweredOut,
    responses=responses(KeyMissing, NotFound, AlreadyLabelled),
)
def answer_practice_item(
    item_id: uuid.UUID, body: PracticeAnswerIn, context: Parts, principal: _Annotator, once: Idempotent, session: Writer
) -> Response:
    """Answer the next cell of a run; in training how others answered comes back, else nothing until the end."""
    return once(
        session,
        body,
        lambda: answers.answer(session, context, principal, item_id, body),
        case_id_of=lambda _: answers.case_of_own_item(session, principal, item_id),
    )


@router.get(
    "/v1/practice/sets",
    operation_id="list_practice_sets",
    responses=responses(),
    dependencies=[Depends(Policy("manage"))],
)
def list_practice_sets(session: Reader) -> PracticeSetsOut:
    """Every set, newest first, with what was chosen and who would pass."""
    return sets.list_sets(session)


@router.post(
    "/v1/practice/sets",
    operation_id="add_practice_set",
    status_code=201,
    response_model=PracticeSetOut,
    responses=responses(KeyMissing, Conflict),
)
def add_practice_set(
    body: PracticeSetIn, context: Parts, principal: _Manager, once: Idempotent, session: Writer
) -> Response:
    """Choose settled cells for training, or for qualification; never for both."""
    return once(session, body, lambda: sets.add_set(session, context, principal, body))


@router.post("/v1/practice/sets/{set_id}/retirement", operation_id="retire_practice_set", responses=responses(NotFound))
def retire_practice_set(set_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> PracticeSetOut:
    """Let nobody begin a run of a set any more; again changes nothing."""
    return sets.retire(session, context, principal, set_id)


@router.get(
    "/v1/practice/annotators",
    operation_id="list_qualifications",
    responses=responses(),
    dependencies=[Depends(Policy("manage"))],
)
def list_qualifications(session: Reader) -> QualifiedListOut:
    """Whether reads go to each annotator with an account, and why."""
    return sets.list_qualified(session)


@router.post(
    "/v1/practice/annotators/{name}/decisions",
    operation_id="decide_qualification",
    status_code=201,
    response_model=QualifiedOut,
    responses=responses(KeyMissing, NotFound),
)
def decide_qualification(
    name: Line, body: DecisionIn, context: Parts, principal: _Manager, once: Idempotent, session: Writer
) -> Response:
    """Qualify an annotator by hand, withdraw it, or allow further attempts, with a reason."""
    return once(session, body, lambda: sets.decide(session, context, principal, name, body))
