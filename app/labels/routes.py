"""Routes of reads, labels and posteriors."""

import uuid
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query, Response
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute
from app.cases.service import (
    BlindReadPending,
    CaseInPath,
    case_by_id,
    case_handle,
    ensure_revealed,
    label_history,
    labels_of_case,
    note_exposure,
)
from app.context import Call, ServiceContext, reading_call, writing_call
from app.database.idempotency import Idempotent, KeyMissing, Once
from app.http.errors import NotFound, list_problem_responses
from app.http.middleware import EVEN_TIME
from app.http.models import PosteriorOut
from app.http.principal import Principal
from app.labels import corrections, leases, submission
from app.labels.batch import submit_batch
from app.labels.leases import AlreadyLabelled, LabelFinal, LabelSuperseded, LeaseLost, TooManyLeases
from app.labels.posterior import show_case_posterior
from app.labels.schemas import (
    DeclineIn,
    LabelBatchIn,
    LabelBatchOut,
    LabelIn,
    LabelOut,
    LabelsOut,
    OwnLabelIn,
    ReadOut,
    ReadsOut,
    RetractionIn,
    RevisionIn,
    SubmittedOut,
)
from app.labels.submission import label_out


def _read_with_opaque_id(call: Call, read: ReadOut) -> ReadOut:
    handle = case_handle(call.keys, call.principal, uuid.UUID(read.case_id))
    field = None if read.field is None else f"/v1/cases/{handle}/field"
    return read.model_copy(update={"case_id": str(handle), "image": f"/v1/cases/{handle}/image", "field": field})


def _label_with_opaque_id(call: Call, label: LabelOut) -> LabelOut:
    handle = case_handle(call.keys, call.principal, uuid.UUID(label.case_id))
    return label.model_copy(update={"case_id": str(handle)})


_Body = TypeVar("_Body", bound=OwnLabelIn | RevisionIn | RetractionIn)
#: Stores what a caller says of a read or of a label.
_Store = Callable[[Session, ServiceContext, Principal, uuid.UUID, _Body], tuple[int, SubmittedOut]]


def _store_once(call: Call, once: Once, store: _Store[_Body], named: uuid.UUID, body: _Body) -> Response:
    """Store a label once, and answer with the caller's opaque case identifier."""

    def answer() -> tuple[int, SubmittedOut]:
        status, submitted = store(call.session, call.context, call.principal, named, body)
        label = _label_with_opaque_id(call, submitted.label)
        if call.principal.blind and submitted.hidden_because is not None:
            label = label.model_copy(update={"round": None})
        return status, submitted.model_copy(update={"label": label})

    return once(call.session, body, answer)


router = APIRouter(tags=["reads"], route_class=GuardedRoute)
_Reading = Annotated[Call, reading_call("cases:read", "reads:own")]
_Annotating = Annotated[Call, reading_call("reads:own")]
_AnnotatingWrite = Annotated[Call, writing_call("reads:own")]
_OutsideWrite = Annotated[Call, writing_call("labels:write")]
_LabellingWrite = Annotated[Call, writing_call("reads:own", "labels:write")]


@router.post(
    "/v1/reads",
    operation_id="lease_read",
    dependencies=[EVEN_TIME],
    status_code=201,
    response_model=ReadOut,
    responses={204: {"description": "Nothing to read now."}, **list_problem_responses(KeyMissing, TooManyLeases)},
)
def lease_read(once: Idempotent, call: _AnnotatingWrite) -> Response:
    """Lease the next read. By due date, then shuffled; at most three at a time."""

    def take() -> tuple[int, ReadOut | None]:
        read = leases.lease_next_read(call.session, call.context, call.principal)
        return (204, None) if read is None else (201, _read_with_opaque_id(call, read))

    return once(call.session, None, take)


@router.get("/v1/reads", operation_id="list_reads", responses=list_problem_responses())
def list_reads(call: _Annotating) -> ReadsOut:
    """List your leases. Oldest first."""
    held = leases.list_leases(call.session, call.principal)
    return ReadsOut(items=[_read_with_opaque_id(call, read) for read in held])


@router.get("/v1/reads/{read_id}", operation_id="get_read", responses=list_problem_responses(NotFound))
def get_read(read_id: uuid.UUID, call: _Annotating) -> ReadOut:
    """Get one of your reads. With the classes to choose from."""
    return _read_with_opaque_id(call, leases.show_own_read(call.session, call.principal, read_id))


@router.patch("/v1/reads/{read_id}", operation_id="extend_read", responses=list_problem_responses(NotFound, LeaseLost))
def extend_read(read_id: uuid.UUID, call: _AnnotatingWrite) -> ReadOut:
    """Extend a lease. Up to six times its length in total."""
    return _read_with_opaque_id(call, leases.extend_lease(call.session, call.principal, read_id))


@router.delete(
    "/v1/reads/{read_id}",
    operation_id="release_read",
    status_code=204,
    responses=list_problem_responses(NotFound, LeaseLost),
)
def release_read(read_id: uuid.UUID, call: _AnnotatingWrite) -> None:
    """Return a read unanswered. It may be offered to you again."""
    leases.release_lease(call.session, call.principal, read_id)


