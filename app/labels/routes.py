"""Routes of reads, labels and posteriors."""

import uuid
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response

from app.accounts.service import GuardedRoute, RequireScope
from app.audit.chain.keys import AnnotatorKeys
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
from app.context import AppContext
from app.database.engine import ReadSession, WriteSession
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import NotFound, list_problem_responses
from app.http.models import PosteriorOut
from app.http.principal import Principal
from app.labels import corrections, leases, submission
from app.labels.leases import AlreadyLabelled, LabelFinal, LabelSuperseded, LeaseLost, TooManyLeases
from app.labels.posterior import show_case_posterior
from app.labels.schemas import (
    DeclineIn,
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


def read_with_opaque_id(keys: AnnotatorKeys, principal: Principal, read: ReadOut) -> ReadOut:
    """Return a read with the caller's opaque case identifier."""
    handle = case_handle(keys, principal, uuid.UUID(read.case_id))
    field = None if read.field is None else f"/v1/cases/{handle}/field"
    return read.model_copy(update={"case_id": str(handle), "image": f"/v1/cases/{handle}/image", "field": field})


def label_with_opaque_id(keys: AnnotatorKeys, principal: Principal, label: LabelOut) -> LabelOut:
    """Return a label with the caller's opaque case identifier."""
    return label.model_copy(update={"case_id": str(case_handle(keys, principal, uuid.UUID(label.case_id)))})


def labels_with_opaque_ids(keys: AnnotatorKeys, principal: Principal, labels: LabelsOut) -> LabelsOut:
    """Return labels with the caller's opaque case identifiers."""
    return LabelsOut(items=[label_with_opaque_id(keys, principal, label) for label in labels.items])


def submitted_with_opaque_ids(
    keys: AnnotatorKeys, principal: Principal, answer: tuple[int, SubmittedOut]
) -> tuple[int, SubmittedOut]:
    """Return status and submitted label with the caller's opaque case identifier."""
    status, submitted = answer
    label = label_with_opaque_id(keys, principal, submitted.label)
    if principal.blind and submitted.hidden_because is not None:
        label = label.model_copy(update={"round": None})
    return status, submitted.model_copy(update={"label": label})


router = APIRouter(tags=["reads"], route_class=GuardedRoute)
_Reading = Annotated[Principal, Depends(RequireScope("cases:read", "reads:own"))]
_Annotating = Annotated[Principal, Depends(RequireScope("reads:own"))]
_Outside = Annotated[Principal, Depends(RequireScope("labels:write"))]
_Labelling = Annotated[Principal, Depends(RequireScope("reads:own", "labels:write"))]


@router.post(
    "/v1/reads",
    operation_id="lease_read",
    status_code=201,
    response_model=ReadOut,
    responses={204: {"description": "Nothing to read now."}, **list_problem_responses(KeyMissing, TooManyLeases)},
)
def lease_read(context: AppContext, principal: _Annotating, once: Idempotent, session: WriteSession) -> Response:
    """Lease the next case for the caller: by due date, then in an order of their own; three at most at a time."""

    def take() -> tuple[int, ReadOut | None]:
        read = leases.lease_next_read(session, context, principal)
        return (204, None) if read is None else (201, read_with_opaque_id(context.keys.readers, principal, read))

    return once(session, None, take)


@router.get("/v1/reads", operation_id="list_reads", responses=list_problem_responses())
def list_reads(context: AppContext, principal: _Annotating, session: ReadSession) -> ReadsOut:
    """The caller's leases, oldest first."""
    held = leases.list_leases(session, principal)
    return ReadsOut(items=[read_with_opaque_id(context.keys.readers, principal, read) for read in held])


@router.get("/v1/reads/{read_id}", operation_id="get_read", responses=list_problem_responses(NotFound))
def get_read(read_id: uuid.UUID, context: AppContext, principal: _Annotating, session: ReadSession) -> ReadOut:
    """One of the caller's own reads."""
    return read_with_opaque_id(context.keys.readers, principal, leases.show_own_read(session, principal, read_id))


@router.patch("/v1/reads/{read_id}", operation_id="extend_read", responses=list_problem_responses(NotFound, LeaseLost))
def extend_read(read_id: uuid.UUID, context: AppContext, principal: _Annotating, session: WriteSession) -> ReadOut:
    """Extend a lease, up to six times its length in all."""
    return read_with_opaque_id(context.keys.readers, principal, leases.extend_lease(session, principal, read_id))


@router.delete(
    "/v1/reads/{read_id}",
    operation_id="release_read",
    status_code=204,
    responses=list_problem_responses(NotFound, LeaseLost),
)
def release_read(read_id: uuid.UUID, principal: _Annotating, session: WriteSession) -> None:
    """Give a lease back; the case may come again."""
    leases.release_lease(session, principal, read_id)


@router.post(
    "/v1/reads/{read_id}/decline",
    operation_id="decline_read",
    response_model=ReadOut,
    responses=list_problem_responses(KeyMissing, NotFound, LeaseLost),
)
def decline_read(
    read_id: uuid.UUID,
    body: DeclineIn,
    context: AppContext,
    principal: _Annotating,
    once: Idempotent,
    session: WriteSession,
) -> Response:
    """Decline a read, with a reason; ``cannot_tell`` closes it for everybody."""

    def end() -> tuple[int, ReadOut]:
        status, read = leases.record_decline(session, context, principal, read_id, body)
        return status, read_with_opaque_id(context.keys.readers, principal, read)

    return once(session, body, end)


@router.post(
    "/v1/reads/{read_id}/labels",
    operation_id="commit_read",
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, LeaseLost, AlreadyLabelled),
)
def commit_read(
    read_id: uuid.UUID,
    body: OwnLabelIn,
    context: AppContext,
    principal: _Annotating,
    once: Idempotent,
    session: WriteSession,
) -> Response:
    """End a read by a label; the answer reveals the posterior where the policy allows."""
    stored = partial(submission.commit_read, session, context, principal, read_id, body)
    return once(session, body, lambda: submitted_with_opaque_ids(context.keys.readers, principal, stored()))


