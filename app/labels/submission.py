"""Submitting, revising and retracting labels."""

import uuid
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session

from app.accounts.annotators import annotator_by_name, new_annotator
from app.audit.chain.detached_rows import change_row
from app.cases import correction_window
from app.cases.blindness import (
    Hidden,
    expose,
    has_committed,
    hidden_after_commit,
    hidden_before_final,
    policy_of_requests,
    was_exposed_to,
)
from app.cases.queries import NamedLabel, blind_opinions
from app.cases.repeat_selection import hold_some_back, is_held_back
from app.context import Context
from app.database.tables import Annotator, Case, Label, Read, ReadRequest, time_of
from app.http.errors import AlreadyLabelled, Forbidden, Invalid, NotFound, Superseded
from app.http.principal import Principal
from app.labels import queries
from app.labels.adjudication import Labelled, adjudicate_if_undecided
from app.labels.label_rows import head_of_chain, label_out, place_of, record, store_label
from app.labels.locked_context import CaseAtHand, FactsOfCase, case_at_hand, facts_of_case
from app.labels.posterior import posterior_of, posterior_out, set_for_next
from app.labels.schemas import LabelIn, OwnLabelIn, RetractionIn, RevisionIn, SubmittedOut
from ml.messages import Message


@dataclass(frozen=True)
class Author:
    """Who labels, whether blind, and for which request.

    Attributes:
        annotator: who.
        blind: said to be without knowing the prediction, other labels or the reason for asking; it counts as blind only
            where nothing of the image was shown to the annotator.
        request: what the label answers; None for a label that nobody asked for.
        read: the lease that it ends.
        round: planned or adjudication.
        late: the read had run out, and its request has gone to somebody else.
    """

    annotator: Annotator
    blind: bool
    request: ReadRequest | None
    read: Read | None
    round: str
    late: bool = False


def submit_label(
    session: Session, context: Context, principal: Principal, case_id: uuid.UUID, body: LabelIn
) -> tuple[int, SubmittedOut]:
    """Store a label of an outside system for an annotator whom it names.

    Returns:
        201, the label and the posterior where it may be shown.

    Raises:
        NotFound: no such case, or it has no prediction.
        Forbidden: the annotator has an account here.
        Invalid: an unknown class, or nobody is named.
        AlreadyLabelled: this annotator labelled the case before.
    """
    at_hand = case_at_hand(session, case_id)
    author = _outside_author(session, at_hand.case, body)
    return store_first(session, context, principal, at_hand, author, body)


def _outside_author(session: Session, case: Case, body: LabelIn) -> Author:
    """Whom an outside system names, and which request their label answers.

    Raises:
        Forbidden: the annotator has an account here.
        Invalid: nobody is named.
    """
    if body.annotator is None or body.blind is None:
        raise Invalid("name the annotator, and say whether the read was blind")
    known = annotator_by_name(session, body.annotator)
    if known is not None and known.account_id is not None:
        raise Forbidden("this annotator has an account here: their labels enter by their own reads only")
    annotator = known or new_annotator(session, body.annotator, None)
    wanted = body.round or "planned"
    request = queries.open_request_of_case(session, case.id, (wanted,)) if body.blind else None
    return Author(annotator, body.blind, request, None, wanted)


