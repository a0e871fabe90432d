"""Metrics over collected labels, computed anew at each call."""

import uuid
from datetime import datetime

from sqlalchemy.orm import Session

from app import observability
from app.errors import NoRelease
from app.evaluations.collected import Collected, collect
from app.evaluations.schemas import MetricsOut
from app.releases.queries import champion, class_codes, existing_release
from ml.metrics import evaluate


def collected_for(
    session: Session,
    release_id: uuid.UUID | None,
    partition: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[uuid.UUID, Collected]:
    """Predictions and labels of a release, the champion where none is named.

    Raises:
        NoRelease: there is no champion.
        NotFound: no such release.
    """
    if release_id is None:
        alias = champion(session)
        if alias is None:
            raise NoRelease("no release is served; add one with `secondread release add`")
        release_id = alias.release_id
    classes = class_codes(existing_release(session, release_id))
    part = None if partition == "all" else partition
    return release_id, collect(session, release_id, classes, partition=part, since=since, until=until)


def metrics(
    session: Session,
    release_id: uuid.UUID | None,
    partition: str,
    since: datetime | None,
    until: datetime | None,
) -> MetricsOut:
    """Every metric of prior predictions against blind planned labels, clustered by patient."""
    release_id, data = collected_for(session, release_id, partition, since, until)
    document = evaluate(
        data.label_counts, data.class_probs, data.disagreement_probs, cluster=data.clusters, classes=data.classes
    )
    observability.publish_metrics(document["metrics"])
    return MetricsOut(release=str(release_id), partition=partition, **document)
