"""The worker computes the champion's gauges when something has changed, and keeps those of the champion only."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from app.database.tables import Alias, PublishedEstimates, ReleaseRow
from app.metrics import published as metrics_published
from app.metrics.cohort import evaluate_cohort
from app.metrics.published import publish_estimates
from app.releases.queries import get_champion_alias
from tests.support.service import Service, cell_png, collect, store


def published(service: Service) -> list[tuple[UUID, datetime]]:
    with service.context.database.read() as session:
        return [(row.release_id, row.computed_at) for row in session.execute(select(PublishedEstimates)).scalars()]


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Cohorts that were evaluated."""
    evaluated: list[Any] = []
    evaluate = evaluate_cohort

    def counted(cohort: Any, **options: Any) -> Any:
        evaluated.append(cohort)
        return evaluate(cohort, **options)

    monkeypatch.setattr(metrics_published, "evaluate_cohort", counted)
    return evaluated


def test_estimates_are_computed_again_only_when_what_they_follow_from_changed(
    service: Service, evaluations: list[Any]
) -> None:
    for number in range(4):
        store(service, f"case-{number}", cell_png(number), {})
    while (lease := service.post("anna", "/v1/reads")).status_code == 201:
        body = {"label": lease.json()["classes"][0]["code"]}
        assert service.post("anna", f"/v1/reads/{lease.json()['id']}/labels", json=body).status_code == 201
    service.make_labels_final()
    for _ in range(3):
        publish_estimates(service.context)
    assert len(evaluations) == 1
    (first,) = published(service)
    cases = service.get("viewer", "/v1/cases").json()["items"]
    service.outside_label(cases[0]["id"], "another reader", cases[0]["prediction"]["classes"][0])
    publish_estimates(service.context)
    assert len(evaluations) == 2
    (second,) = published(service)
    assert second[1] > first[1]
    for number in range(4):  # of which some are to be evaluated
        service.add_case(f"one more {number}", cell_png(99 + number))
    for _ in range(2):
        publish_estimates(service.context)
    assert len(evaluations) == 3
    service.post("admin", "/v1/evaluations", json={})  # an event that changes no case
    publish_estimates(service.context)
    assert len(evaluations) == 3
    # a planned read that is due counts as closed
    service.clock.ahead = timedelta(days=400)
    for _ in range(2):
        publish_estimates(service.context)
    assert len(evaluations) == 4
    assert (evaluations[2].n_open > 0, evaluations[3].n_open) == (True, 0)


def test_estimates_of_a_former_champion_go(service: Service, evaluations: list[Any]) -> None:
    collect(service, [cell_png(number) for number in range(4)], patients=True)
    publish_estimates(service.context)
    service.written_past = True
    with service.context.database.write() as session:
        serving = get_champion_alias(session)
        assert serving is not None
        former = serving.release_id
        card = session.get_one(ReleaseRow, former).card
        successor = ReleaseRow(name="next", card_sha256="0" * 64, card=card)
        session.add(successor)
        session.flush()
        session.execute(update(Alias).values(release_id=successor.id))
    publish_estimates(service.context)
    assert [release_id for release_id, _ in published(service)] == [successor.id]
    assert len(evaluations) == 2
    with service.context.database.write() as session:
        session.execute(update(Alias).values(release_id=former))
    publish_estimates(service.context)
    assert [release_id for release_id, _ in published(service)] == [former]
    assert len(evaluations) == 3
