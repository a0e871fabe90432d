"""Submitting, revising and retracting labels."""

import uuid
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from app.auth.annotators import annotator_by_name, new_annotator, own_annotator
from app.cases import queries as cases
from app.cases.blindness import expose, hidden_because, was_exposed
from app.cases.queries import ActiveLabel
from app.context import Context
from app.platform import audit_chain
from app.platform.errors import AlreadyLabelled, Forbidden, Invalid, NotFound, Superseded
from app.platform.principal import Principal
from app.reads import leases, queries
from app.reads.posterior import case_posterior, posterior_out
from app.reads.schemas import LabelIn, LabelOut, OwnLabelIn, RetractionIn, RevisionIn, SubmittedOut
from app.releases.queries import class_codes, existing_release
from app.tables import Annotator, Case, Label, Read, ReadRequest, now
from app.triage.planning import new_request, refresh_waiting
from app.triage.queries import current_policy, current_rule
from app.triage.rules import another_annotator


def label_out(active: ActiveLabel) -> LabelOut:
    """A label as the API shows it."""
    label = active.label
    return LabelOut(
        id=str(label.id),
        case_id=str(label.case_id),
        annotator=active.annotator,
        label=label.class_code,
        confidence=label.confidence,
        note=label.note,
        blind=label.blind,
        round=label.round,
        kind=label.kind,
        supersedes=None if label.supersedes_id is None else str(label.supersedes_id),
        post_reveal=label.post_reveal,
        reason=label.reason,
        reading_seconds=label.reading_seconds,
        created_at=label.created_at,
    )


@dataclass(frozen=True)
class _Author:
    """Who labels, whether blind, and for which request.

    Attributes:
        annotator: who.
        blind: without knowing the prediction, other labels or the reason for asking.
        request: what the label answers; None for a label that nobody asked for.
        read: the lease that it ends.
        round: planned or adjudication.
    """

    annotator: Annotator
    blind: bool
    request: ReadRequest | None
    read: Read | None
    round: str


