"""Asking for another annotator where all labels of a case are in and leave it undecided."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.audit.chain.detached_rows import change_row, insert_new_row
from app.cases.queries import NamedLabel
from app.database.tables import ReadRequest, time_of
from app.reads.asking import prefer
from app.reads.at_hand import CaseAtHand
from app.reads.posterior import CasePosterior
from app.triage.planning import new_request
from app.triage.queries import rule_of
from app.triage.rules import another_annotator


@dataclass(frozen=True)
class Labelled:
    """What a case was asked and answered.

    Attributes:
        opinions: its blind opinions, one per annotator.
        requests: in order.
    """

    opinions: list[NamedLabel]
    requests: list[ReadRequest]


def adjudicate_if_undecided(
    session: Session, at_hand: CaseAtHand, posterior: CasePosterior, labelled: Labelled, *, unsettled: bool
) -> None:
    """Ask for another annotator where all reads are in, finally, and leave the leading class open.

    Args:
        session: writing session.
        at_hand: the case.
        posterior: after all its labels.
        labelled: its labels, and its requests so far; a new one is appended, since its policy decides what is revealed
            from now on.
        unsettled: whether somebody may still correct their label.
    """
    case, policy, requests = at_hand.case, at_hand.policy, labelled.requests
    waiting = any(request.state in {"open", "leased"} for request in requests)
    rule = rule_of(policy, None)  # its threshold decides about planned reads only
    closed = requests and not waiting and not unsettled
    if closed and another_annotator(posterior.distribution, posterior.n_labels, rule):
        ordinal = requests[-1].ordinal + 1
        adjudication = new_request(case, policy, posterior.release_id, "adjudication", ordinal, time_of(session))
        # chosen before it is stored: to write it twice would lock a request after the case
        chosen = prefer(session, at_hand, adjudication, labelled.opinions)
        requests.append(insert_new_row(session, adjudication))
        if chosen is not None:
            session.add(chosen)
            session.flush()
        waiting = True
    if case.waiting != waiting:
        change_row(session, case, waiting=waiting)
