"""The gauges of ``GET /metrics``: the champion's estimates, computed by the worker and stored for the web process.

Only the question that ``GET /v1/metrics`` answers when nothing is asked for is published, so that a gauge always means
the same, whatever anybody looks at.
"""

import uuid
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations.cohort import Question, cohort_of, evaluate_cohort
from app.evaluations.snapshots import current_columns
from app.platform.database import insert_if_absent
from app.releases.queries import champion, class_codes, existing_release
from app.tables import Alias, PublishedEstimates, now


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
    """Evaluate the champion and store the estimates; without a champion there is nothing to do."""
    with context.database.read() as session:
        alias = champion(session)
        if alias is None:
            return
        release_id = alias.release_id
        classes = class_codes(existing_release(session, release_id))
        columns = current_columns(session, context.settings.home, release_id, classes)
        metrics = evaluate_cohort(cohort_of(columns, Question(), now().timestamp())).metrics
    values = {name: estimate.to_dict()["value"] for name, estimate in metrics.items()}
    known = {name: value for name, value in values.items() if value is not None}
    with context.database.write() as session:
        _store(session, release_id, known)


def _store(session: Session, release_id: uuid.UUID, estimates: dict[str, float]) -> None:
    """Insert or replace the estimates of a release; of two workers that race, the last one's stay."""
    time = now()
    row = {"release_id": release_id, "estimates": estimates, "computed_at": time}
    insert_if_absent(session, PublishedEstimates, row)
    session.execute(
        update(PublishedEstimates)
        .where(PublishedEstimates.release_id == release_id)
        .values(estimates=estimates, computed_at=time)
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