@router.post(
    "/v1/reads/{read_id}/correction",
    operation_id="correct_read",
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, LabelFinal, LabelSuperseded),
)
def correct_read(
    read_id: uuid.UUID,
    body: OwnLabelIn,
    context: AppContext,
    principal: _Annotating,
    once: Idempotent,
    session: WriteSession,
) -> Response:
    """Correct a slip, still blind: until the case was shown, ten cases later, a sign-out or 15 minutes."""
    stored = partial(corrections.correct_answer, session, context, principal, read_id, body)
    return once(session, body, lambda: submitted_with_opaque_ids(context.keys.readers, principal, stored()))


@router.post(
    "/v1/cases/{case_id}/labels",
    operation_id="submit_label",
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, AlreadyLabelled),
)
def submit_label(
    case_id: uuid.UUID, body: LabelIn, context: AppContext, principal: _Outside, once: Idempotent, session: WriteSession
) -> Response:
    """Store a label of an outside annotator system; people with accounts answer reads that they hold."""
    return once(session, body, lambda: submission.submit_label(session, context, principal, case_id, body))


@router.post(
    "/v1/labels/{label_id}/revisions",
    operation_id="revise_label",
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, LabelSuperseded),
)
def revise_label(
    label_id: uuid.UUID,
    body: RevisionIn,
    context: AppContext,
    principal: _Labelling,
    once: Idempotent,
    session: WriteSession,
) -> Response:
    """Correct one's own label, or label again after a retraction; every row stays."""
    stored = partial(submission.revise_case_label, session, context, principal, label_id, body)
    return once(session, body, lambda: submitted_with_opaque_ids(context.keys.readers, principal, stored()))


@router.post(
    "/v1/labels/{label_id}/retraction",
    operation_id="retract_label",
    status_code=201,
    response_model=SubmittedOut,
    responses=list_problem_responses(KeyMissing, NotFound, LabelSuperseded),
)
def retract_label(
    label_id: uuid.UUID,
    body: RetractionIn,
    context: AppContext,
    principal: _Labelling,
    once: Idempotent,
    session: WriteSession,
) -> Response:
    """Take one's own label back; both rows stay."""
    stored = partial(submission.retract_case_label, session, context, principal, label_id, body)
    return once(session, body, lambda: submitted_with_opaque_ids(context.keys.readers, principal, stored()))


@router.get(
    "/v1/cases/{case_id}/labels",
    operation_id="list_labels",
    responses=list_problem_responses(NotFound, BlindReadPending),
)
def list_labels(
    asked: CaseInPath,
    context: AppContext,
    principal: _Reading,
    session: ReadSession,
    history: Annotated[bool, Query(description="Superseded labels and retractions too.")] = False,
) -> LabelsOut:
    """Active labels of a case; annotators see them after committing their own."""
    case = asked.found(session)
    case_by_id(session, case.id)
    ensure_revealed(session, principal, case)
    labels = label_history(session, case.id) if history else labels_of_case(session, case.id)
    result = LabelsOut(items=[label_out(row) for row in labels])
    note_exposure(context.database, session, principal, case.id)
    return labels_with_opaque_ids(context.keys.readers, principal, result)


@router.get(
    "/v1/cases/{case_id}/posterior",
    operation_id="get_posterior",
    responses=list_problem_responses(NotFound, BlindReadPending),
)
def get_posterior(
    asked: CaseInPath,
    context: AppContext,
    principal: _Reading,
    session: ReadSession,
    exclude_annotator: Annotated[str | None, Query(max_length=100)] = None,
    annotators: Annotated[
        Literal["named", "alike"],
        Query(description="named: weighed by who gave them where a model of the annotators is in use; alike: never."),
    ] = "named",
) -> PosteriorOut:
    """Posterior from the stored prior and all active blind labels."""
    case = asked.found(session)
    case_by_id(session, case.id)
    ensure_revealed(session, principal, case)
    result = show_case_posterior(session, case.id, exclude_annotator, by_name=annotators == "named")
    note_exposure(context.database, session, principal, case.id)
    return result
