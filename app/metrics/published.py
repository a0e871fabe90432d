"""The gauges of ``GET /metrics``: the champion's estimates, computed by the worker and stored for the web process.

Only the question that ``GET /v1/metrics`` answers when nothing is asked for is published, so that a gauge always means
the same, whatever anybody looks at.
"""

import uuid
from dataclasses import dataclass
from importlib.metadata import version

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.context import Context
from app.database.engine import insert_if_absent
from app.database.tables import Alias, PublishedEstimates, ReadRequest, time_of
from app.metrics.cohort import Question, cohort_of, evaluate_cohort, held_out
from app.metrics.snapshot import current_columns
from app.releases.queries import champion, class_codes, existing_release


@dataclass(frozen=True)
class ChampionEstimates:
    """The latest published estimates of the champion.

    Attributes:
        release_id: the champion.
        estimates: values by the metric's name; those that could not be estimated are missing.
    """

    release_id: uuid.UUID
    estimates: dict[str, float]


def publish_estimates(context: Context) -> None:
    """Evaluate the champion and store the estimates, if there is one and anything has changed since the last time."""
    with context.database.read() as session:
        alias = champion(session)
        if alias is None:
            return
        release_id = alias.release_id
        # before the columns are read: what changes meanwhile is seen the next time
        basis = _basis(session)
        published = session.get(PublishedEstimates, release_id)
        if published is not None and published.basis == basis:
            return
        classes = class_codes(existing_release(session, release_id))
        columns = current_columns(session, context.settings.home, release_id, classes)
        cohort = cohort_of(held_out(columns), Question(), context.clock().timestamp())
        metrics = evaluate_cohort(cohort, new_readers=False).metrics
    values = {name: estimate.to_dict()["value"] for name, estimate in metrics.items()}
    known = {name: value for name, value in values.items() if value is not None}
    with context.database.write() as session:
        _store(session, release_id, known, basis)


def _basis(session: Session) -> str:
    """Everything that the estimates of a release follow from, in a few words.

    That is the version of the estimators, the last change of any case, and, because a planned read that is due counts
    as closed, how many are.
    """
    due = select(func.count()).where(
        ReadRequest.round == "planned",
        ReadRequest.state.in_(("open", "leased")),
        ReadRequest.due_at <= time_of(session),
    )
    return f"{version('secondread')} {events.last_change(session)} {session.execute(due).scalar_one()}"


def _store(session: Session, release_id: uuid.UUID, estimates: dict[str, float], basis: str) -> None:
    """Insert or replace the estimates of a release, the only ones; of two workers that race, the last one's stay."""
    values = {"estimates": estimates, "computed_at": time_of(session), "basis": basis}
    insert_if_absent(session, PublishedEstimates, {"release_id": release_id} | values)
    session.execute(
        update(PublishedEstimates)
        .where(PublishedEstimates.release_id == release_id)
        .values(values)
        .execution_options(synchronize_session=False)
    )
    session.execute(
        delete(PublishedEstimates)
        .where(PublishedEstimates.release_id != release_id)
        .execution_options(synchronize_session=False)
    )


def published_estimates(session: Session) -> ChampionEstimates | None:
    """What the worker published last about the current champion; None where it has not yet."""
    statement = (
        select(PublishedEstimates.release_id, PublishedEstimates.estimates)
        .join(Alias, Alias.release_id == PublishedEstimates.release_id)
        .where(Alias.name == "champion")
    )
    row = session.execute(statement).one_or_none()
    return None if row is None else ChampionEstimates(row[0], row[1])