def commit_read(
    session: Session, context: Context, principal: Principal, read_id: uuid.UUID, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """End a lease by a label.

    Returns:
        201, the label and the posterior where it may be shown.

    Raises:
        NotFound: the caller has no such read.
        LeaseLost: the read ended, or somebody else has it.
        Invalid: an unknown class.
    """
    read, request = leases.held(session, principal, read_id)
    case = cases.case_by_id(session, read.case_id, lock=True)
    author = _Author(own_annotator(session, principal), True, request, read, request.round)
    return _store_first(session, context, principal, case, author, body)


def submit_label(
    session: Session, context: Context, principal: Principal, case_id: uuid.UUID, body: LabelIn
) -> tuple[int, SubmittedOut]:
    """Store a label for a case that the caller names: of an outside system, or of an annotator.

    An annotator's label answers the request it holds, or an open one of the case. Where nobody asked, it counts as
    an adjudication: in posteriors and fits, never in evaluations, because the annotator chose the case.

    Returns:
        201, the label and the posterior where it may be shown.

    Raises:
        NotFound: no such case.
        Invalid: an unknown class.
        AlreadyLabelled: this annotator labelled the case before.
    """
    case = cases.case_by_id(session, case_id, lock=True)
    return _store_first(session, context, principal, case, _author(session, principal, case, body), body)


def _author(session: Session, principal: Principal, case: Case, body: LabelIn) -> _Author:
    """Who gives a label, and which request it answers.

    Raises:
        Forbidden: somebody names another annotator without the scope for it.
        Invalid: an outside system names nobody.
    """
    if "labels:write" in principal.scopes:
        if body.annotator is None or body.blind is None:
            raise Invalid("name the annotator, and say whether the read was blind")
        found = annotator_by_name(session, body.annotator)
        if found is not None and found.account_id is not None:
            raise Forbidden("this annotator reads here; its labels come from its own account only")
        annotator = found or new_annotator(session, body.annotator, None)
        wanted = body.round or "planned"
        request = queries.open_request_of_case(session, case.id, (wanted,)) if body.blind else None
        return _Author(annotator, body.blind, request, None, wanted)
    if body.annotator not in {None, principal.name} or body.blind is False or body.round is not None:
        raise Forbidden("you can only give your own labels, which are blind")
    annotator = own_annotator(session, principal)
    read = queries.lease_on_case(session, annotator.id, case.id)
    if read is not None:
        request = session.get_one(ReadRequest, read.request_id, with_for_update=True)
        return _Author(annotator, True, request, read, request.round)
    request = queries.open_request_of_case(session, case.id)
    return _Author(annotator, True, request, None, "adjudication" if request is None else request.round)


def _store_first(
    session: Session, context: Context, principal: Principal, case: Case, author: _Author, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """Store a label that begins a chain, or that goes on after a retraction.

    Raises:
        AlreadyLabelled: the chain ends in a label that stands.
    """
    code = _known_class(session, case, body.label)
    head = queries.chain_head(session, case.id, author.annotator.id)
    if head is not None and head.kind != "retraction":
        raise AlreadyLabelled("this annotator has labelled the case; send a revision instead")
    if head is not None:  # the chain goes on in its round; it must not take a read that is wanted of somebody else
        author = replace(author, request=None, round=head.round)
    exposed = head is not None and was_exposed(session, author.annotator.id, case.id)
    label = Label(
        case_id=case.id,
        annotator_id=author.annotator.id,
        kind="label" if head is None else "revision",
        supersedes_id=None if head is None else head.id,
        position=0 if head is None else head.position + 1,
        class_code=code,
        confidence=body.confidence,
        note=body.note,
        blind=author.blind and not exposed,
        post_reveal=exposed,
        round=author.round,
        reading_seconds=None if author.read is None else (now() - author.read.created_at).total_seconds(),
        created_by=principal.account_id,
    )
    session.add(label)
    session.flush()
    _answer(session, author, label)
    return _told(session, context, principal, case, label, "label.add")


def _answer(session: Session, author: _Author, label: Label) -> None:
    """Close the request and the read that a label answers."""
    if author.request is not None:
        author.request.state, author.request.lease_expires_at = "answered", None
        author.request.closed_at, author.request.label_id = label.created_at, label.id
    if author.read is not None:
        author.read.state, author.read.ended_at = "committed", label.created_at
    session.flush()


def _known_class(session: Session, case: Case, code: str) -> str:
    classes = class_codes(existing_release(session, cases.latest_prediction(session, case.id).release_id))
    if code not in classes:
        raise Invalid(f"unknown class; the classes are {', '.join(classes)}")
    return code


def _told(
    session: Session, context: Context, principal: Principal, case: Case, label: Label, action: str
) -> tuple[int, SubmittedOut]:
    """Ask for an adjudication where one is called for, record what is shown, audit, and answer."""
    found = case_posterior(session, case.id)
    rule = current_rule(session)
    requests = queries.requests_of_case(session, case.id)
    waiting = any(request.state in {"open", "leased"} for request in requests)
    if requests and not waiting and another_annotator(found.distribution, found.n_labels, rule):
        session.add(new_request(session, case, current_policy(session), found.release_id, "adjudication"))
    refresh_waiting(session, case)
    hidden = hidden_because(session, principal, case.id)
    if hidden is None and principal.blind:
        expose(session, label.annotator_id, case.id)
    annotator = session.get_one(Annotator, label.annotator_id)
    result = SubmittedOut(
        label=label_out(ActiveLabel(label, annotator.name)),
        posterior=None if hidden is not None else posterior_out(session, found),
        hidden_because=hidden,
    )
    details = {
        "case": str(case.id),
        "annotator": str(annotator.id),
        "label": label.class_code,
        "blind": label.blind,
        "round": label.round,
    }
    audit_chain.record(
        session,
        context.secret,
        actor=principal.name,
        action=action,
        object_id=label.id,
        details=details,
        reason=label.reason,
        cases=[case.id],
    )
    return 201, result


def _chain_of(session: Session, principal: Principal, label_id: uuid.UUID) -> tuple[Label, Annotator, Case]:
    """A label that the caller may change, at the end of its chain, with its case locked.

    Raises:
        NotFound: there is none, or it is somebody else's.
        Superseded: it was changed before.
    """
    label = session.get(Label, label_id)
    annotator = None if label is None else session.get_one(Annotator, label.annotator_id)
    if label is None or annotator is None or not _may_change(principal, annotator):
        raise NotFound("there is no such label")
    case = cases.case_by_id(session, label.case_id, lock=True)
    head = queries.chain_head(session, case.id, annotator.id)
    if head is None or head.id != label.id:
        raise Superseded("this label was revised or retracted before; change the newest one")
    return label, annotator, case


def _may_change(principal: Principal, annotator: Annotator) -> bool:
    if "labels:write" in principal.scopes:
        return annotator.account_id is None
    return annotator.account_id == principal.account_id


def revise(
    session: Session, context: Context, principal: Principal, label_id: uuid.UUID, body: RevisionIn
) -> tuple[int, SubmittedOut]:
    """Correct a label by a new row; after the reveal it is tagged and kept out of calibration and evaluation.

    Raises:
        NotFound: the caller has no such label.
        Superseded: it was changed before, or retracted.
        Invalid: an unknown class.
    """
    before, annotator, case = _chain_of(session, principal, label_id)
    if before.kind == "retraction":
        raise Superseded("this label was retracted; give a new one instead")
    code = _known_class(session, case, body.label)
    exposed = was_exposed(session, annotator.id, case.id)
    told_blind = body.blind if annotator.account_id is None and body.blind is not None else before.blind
    label = Label(
        case_id=case.id,
        annotator_id=annotator.id,
        kind="revision",
        supersedes_id=before.id,
        position=before.position + 1,
        class_code=code,
        confidence=body.confidence,
        note=body.note,
        blind=told_blind and not exposed,
        post_reveal=exposed,
        round=before.round,
        reason=body.reason,
        created_by=principal.account_id,
    )
    session.add(label)
    session.flush()
    return _told(session, context, principal, case, label, "label.revise")


def retract(
    session: Session, context: Context, principal: Principal, label_id: uuid.UUID, body: RetractionIn
) -> tuple[int, SubmittedOut]:
    """Take a label back by a new row.

    Raises:
        NotFound: the caller has no such label.
        Superseded: it was changed or retracted before.
    """
    before, annotator, case = _chain_of(session, principal, label_id)
    if before.kind == "retraction":
        raise Superseded("this label was retracted before")
    label = Label(
        case_id=case.id,
        annotator_id=annotator.id,
        kind="retraction",
        supersedes_id=before.id,
        position=before.position + 1,
        class_code=None,
        blind=before.blind,
        post_reveal=was_exposed(session, annotator.id, case.id),
        round=before.round,
        reason=body.reason,
        created_by=principal.account_id,
    )
    session.add(label)
    session.flush()
    return _told(session, context, principal, case, label, "label.retract")
