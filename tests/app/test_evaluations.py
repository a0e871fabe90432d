"""Metrics recomputed over collected labels equal the library's on the exported tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import service as metric_service
from app.metrics.published import publish_estimates
from app.metrics.service import CohortTables, cohort_tables
from ml.datasets.folder import load_folder
from ml.tables import evaluate as evaluate_tables
from tests.support.jobs import work_off
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, collect, store


def same(found: Any, expected: Any, where: str = "") -> None:
    """Equal to 1e-9 all the way down."""
    if isinstance(expected, dict):
        assert found.keys() >= expected.keys(), where
        for name, value in expected.items():
            same(found[name], value, f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (value, other) in enumerate(zip(found, expected, strict=True)):
            same(value, other, f"{where}[{number}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-9), where
    else:
        assert found == expected, where


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
@pytest.mark.parametrize("patients", [False, True])
def test_metrics_equal_evaluate_on_the_exported_tables(service: Service, patients: bool, tmp_path: Path) -> None:
    collect(service, [cell_png(i) for i in range(24)], patients)
    everything = {"partition": "all", "weighting": "none"}
    document = service.get("viewer", "/v1/metrics", params=everything).json()
    service.export(tmp_path / "out")
    tables = tmp_path / "out" / "labels.csv", tmp_path / "out" / "predictions.csv"
    expected = evaluate_tables(*tables, cluster="patient")
    assert document["n_cases"] == expected.to_dict()["n_cases"] == 24
    for name, row in expected.to_dict()["metrics"].items():
        for part, value in row.items():
            assert document["metrics"][name][part] == pytest.approx(value, abs=1e-9), (name, part)
    same(document["classes"], expected.to_dict()["classes"])
    if not patients:  # each case is its own patient
        plain = evaluate_tables(*tables)
        for name, row in plain.to_dict()["metrics"].items():
            assert document["metrics"][name]["value"] == pytest.approx(row["value"], abs=1e-9)


def test_the_export_can_be_trained_on(populated: Service, tmp_path: Path) -> None:
    populated.export(tmp_path / "out")
    dataset = load_folder(tmp_path / "out", size=32)
    assert dataset.pixels.shape == (18, 32, 32, 3)
    released = populated.get("viewer", "/v1/releases").json()["items"][0]["classes"]
    assert [vars(info) for info in dataset.classes] == released  # with names, keys and groups
    assert dataset.label_counts.sum() == 36


def test_metrics_are_empty_but_whole_without_labels(service: Service) -> None:
    service.add_case()
    document = service.get("viewer", "/v1/metrics").json()
    assert document["metrics"]["L"]["value"] is None
    assert document["warnings"]
    assert service.get("viewer", "/v1/metrics", params={"partition": "nonsense"}).status_code == 422
    publish_estimates(service.context)
    samples = [one for metric in text_string_to_metric_families(service.metrics()) for one in metric.samples]
    assert {"secondread_workers", "secondread_batch_size_sum"} <= {one.name for one in samples}
    assert [one for one in samples if not np.isfinite(one.value)] == []


def estimate_lines(service: Service) -> list[str]:
    return [line for line in service.metrics().splitlines() if line.startswith("secondread_estimate{")]


def test_gauges_are_published_by_the_worker_and_no_query_changes_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.observability._COUNT_SECONDS", -1.0)  # count at every scrape
    collect(service, [cell_png(i) for i in range(16)], patients=True)
    assert service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()["metrics"]["L"]["value"] is not None
    assert estimate_lines(service) == []  # nothing was published yet
    publish_estimates(service.context)
    document = service.get("viewer", "/v1/metrics").json()
    expected = {name: row["value"] for name, row in document["metrics"].items() if row["value"] is not None}
    assert "L" in expected
    published = estimate_lines(service)
    wanted = {f'secondread_estimate{{metric="{name}",release="{document["release"]}"}}' for name in expected}
    assert {line.split(" ")[0] for line in published} == wanted
    shown = {line.split('"')[1]: float(line.split()[1]) for line in published}
    assert shown == pytest.approx(expected, rel=1e-12)
    for other in ({"partition": "all"}, {"weighting": "none"}, {"site": "north"}, {"group_by": "site"}):
        assert service.get("viewer", "/v1/metrics", params=other).status_code == 200
        assert estimate_lines(service) == published, other


@pytest.mark.slow
def test_a_service_whose_labels_are_all_of_one_class_shows_its_numbers_and_freezes_them(service: Service) -> None:
    for number in range(4):
        store(service, f"case-{number}", cell_png(number), {"r": 0, "s": 0}, patient=f"p{number}")
    agreement = service.get("viewer", "/v1/agreement", params={"partition": "all"})
    assert (agreement.status_code, agreement.json()["krippendorff_alpha"]["value"]) == (200, None)
    assert "two annotators who differ about a case" in report_page(service, partition="all")
    asked = service.post("admin", "/v1/evaluations", json={"partition": "all"}).json()
    work_off(service.context)
    assert service.get("viewer", f"/v1/evaluations/{asked['id']}").json()["error"] is None


def test_a_frozen_evaluation_is_of_one_moment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        store(service, f"case-{number}", cell_png(number), {"r": 0, "s": 1}, patient=f"p{number}")
    case = service.get("viewer", "/v1/cases").json()["items"][0]
    tables = cohort_tables

    def while_somebody_answers(*arguments: Any, **options: Any) -> CohortTables:
        service.outside_label(case["id"], "late reader", case["prediction"]["classes"][0])
        return tables(*arguments, **options)

    monkeypatch.setattr(metric_service, "cohort_tables", while_somebody_answers)
    asked = service.post("admin", "/v1/evaluations", json={"partition": "all", "weighting": "none"}).json()
    work_off(service.context)
    assert service.get("viewer", f"/v1/evaluations/{asked['id']}").json()["error"] is None
    frozen = next(service.context.settings.home.glob("evaluations/*/labels.parquet"))
    assert set(pyarrow.parquet.read_table(frozen)["annotator"].to_pylist()) == {"r", "s"}


def reading(service: Service, who: str, codes: list[str], limit: int = 1000) -> int:
    """Read what there is for one annotator, who sees the same cell type as its seed says."""
    rng = np.random.default_rng(abs(hash(who)) % 2**32)
    for done in range(limit):
        lease = service.post(who, "/v1/reads")
        if lease.status_code == 204:
            service.make_labels_final()
            return done
        body = {"label": str(rng.choice(codes))}
        assert service.post(who, f"/v1/reads/{lease.json()['id']}/labels", json=body).status_code == 201
    return limit


def test_weighted_metrics_equal_evaluate_with_the_exported_weights(service: Service, tmp_path: Path) -> None:
    from app.metrics.cohort import CohortQuery
    from app.metrics.service import load_cohort
    from ml.tables.reading import write_table

    policy = {"rule": "disagreement", "threshold": 0.86, "audit_rate": 0.4, "adjudicate_below": None, "reason": "t"}
    assert service.post("admin", "/v1/policies", json=policy).status_code == 201
    for number in range(24):
        service.add_case(f"case-{number}", cell_png(number), patient=f"p{number // 2}", site="ab"[number % 2])
    codes = [info["code"] for info in service.get("viewer", "/v1/releases").json()["items"][0]["classes"]]
    empty = service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()
    assert (empty["n_cases"], empty["selection"]["n_open"]) == (0, 24)
    assert reading(service, "anna", codes) == 24
    half = service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()
    planned_twice = half["selection"]["n_waiting"]
    assert 0 < planned_twice < 24
    assert (half["n_cases"], half["n_labels"], half["selection"]["n_open"]) == (24, 24, 0)
    reading(service, "ben", codes)
    document = service.get("viewer", "/v1/metrics", params={"partition": "all", "group_by": "site"}).json()
    assert (document["n_cases"], document["n_labels"]) == (24, 24 + planned_twice)
    with service.context.database.read() as session:
        tables = cohort_tables(session, load_cohort(session, CohortQuery(partition="all"))[1])
    write_table(tables.labels_table(), tmp_path / "labels.parquet")
    write_table(tables.predictions, tmp_path / "predictions.parquet")
    expected = evaluate_tables(
        tmp_path / "labels.parquet",
        tmp_path / "predictions.parquet",
        sample_weight=("weight", "weight2"),
        cluster="patient",
    )
    same(document["metrics"], expected.to_dict()["metrics"])
    for name in ("L", "CL", "CE"):  # the first reads were in, and second ones change nothing of order 1
        assert half["metrics"][name]["value"] == pytest.approx(document["metrics"][name]["value"], abs=1e-12)
    assert max(tables.weight2) == pytest.approx(1 / 0.4)
    assert [group["group"] for group in document["groups"]] == ["a", "b"]
    assert document["posterior_gain"]["n"] == planned_twice
    assert document["triage_curve"][-1]["value"] == pytest.approx(1.0)


def test_what_nobody_could_tell_is_told_as_a_rate_and_raises_the_other_weights(service: Service) -> None:
    policy = {"rule": "disagreement", "threshold": 0.0, "audit_rate": 0.5, "adjudicate_below": None, "reason": "t"}
    assert service.post("admin", "/v1/policies", json=policy).status_code == 201
    service.add_cases(10)
    lease = service.post("anna", "/v1/reads").json()
    service.post("anna", f"/v1/reads/{lease['id']}/decline", json={"reason": "cannot_tell"})
    codes = [info["code"] for info in lease["classes"]]
    reading(service, "anna", codes)
    reading(service, "ben", codes)
    document = service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()
    second = document["selection"]["orders"][1]
    assert second["non_response"] == pytest.approx(0.1)
    assert sum(row["cannot_tell"] for row in document["selection"]["cannot_tell"]) == 1
    assert any("did not get them" in text for text in document["warnings"])
    assert document["metrics"]["EL"]["largest_weight"] > 1


def test_agreement_over_http(service: Service) -> None:
    assert service.get("viewer", "/v1/agreement").json()["n_labels"] == 0
    collect(service, [cell_png(i) for i in range(16)], patients=True)
    document = service.get("viewer", "/v1/agreement", params={"partition": "all"}).json()
    assert document["n_annotators"] == 3
    assert -1 <= document["krippendorff_alpha"]["value"] <= 1
    only = service.get("viewer", "/v1/agreement", params={"partition": "all", "group_by": "class"}).json()
    assert "classes" in only
    assert "pairs" not in only
    assert service.get("anna", "/v1/agreement").status_code == 403