def store_first(
    session: Session, context: Context, principal: Principal, at_hand: CaseAtHand, author: Author, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """Store a label that begins a chain, or that continues one after a retraction.

    Raises:
        AlreadyLabelled: the chain ends in a label that stands.
        Invalid: an unknown class.
    """
    require_classes(at_hand.classes, body)
    facts = facts_of_case(session, at_hand.case.id, author.annotator.id)
    head = head_of_chain(facts.history, author.annotator)
    if head is not None and head.kind != "retraction":
        raise AlreadyLabelled("this annotator has labelled the case; send a revision instead")
    if head is not None:  # the chain stays in its round; it must not take a read that is wanted of somebody else
        author = replace(author, request=None, round=head.round, late=head.late)
    exposed = was_exposed_to(session, author.annotator.id, at_hand.case)
    label = store_label(
        session,
        place_of(at_hand.case, author.annotator, head),
        body,
        blind=author.blind and not exposed,
        post_reveal=exposed,
        round=author.round,
        late=author.late,
        reading_seconds=_reading_seconds(author, time_of(session)),
        created_by=principal.account_id,
    )
    given = _given(author.annotator, label, facts, _answer(session, author, label))
    if author.read is not None:
        hidden = hidden_before_final(session, given.requests, at_hand.policy) is not None
        if head is None and label.blind and (hidden or given.unsettled):
            correction_window.begin(session, label, author.read.id)
            given = replace(given, unsettled=True)
        if head is None and label.blind and hidden:
            hold_some_back(session, label, policy_of_requests(session, given.requests, at_hand.policy))
    if author.read is not None and facts.leaves_others:
        correction_window.leave_case(session, author.annotator.id, label.case_id)
    return _conclude(session, context, principal, at_hand, given, "label.add")


def _reading_seconds(author: Author, at: datetime) -> float | None:
    """Seconds from the first display, else from the lease, to a time; None where nothing says how long it was read."""
    if author.read is None or author.late:
        return None
    return (at - (author.read.displayed_at or author.read.created_at)).total_seconds()


def require_classes(classes: list[str], body: OwnLabelIn) -> None:
    """Refuse a class, or a second choice, that the case's release does not know.

    Raises:
        Invalid: it does not.
    """
    for what, code in (("class", body.label), ("second choice", body.second_choice)):
        if code is not None and code not in classes:
            raise Invalid(Message("unknown {what}; the classes are {classes}", what=what, classes=", ".join(classes)))


def _answer(session: Session, author: Author, label: Label) -> ReadRequest | None:
    """Close the request and the read that a label answers; a request answered by a label that is not blind is open.

    Returns:
        The request as it is now; None where there is none.
    """
    request, closed = author.request, {"closed_at": label.created_at, "label_id": label.id}
    if request is not None and label.blind:
        request = change_row(session, request, state="answered", lease_expires_at=None, **closed)
    elif request is not None:
        request = change_row(session, request, state="open", lease_expires_at=None)
    if author.read is not None:
        change_row(session, author.read, state="committed", ended_at=label.created_at)
    return request


@dataclass(frozen=True)
class _Given:
    """A label that was just stored.

    Attributes:
        annotator: who gave it.
        label: its row.
        history: every label row of the case, this one last.
        requests: of the case.
        unsettled: whether somebody may still correct their label of the case.
    """

    annotator: Annotator
    label: Label
    history: list[NamedLabel]
    requests: list[ReadRequest]
    unsettled: bool


def _given(annotator: Annotator, label: Label, facts: FactsOfCase, answered: ReadRequest | None = None) -> _Given:
    """A label that was just given, with what its consequences depend on, and the request that it has answered."""
    history = [*facts.history, NamedLabel(label, annotator.name)]
    requests = [answered if answered and one.id == answered.id else one for one in facts.requests]
    return _Given(annotator, label, history, requests, facts.unsettled)


def _conclude(
    session: Session, context: Context, principal: Principal, at_hand: CaseAtHand, given: _Given, action: str
) -> tuple[int, SubmittedOut]:
    """What follows from a label: an adjudication where one is called for, the reveal, the audit event, the answer."""
    opinions = blind_opinions(given.history)
    posterior = posterior_of(session, at_hand.prediction, at_hand.classes, opinions, in_use=at_hand.reader_model)
    labelled = Labelled(opinions, given.requests)
    adjudicate_if_undecided(session, at_hand, posterior, labelled, unsettled=given.unsettled)
    hidden = reveal(session, principal, at_hand, given)
    shown = None
    if hidden is None:
        sets = set_for_next(session, at_hand.case, posterior)
        shown = posterior_out(posterior, at_hand.policy.target_error, sets)
    record(session, context, principal, given.label, action)
    label = label_out(NamedLabel(given.label, given.annotator.name))
    return 201, SubmittedOut(label=label, posterior=shown, hidden_because=hidden)


def reveal(session: Session, principal: Principal, at_hand: CaseAtHand, given: _Given) -> Hidden | None:
    """Decide whether the answer shows the case in full, and record the exposure of the annotator who sees it.

    Returns:
        Why the case stays hidden; None where it is shown.
    """
    if not principal.blind:
        return None
    own = given.annotator.account_id == principal.account_id  # a key may store labels of others too
    if not own and not has_committed(session, principal, at_hand.case.id):
        return "before-commit"
    hidden = hidden_after_commit(session, given.requests, at_hand.policy, unsettled=given.unsettled)
    changed = given.label.position > 0  # a first answer that is shown at once was not held back
    if hidden is None and changed and is_held_back(session, given.annotator.id, at_hand.case.id):
        return "until-case-closed"
    if hidden is None:
        newest = max(row.label.id for row in given.history)
        expose(session, given.annotator.id, at_hand.case.id, at_hand.prediction.release_id, newest)
    return hidden


def _chain_of(
    session: Session, principal: Principal, label_id: uuid.UUID
) -> tuple[Label, Annotator, CaseAtHand, FactsOfCase]:
    """A label that the caller may change, at the end of its chain, with its case locked and what stands about it.

    Raises:
        NotFound: there is none, or it is somebody else's.
        Superseded: it was changed before.
    """
    row = queries.label_with_annotator(session, label_id)
    if row is None or not _may_change(principal, row[1]):
        raise NotFound("there is no such label")
    label, annotator = row
    at_hand = case_at_hand(session, label.case_id)
    facts = facts_of_case(session, label.case_id, annotator.id)
    head = head_of_chain(facts.history, annotator)
    if head is None or head.id != label.id:
        raise Superseded("this label was revised or retracted before; change the newest one")
    return label, annotator, at_hand, facts


def _may_change(principal: Principal, annotator: Annotator) -> bool:
    if "labels:write" in principal.scopes:
        return annotator.account_id is None
    return annotator.account_id == principal.account_id


def revise(
    session: Session, context: Context, principal: Principal, label_id: uuid.UUID, body: RevisionIn
) -> tuple[int, SubmittedOut]:
    """Correct a label, or label again after a retraction, by a new row.

    After the reveal it is tagged and kept out of calibration and evaluation. So is, without the tag, what a person
    changes once their label is final where closed cases are shown: one that is not shown then has a read to come.

    Raises:
        NotFound: the caller has no such label.
        Superseded: it was changed before.
        Invalid: an unknown class.
    """
    before, annotator, at_hand, facts = _chain_of(session, principal, label_id)
    require_classes(at_hand.classes, body)
    exposed = was_exposed_to(session, annotator.id, at_hand.case)
    if annotator.account_id is None:
        blind = before.blind if body.blind is None else body.blind
    else:
        blind = before.blind and not _may_tell_arm(session, at_hand, annotator)
    label = store_label(
        session,
        place_of(at_hand.case, annotator, before),
        body,
        body.reason,
        blind=blind and not exposed,
        post_reveal=exposed,
        round=before.round,
        late=before.late,
        created_by=principal.account_id,
    )
    given = _given(annotator, label, facts)
    return _conclude(session, context, principal, at_hand, given, "label.revise")


def _may_tell_arm(session: Session, at_hand: CaseAtHand, annotator: Annotator) -> bool:
    """Whether an annotator of a case can conclude from what is not shown to them that it is to be read again."""
    requests = queries.requests_of_case(session, at_hand.case.id)
    waits = hidden_before_final(session, requests, at_hand.policy) == "until-case-closed"
    return waits and annotator.id not in correction_window.annotators_of_case(session, at_hand.case.id)


def retract(
    session: Session, context: Context, principal: Principal, label_id: uuid.UUID, body: RetractionIn
) -> tuple[int, SubmittedOut]:
    """Take a label back by a new row.

    Raises:
        NotFound: the caller has no such label.
        Superseded: it was changed or retracted before.
    """
    before, annotator, at_hand, facts = _chain_of(session, principal, label_id)
    if before.kind == "retraction":
        raise Superseded("this label was retracted before")
    label = store_label(
        session,
        place_of(at_hand.case, annotator, before, "retraction"),
        None,
        body.reason,
        blind=before.blind,
        post_reveal=was_exposed_to(session, annotator.id, at_hand.case),
        round=before.round,
        late=before.late,
        created_by=principal.account_id,
    )
    given = _given(annotator, label, facts)
    return _conclude(session, context, principal, at_hand, given, "label.retract")