@router.post(
    "/v1/reads/{read_id}/decline",
    operation_id="decline_read",
    response_model=ReadOut,
    responses=list_problem_responses(KeyMissing, NotFound, LeaseLost),
)
def decline_read(read_id: uuid.UUID, body: DeclineIn, once: Idempotent, call: _AnnotatingWrite) -> Response:
    """Decline a read. With a reason; ``cannot_tell`` closes it for everyone."""

    def end() -> tuple[int, ReadOut]:
        status, read = leases.record_decline(call.session, call.context, call.principal, read_id, body)
        return status, _read_with_opaque_id(call, read)

    return once(call.session, body, end)


@router.post(
    "/v1/reads/{read_id}/labels",
    operation_id="commit_read",
    dependencies=[EVEN_TIME],
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, LeaseLost, AlreadyLabelled),
)
def commit_read(read_id: uuid.UUID, body: OwnLabelIn, once: Idempotent, call: _AnnotatingWrite) -> Response:
    """Answer a read with a label. The response shows the posterior if the policy allows it."""
    return _store_once(call, once, submission.commit_read, read_id, body)


@router.post(
    "/v1/reads/{read_id}/correction",
    operation_id="correct_read",
    dependencies=[EVEN_TIME],
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, LabelFinal, LabelSuperseded),
)
def correct_read(read_id: uuid.UUID, body: OwnLabelIn, once: Idempotent, call: _AnnotatingWrite) -> Response:
    """Correct your last answer while blinded. Until you see the cell, answer ten more, sign out or 15 minutes pass."""
    return _store_once(call, once, corrections.correct_answer, read_id, body)


@router.post(
    "/v1/cases/{case_id}/labels",
    operation_id="submit_label",
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, AlreadyLabelled),
)
def submit_label(case_id: uuid.UUID, body: LabelIn, once: Idempotent, call: _OutsideWrite) -> Response:
    """Submit an outside label. For annotators of another system; people with accounts answer reads instead."""
    return once(
        call.session, body, lambda: submission.submit_label(call.session, call.context, call.principal, case_id, body)
    )


@router.post(
    "/v1/labels",
    operation_id="submit_labels",
    status_code=207,
    response_model=LabelBatchOut,
    responses=list_problem_responses(KeyMissing),
)
def submit_labels(body: LabelBatchIn, once: Idempotent, call: _OutsideWrite) -> Response:
    """Submit many outside labels. Up to 1,000 by external id, with one result each.

    Each label is stored or refused without regard to the others. Labels are stored 100 at a time; after an error send
    the same request again: it continues where it stopped, and finds the labels before as ``known``.
    """
    return submit_batch(call, once, body)


@router.post(
    "/v1/labels/{label_id}/revisions",
    operation_id="revise_label",
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, LabelSuperseded),
)
def revise_label(label_id: uuid.UUID, body: RevisionIn, once: Idempotent, call: _LabellingWrite) -> Response:
    """Revise your label. Also after a retraction; earlier versions are kept."""
    return _store_once(call, once, submission.revise_case_label, label_id, body)


@router.post(
    "/v1/labels/{label_id}/retraction",
    operation_id="retract_label",
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, LabelSuperseded),
)
def retract_label(label_id: uuid.UUID, body: RetractionIn, once: Idempotent, call: _LabellingWrite) -> Response:
    """Retract your label. Both rows are kept."""
    return _store_once(call, once, submission.retract_case_label, label_id, body)


@router.get(
    "/v1/cases/{case_id}/labels",
    operation_id="list_labels",
    responses=list_problem_responses(NotFound, BlindReadPending),
)
def list_labels(
    asked: CaseInPath,
    call: _Reading,
    history: Annotated[bool, Query()] = False,
) -> LabelsOut:
    """List the labels of a cell. Annotators see them once they have labelled the cell."""
    case = asked.found(call.session)
    case_by_id(call.session, case.id)
    ensure_revealed(call.session, call.principal, case)
    labels = label_history(call.session, case.id) if history else labels_of_case(call.session, case.id)
    result = LabelsOut(items=[_label_with_opaque_id(call, label_out(row)) for row in labels])
    note_exposure(call.context.database, call.session, call.principal, case.id)
    return result


@router.get(
    "/v1/cases/{case_id}/posterior",
    operation_id="get_posterior",
    responses=list_problem_responses(NotFound, BlindReadPending),
)
def get_posterior(
    asked: CaseInPath,
    call: _Reading,
    exclude_annotator: Annotated[str | None, Query(max_length=100)] = None,
    annotators: Annotated[
        Literal["named", "alike"],
        Query(),
    ] = "named",
) -> PosteriorOut:
    """Get the posterior of a cell. From the first prediction and all active blinded labels."""
    case = asked.found(call.session)
    case_by_id(call.session, case.id)
    ensure_revealed(call.session, call.principal, case)
    result = show_case_posterior(call.session, case.id, exclude_annotator, by_name=annotators == "named")
    note_exposure(call.context.database, call.session, call.principal, case.id)
    return result
