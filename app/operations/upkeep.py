"""What the worker does from time to time so that the service stays as it is meant to be."""

from app.context import Context
from app.platform.idempotency import SWEEP_ROWS, sweep
from app.triage.planning import policy_for_planning


def tidy(context: Context) -> None:
    """Set the day's threshold of a rule by capacity, and delete remembered answers that nobody will ask for again."""
    with context.database.write() as session:
        policy_for_planning(session)
    deleted = SWEEP_ROWS
    while deleted == SWEEP_ROWS:
        with context.database.write() as session:
            deleted = sweep(session)
