"""Releases of models made elsewhere in the service: added, served, recalibrated, judged; a table's is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import secondread
from app.releases.registration import add_release
from app.releases.training import check_training_disclosure
from ml.datasets.cells import CLASSES, AnnotatorPool, simulate_cells
from ml.release.artifact import ReleaseError, read_release
from ml.release.predictor import Predictor
from tests.app.test_gate_memory import promote
from tests.support.images import encode
from tests.support.jobs import finish_job
from tests.support.service import Service, store

CELLS = 160
#: Labelled cells of which half are enough for a recalibration.
ENOUGH = 135


@pytest.fixture(scope="module")
def lab(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Images of simulated cells, what three annotators called them, and a network without calibration."""
    folder = tmp_path_factory.mktemp("elsewhere")
    cells = simulate_cells(CELLS, seed=31, size=32)
    truth = np.stack([cell.true_probs for cell in cells])
    _, answers = AnnotatorPool().read(truth, 3, np.random.default_rng(1))
    codes, labels = [info.code for info in CLASSES], dict[str, list[str]]()
    for name in ("case_id", "annotator", "label", "patient"):
        labels[name] = []
    for number, (cell, row) in enumerate(zip(cells, answers, strict=True)):
        Image.fromarray(cell.pixels).save(folder / f"cell-{number}.png")
        for annotator in np.flatnonzero(row >= 0):
            for name, value in zip(
                labels, (f"cell-{number}", f"r{annotator}", codes[row[annotator]], cell.patient), strict=True
            ):
                labels[name].append(value)
    return folder, labels


def adopt(tiny_release: Path, lab: tuple[Path, dict[str, Any]], out: Path, **options: Any) -> Path:
    """The network of a release as if another laboratory had made it, calibrated to the annotators of these cells."""
    seen = read_release(tiny_release)
    steps = {name: getattr(seen.preprocessing, name) for name in ("size", "mean", "std")}
    secondread.adopt(
        seen.network, out, labels=lab[1], images=lab[0], classes=seen.classes, preprocessing=steps, **options
    )
    return out


@pytest.mark.slow
@pytest.mark.parametrize("n", [pytest.param(16, marks=pytest.mark.ci), pytest.param(ENOUGH, marks=pytest.mark.heavy)])
def test_an_adopted_network_is_added_judged_served_and_recalibrated(
    n: int, service: Service, tiny_release: Path, lab: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    context = service.context
    folder = adopt(tiny_release, lab, tmp_path / "ours")
    row, new = add_release(context.database, context.keys.audit, folder, context.folders)
    assert (new, check_training_disclosure(row.card, context.keys.training)) == (True, ("unknown", "unknown"))
    rng = np.random.default_rng(4)
    cells = simulate_cells(n, seed=77, size=32)
    for number, cell in enumerate(cells):
        given = {f"reader {k}": int(rng.choice(len(CLASSES), p=cell.true_probs)) for k in range(3)}
        store(service, f"case-{number}", encode(cell.pixels), given, patient=f"p{number}")
    judged = finish_job(service, f"/v1/releases/{row.id}/judgements")
    assert judged["state"] == "succeeded", judged["error"]
    findings = " ".join(judged["result"]["gate"]["findings"])
    assert "training cells are unknown" in findings
    assert promote(service, str(row.id), despite_gate=True).status_code == 200
    case = service.add_case("new", encode(cells[0].pixels))
    said = Predictor(read_release(folder), device="cpu").predict([Image.fromarray(cells[0].pixels)]).distribution
    np.testing.assert_allclose(list(case["prediction"]["class_probs"].values()), said.class_probs[0], atol=1e-12)
    after = service.outside_label(case["id"], "reader 0", case["prediction"]["classes"][0])
    counts = np.eye(len(CLASSES), dtype=int)[:1]
    np.testing.assert_allclose(
        list(after["posterior"]["class_probs"].values()), said.posterior(counts).class_probs[0], atol=1e-12
    )
    if n < ENOUGH:
        return
    recalibrated = finish_job(service, "/v1/recalibrations", method="temperature")
    assert recalibrated["state"] == "succeeded", recalibrated["error"]
    candidate = read_release(context.folders.path(f"releases/{recalibrated['result']['release']}"))
    assert candidate.card["parent"] == str(row.id)
    assert candidate.network_sha256 == read_release(folder).network_sha256


def test_a_release_of_a_table_is_not_added(service: Service, lab: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    cases = sorted(set(lab[1]["case_id"]))
    rng = np.random.default_rng(0)
    outputs = {"case_id": cases, **{f"logit:{info.code}": rng.normal(size=len(cases)) for info in CLASSES}}
    secondread.adopt(outputs, tmp_path / "table", labels=lab[1], classes=[info.code for info in CLASSES])
    context = service.context
    with pytest.raises(ReleaseError, match="secondread score RELEASE --logits TABLE") as refused:
        add_release(context.database, context.keys.audit, tmp_path / "table", context.folders)
    assert str(tmp_path / "table") in str(refused.value)
    assert len(service.get("viewer", "/v1/releases").json()["items"]) == 1
