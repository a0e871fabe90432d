"""Publishes the champion's estimates for the gauges of ``GET /metrics``; computed by the worker."""

import uuid
from dataclasses import dataclass

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.context import ServiceContext
from app.database.engine import insert_if_absent
from app.database.tables import Alias, PublishedEstimates, ReadRequest, time_of
from app.metrics.cohort import CohortQuery, build_cohort, evaluate_cohort, exclude_training_cases
from app.metrics.snapshot import load_current_dataset
from app.releases.service import class_codes, existing_release, get_champion_alias
from secondread import __version__


@dataclass(frozen=True)
class ChampionEstimates:
    """The latest published estimates of the champion."""

    release_id: uuid.UUID
    # values by the metric's name; those that could not be estimated are missing
    estimates: dict[str, float]


def publish_estimates(context: ServiceContext) -> None:
    """Evaluate the champion and store the estimates, if there is one and anything has changed since the last time."""
    with context.database.read() as session:
        alias = get_champion_alias(session)
        if alias is None:
            return
        release_id = alias.release_id
        # before the columns are read: what changes meanwhile is seen the next time
        # The estimates depend on the version of the estimators, on the last change of any case, and on how many planned
        # reads are due, since those count as closed.
        due = select(func.count()).where(
            ReadRequest.round == "planned",
            ReadRequest.state.in_(("open", "leased")),
            ReadRequest.due_at <= time_of(session),
        )
        basis = f"{__version__} {events.last_change(session)} {session.execute(due).scalar_one()}"
        published = session.get(PublishedEstimates, release_id)
        if published is not None and published.basis == basis:
            return
        classes = class_codes(existing_release(session, release_id))
        columns = load_current_dataset(session, context.settings.home, release_id, classes)
        cohort = build_cohort(exclude_training_cases(columns), CohortQuery(), context.clock().timestamp())
        metrics = evaluate_cohort(cohort, new_readers=False).metrics
    values = {name: estimate.to_dict()["value"] for name, estimate in metrics.items()}
    estimates = {name: value for name, value in values.items() if value is not None}
    with context.database.write() as session:
        _store_estimates(session, release_id, estimates, basis)


def _store_estimates(session: Session, release_id: uuid.UUID, estimates: dict[str, float], basis: str) -> None:
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


def read_published_estimates(session: Session) -> ChampionEstimates | None:
    """Read the latest published estimates of the champion; None if there are none yet."""
    statement = (
        select(PublishedEstimates.release_id, PublishedEstimates.estimates)
        .join(Alias, Alias.release_id == PublishedEstimates.release_id)
        .where(Alias.name == "champion")
    )
    row = session.execute(statement).one_or_none()
    return None if row is None else ChampionEstimates(row[0], row[1])
