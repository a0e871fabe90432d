"""The threshold of a day, of a rule by capacity: set by whoever writes first on that day, never by a reader."""

from typing import Any

from sqlalchemy import select

from app.database.tables import DailyThreshold
from app.job_table import run_maintenance
from tests.support.service import Service, cell_png


def stored(service: Service) -> list[tuple[int, float | None]]:
    with service.context.database.read() as session:
        return [(row.policy_version, row.threshold) for row in session.execute(select(DailyThreshold)).scalars()]


def by_capacity(service: Service, second_reads: int) -> None:
    body: dict[str, Any] = {"rule": "capacity", "capacity_per_day": second_reads, "reason": "so many a day"}
    assert service.post("admin", "/v1/policies", json=body).status_code == 201


def test_a_reader_never_sets_the_threshold_of_the_day(service: Service) -> None:
    case = service.add_case("case", cell_png(1))
    by_capacity(service, 5)
    for path in ("/v1/cases", "/v1/worklist", f"/v1/cases/{case['id']}", f"/v1/cases/{case['id']}/posterior"):
        assert service.get("viewer", path).status_code == 200
    assert service.post("viewer", "/v1/predictions", files={"image": ("x.png", cell_png())}).status_code == 200
    service.outside_label(case["id"], "reader", case["prediction"]["classes"][0])
    assert stored(service) == []


def test_the_first_case_of_a_day_sets_it_once(service: Service) -> None:
    by_capacity(service, 5)
    service.add_case("first", cell_png(1))
    assert stored(service) == [(2, None)]  # there are no earlier days
    service.add_case("second", cell_png(2))
    assert stored(service) == [(2, None)]


def test_the_worker_sets_it_before_any_case_comes(service: Service) -> None:
    run_maintenance(service.context)
    assert stored(service) == []  # the first policy is not by capacity
    by_capacity(service, 5)
    run_maintenance(service.context)
    run_maintenance(service.context)
    assert stored(service) == [(2, None)]
