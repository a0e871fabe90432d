"""When an annotator may take a qualification: two attempts, two weeks apart, then an admin decides."""

from datetime import timedelta

from sqlalchemy.orm import Session

from app.database.tables import Annotator, time_of
from app.practice.runs import attempts_of, decisions_on
from app.triage.eligibility import standing_of

#: Attempts until an admin renews them.
ATTEMPTS = 2
#: Time between the end of one and the beginning of the next.
WAIT = timedelta(days=14)


def refusal(session: Session, annotator: Annotator) -> str | None:
    """Why an annotator cannot begin a qualification now; None where they can.

    Args:
        session: for reading; of a writing one the annotator's row is locked.
        annotator: who.
    """
    decisions = decisions_on(session, annotator.id)
    newest = decisions[0].kind if decisions else None
    if newest in {"passed", "qualified"}:
        return "you are qualified"
    if newest == "withdrawn":
        return "an admin has withdrawn your qualification; only an admin can let you try again"
    if standing_of(session, annotator).because == "earlier-labels":
        return "you are qualified by the labels that you gave before a qualification was asked for"
    since = decisions[0].created_at if newest == "renewed" else None
    attempts = attempts_of(session, annotator.id)
    if any(run.state == "open" for run in attempts):
        return "finish the qualification that you have begun first"
    counted = [run for run in attempts if since is None or run.created_at > since]
    if len(counted) >= ATTEMPTS:
        return f"{ATTEMPTS} attempts are over; ask an admin for further ones"
    ends = [run.finished_at + WAIT for run in counted if run.finished_at is not None]
    if ends and max(ends) > time_of(session):
        return f"the next attempt is possible from {max(ends):%Y-%m-%d %H:%M} UTC on"
    return None
