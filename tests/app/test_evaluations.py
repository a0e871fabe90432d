"""Metrics recomputed over collected labels equal the library's on the exported tables."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from app.export import export_dataset
from ml.datasets.folder import load_folder
from ml.evaluate import evaluate_tables
from tests.support.service import Service, cell_png


def collect(service: Service, images: list[bytes], patients: bool) -> None:
    rng = np.random.default_rng(0)
    for number, data in enumerate(images):
        fields = {"patient": f"p{number // 3}"} if patients else {}
        case = service.add_case(f"case-{number}", data, **fields)
        for reader in range(number % 4):
            service.outside_label(case["id"], f"r{reader}", str(rng.choice(case["prediction"]["classes"])))


@pytest.mark.parametrize("patients", [False, True])
def test_metrics_equal_evaluate_on_the_exported_tables(service: Service, patients: bool, tmp_path: Path) -> None:
    collect(service, [cell_png(i) for i in range(24)], patients)
    document = service.get("viewer", "/v1/metrics").json()
    with service.context.database.read() as session:
        export_dataset(session, service.context, tmp_path / "out", "all")
    tables = tmp_path / "out" / "labels.csv", tmp_path / "out" / "predictions.csv"
    expected = evaluate_tables(*tables, cluster="patient")
    assert document["n_cases"] == expected["n_cases"] == 24
    for name, row in expected["metrics"].items():
        for part, value in row.items():
            assert document["metrics"][name][part] == pytest.approx(value, abs=1e-9), (name, part)
    assert document["classes"] == json.loads(json.dumps(expected["classes"]))
    if not patients:  # each case is its own patient
        plain = evaluate_tables(*tables)
        for name, row in plain["metrics"].items():
            assert document["metrics"][name]["value"] == pytest.approx(row["value"], abs=1e-9)


def test_the_export_can_be_trained_on(service: Service, tmp_path: Path) -> None:
    collect(service, [cell_png(i) for i in range(12)], patients=True)
    with service.context.database.read() as session:
        export_dataset(session, service.context, tmp_path / "out", "all")
    dataset = load_folder(tmp_path / "out", size=32)
    assert dataset.pixels.shape == (9, 32, 32, 3)
    assert [info.code for info in dataset.classes] == service.get("viewer", "/v1/cases").json()["items"][0][
        "prediction"
    ]["classes"]
    assert dataset.label_counts.sum() == 18


def test_metrics_are_empty_but_whole_without_labels(service: Service) -> None:
    service.add_case()
    document = service.get("viewer", "/v1/metrics").json()
    assert document["metrics"]["L"]["value"] is None
    assert document["warnings"]
    assert service.get("viewer", "/v1/metrics", params={"partition": "nonsense"}).status_code == 422


def test_latest_metrics_become_prometheus_gauges(service: Service) -> None:
    collect(service, [cell_png(i) for i in range(8)], patients=False)
    document = service.get("viewer", "/v1/metrics").json()
    exposed = service.get(None, "/metrics").text
    line = next(line for line in exposed.splitlines() if line.startswith('secondread_estimate{metric="L"}'))
    assert float(line.split()[1]) == pytest.approx(document["metrics"]["L"]["value"], rel=1e-12)


def test_partitions_share_the_cases_out(service: Service) -> None:
    collect(service, [cell_png(i) for i in range(10)], patients=False)
    sizes = {
        part: service.get("viewer", "/v1/metrics", params={"partition": part}).json()["n_cases"]
        for part in ("all", "evaluation", "calibration")
    }
    assert sizes["evaluation"] + sizes["calibration"] == sizes["all"] == 10


def test_fifty_real_cells_read_by_three(service: Service, datasets: Path, tmp_path: Path) -> None:
    """The originals of real cells, whatever the release makes of them: closed form and metrics hold."""
    with zipfile.ZipFile(datasets / "pbc_wbcatt" / "originals_test_304.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")][:50]
        images = [archive.read(name) for name in names]
    rng = np.random.default_rng(1)
    for name, data in zip(names, images, strict=True):
        case = service.add_case(Path(name).name, data)
        classes = case["prediction"]["classes"]
        prior = np.array(list(case["prediction"]["class_probs"].values()))
        alpha = np.exp(case["prediction"]["log_concentration"]) * prior
        for reader in range(3):
            code = int(rng.integers(len(classes)))
            alpha[code] += 1
            after = service.outside_label(case["id"], f"r{reader}", classes[code])["posterior"]
            np.testing.assert_allclose(list(after["class_probs"].values()), alpha / alpha.sum(), atol=1e-9)
    document = service.get("viewer", "/v1/metrics").json()
    with service.context.database.read() as session:
        export_dataset(session, service.context, tmp_path / "out", "all")
    expected = evaluate_tables(tmp_path / "out" / "labels.csv", tmp_path / "out" / "predictions.csv")
    assert (document["n_cases"], document["n_labels"]) == (50, 150)
    for name, row in expected["metrics"].items():
        assert document["metrics"][name]["value"] == pytest.approx(row["value"], abs=1e-9)
