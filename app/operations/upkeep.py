"""What the worker does from time to time so that the service stays as it is meant to be."""

from app.context import Context
from app.database.idempotency import SWEEP_ROWS, sweep
from app.imports.import_job import delete_archives
from app.labels.adjudication import ask_instead
from app.labels.corrections import settle
from app.maintenance.erasure import finish_erasures
from app.triage.planning import policy_for_planning


def tidy(context: Context) -> None:
    """Draw the conclusions from final labels, ask others where somebody declined or left, set the day's threshold.

    Old answers and archives are forgotten.
    """
    settle(context)
    ask_instead(context)
    delete_archives(context)
    finish_erasures(context)
    with context.database.write() as session:
        policy_for_planning(session)
    deleted = SWEEP_ROWS
    while deleted == SWEEP_ROWS:
        with context.database.write() as session:
            deleted = sweep(session, context.clock())
