"""Metrics warn where annotators use the classes differently, by the same test as ``secondread evaluate``."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert, select

from app.context import ServiceContext
from app.database.tables import Account, Annotator, Case, CasePrediction, Label, PolicyRow, ReadRequest
from app.releases.queries import all_releases, class_codes
from app.reports.frozen_evaluations import LABELS, PREDICTIONS, evaluation_folder
from ml.tables import evaluate as evaluate_tables
from tests.app.test_snapshots import case_row, label_row, new_row, request_row
from tests.support.jobs import work_off
from tests.support.reports import report_page
from tests.support.service import Service
from tests.support.snapshots import assert_snapshots_tell_all, write_snapshots


def fill(context: ServiceContext, n: int, leaning: float) -> None:
    """Cases read twice by three people, of whom the first says the second class where they would say the first."""
    rng = np.random.default_rng(0)
    with context.database.write() as session:
        release = all_releases(session)[0]
        codes = class_codes(release)
        accounts = session.execute(select(Account.id).order_by(Account.id).limit(3)).scalars().all()
        policy = session.execute(select(PolicyRow.version)).scalar_one()
        readers = [{**new_row(), "name": f"reader {k}", "account_id": None} for k in range(len(accounts))]
        session.execute(insert(Annotator), readers)
        rows: dict[Any, list[dict[str, Any]]] = {Case: [], CasePrediction: [], Label: [], ReadRequest: []}
        for number in range(n):
            case = case_row(number, accounts[0]) | {"pi": 1.0}
            rows[Case].append(case)
            prediction = new_row(case_id=case["id"], release_id=release.id, class_probs=[1 / len(codes)] * len(codes))
            rows[CasePrediction].append(prediction | {"log_concentration": 1.0, "disagreement_prob": 0.2})
            for ordinal, k in enumerate(rng.choice(3, 2, replace=False)):
                said = int(rng.random() < 0.3) or int(k == 0 and rng.random() < leaning)
                rows[Label].append(label_row(case["id"], readers[k]["id"], codes[said], accounts[0]))
                rows[ReadRequest].append(request_row(rows[Label][-1], ordinal, policy))
        for table, values in rows.items():
            session.execute(insert(table), values)


@pytest.mark.slow
def test_metrics_warn_as_evaluate_does_on_the_frozen_tables(service: Service) -> None:
    fill(service.context, 120, leaning=0.6)
    service.written_past = True
    asked = service.post("admin", "/v1/evaluations", json={"partition": "all"}).json()
    work_off(service.context)
    folder: Path = evaluation_folder(service.context.settings.home, asked["id"])
    weights = ("weight", "weight2")
    offline = evaluate_tables(folder / LABELS, folder / PREDICTIONS, sample_weight=weights, cluster="patient")
    (expected,) = [text for text in offline.warnings if "use the classes differently" in text]
    frozen = service.get("viewer", f"/v1/evaluations/{asked['id']}").json()["document"]
    for _ in range(2):  # from all rows, and from the snapshot
        live = service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()
        for document in (live, frozen):
            assert document["warnings"].count(expected) == 1
            assert sum("use the classes differently" in text for text in document["warnings"]) == 1
        assert "Annotators use the classes differently" in report_page(service, partition="all")
        write_snapshots(service.context)
        assert_snapshots_tell_all(service.context)


@pytest.mark.parametrize("leaning", [0.0, 0.6])
def test_annotators_who_lean_are_called_different_and_those_who_are_alike_are_not(
    service: Service, leaning: float
) -> None:
    fill(service.context, 120, leaning)
    service.written_past = True
    for weighting in ("ipw", "none"):
        params = {"partition": "all", "weighting": weighting}
        document = service.get("viewer", "/v1/metrics", params=params).json()
        assert document["metrics"]["L_D"]["n"] == 120
        assert any("use the classes differently" in text for text in document["warnings"]) == (leaning > 0)


@pytest.mark.parametrize("weighting", ["ipw", "none"])
def test_metrics_comparison_and_report_have_both_intervals(service: Service, weighting: str) -> None:
    fill(service.context, 120, leaning=0.6)
    service.written_past = True
    asked = {"partition": "all", "weighting": weighting}
    metrics = service.get("viewer", "/v1/metrics", params=asked).json()["metrics"]
    for name in ("L", "agreement", "EL", "L_D", "CL", "CE", "skill_D"):
        row = metrics[name]
        assert row["low_new"] <= row["low"] <= row["high"] <= row["high_new"], name
    # who leans tells that the next annotator may
    disagreement = metrics["L_D"]
    assert disagreement["high_new"] - disagreement["low_new"] > 1.5 * (disagreement["high"] - disagreement["low"])
    release = service.get("viewer", "/v1/releases").json()["items"][0]["id"]
    compared = service.get("viewer", f"/v1/releases/{release}/comparison", params=asked).json()["metrics"]
    assert compared["L"]["champion"] == metrics["L"]
    assert compared["L"]["change"]["low_new"] == compared["L"]["change"]["high_new"] == 0
    assert "for new annotators" in report_page(service, **asked)
    frozen = service.post("admin", "/v1/evaluations", json=asked).json()["id"]
    work_off(service.context)
    found = service.get("viewer", f"/v1/evaluations/{frozen}").json()["document"]["metrics"]
    for name, row in metrics.items():
        for end in ("low_new", "high_new"):
            assert (found[name][end] is None) == (row[end] is None), name
            assert row[end] is None or found[name][end] == pytest.approx(row[end], rel=1e-6, abs=1e-9), (name, end)
    table = service.get("viewer", f"/v1/evaluations/{frozen}", headers={"Accept": "text/csv"}).text
    assert table.splitlines()[0].startswith("metric,value,se,low,high,low_new,high_new,")
