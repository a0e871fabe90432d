"""Recalibration by the method ``adapt``: the champion's calibration for annotators who are not those of the release."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.recalibration.change_plan import ChangePlan
from app.recalibration.service import read_recalibration_inputs
from app.releases.service import move_alias
from ml.calibration.calibration import Calibration
from ml.calibration.domain_adaptation import recalibrate_for_annotators
from ml.datasets.annotators import AnnotatorPool
from ml.datasets.cells import simulate_cell
from ml.release.artifact import read_release
from ml.release.predictor import Predictor
from ml.util.arrays import FloatArray
from ml.util.files import file_sha256, read_json, write_json
from tests.app.test_jobs import job
from tests.support.images import encode
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, put_release, store


def quarrelsome(true_probs: FloatArray) -> FloatArray:
    """Label distributions of a crowd that differs about twice as often."""
    flat = np.sqrt(true_probs)
    return np.asarray(flat / flat.sum(axis=1, keepdims=True))


def collect_double_reads(service: Service, cells: int, readers: int = 3) -> None:
    """Cells of patients with two each, read twice by outside annotators of a quarrelsome crowd."""
    stack = [simulate_cell(index, seed=5, size=32) for index in range(cells)]
    probs = quarrelsome(np.stack([cell.true_probs for cell in stack]))
    people, labels = AnnotatorPool(readers).read(probs, 2, np.random.default_rng(3))
    for index, cell in enumerate(stack):
        given = {f"reader {person}": int(k) for person, k in zip(people[index], labels[index], strict=True)}
        store(service, f"case-{index}", encode(cell.pixels), given, patient=f"p{index // 2}")


def adapted(service: Service) -> dict[str, Any]:
    """The job of a recalibration by ``adapt``."""
    asked = service.post("admin", "/v1/recalibrations", json={"method": "adapt"})
    assert asked.status_code == 202, asked.text
    work_off(service.context)
    return job(service, asked.json()["id"])


@pytest.mark.slow
def test_a_champion_is_adapted_and_judged_and_serves_what_was_fitted(service: Service) -> None:
    collect_double_reads(service, 60)
    with service.context.database.read_moment() as session:
        material = read_recalibration_inputs(session, service.context)
    done = adapted(service)
    assert done["state"] == "succeeded", done["error"]
    report, change = done["result"], done["result"]["fit"]["adaptation"]
    # the same by the library, on the outputs that the service stored
    kept, parent = material.fitting, material.parent
    row_of, codes = {case_id: row for row, case_id in enumerate(kept.case_ids)}, list(parent.classes)
    counts = np.zeros((len(kept.case_ids), len(codes)), dtype=np.int64)
    for label in material.fitting_labels:
        if label.case_id in row_of:
            counts[row_of[label.case_id], codes.index(label.class_code)] += 1
    wanted = recalibrate_for_annotators(parent.calibration, kept.logits, kept.features, counts, kept.groups)
    assert change == wanted.figures
    assert change["n_double_reads"] == change["n_cases"] == len(kept.case_ids) >= 20
    assert change["mean_after"] > change["mean_before"]
    assert abs(change["mean_after"] - change["seen"]) < 0.05
    candidate = read_release(service.context.settings.releases_folder / report["release"])
    assert candidate.calibration.to_dict() == wanted.calibration.to_dict()
    assert candidate.network_sha256 == parent.network_sha256
    assert candidate.card["calibration"] == {**parent.card["calibration"], "adaptation": change}
    words = f"adapted to other annotators by {change['n_double_reads']} cells"
    assert words in (candidate.path / "README.md").read_text()
    # a third of the pairs is left without each of three readers: too few, and told so
    told = {row["annotator"]: row.get("failed") or "" for row in report["gate"]["without_annotator"]}
    assert set(told) == {f"reader {k}" for k in range(3)}
    assert all("adapting needs 20 cases" in sentence for sentence in told.values())
    page = service.get("admin", f"/releases/{report['release']}").text
    assert words in page
    assert '<option value="temperature" selected>' in service.get("admin", "/releases").text
    _serves(service, report["release"], wanted.calibration)


def _serves(service: Service, release_id: str, calibration: Calibration) -> None:
    """Once promoted, new cases are predicted by it, to the last bit of what the library says."""
    with service.context.database.write() as session:
        move_alias(session, service.context, "test", "champion", uuid.UUID(release_id), "test", None, despite_gate=True)
    work_off(service.context)
    cell = simulate_cell(7, seed=99, size=32)
    case = service.add_case("new", encode(cell.pixels))
    predictor = Predictor(read_release(service.context.settings.releases_folder / release_id))
    said = calibration.apply(*predictor.outputs([Image.fromarray(cell.pixels)]))
    assert case["prediction"]["disagreement_prob"] == pytest.approx(float(said.disagreement_probs[0]), abs=1e-6)
    stored = list(case["prediction"]["class_probs"].values())
    np.testing.assert_allclose(stored, said.class_probs[0], atol=1e-6)


@pytest.mark.slow
def test_too_few_double_reads_are_refused_with_their_number(service: Service) -> None:
    collect_double_reads(service, 8)
    failed = adapted(service)
    assert failed["state"] == "failed"
    with service.context.database.read() as session:
        n = len(read_recalibration_inputs(session, service.context).fitting.case_ids)
    assert "needs 20 cases with two blind planned labels, and labelled cases of 10 patients" in failed["error"]
    assert f"there are {n}, of " in failed["error"]
    assert "more cases read twice" in failed["error"]


def test_a_champion_without_a_concentration_head_is_refused(
    service: Service, tiny_release: Path, tmp_path: Path
) -> None:
    headless = tmp_path / "headless"
    shutil.copytree(tiny_release, headless)
    document = read_json(headless / "calibration.json")
    write_json(headless / "calibration.json", {**document, "version": 1, "concentration": None})
    card = read_json(headless / "card.json")
    card["files"]["calibration.json"] = file_sha256(headless / "calibration.json")
    write_json(headless / "card.json", card | {"disagreement_calibrated": False})
    context = service.context
    with context.database.write() as session:
        row = put_release(session, context.keys.audit, headless, context.settings.releases_folder)
        move_alias(session, context, "test", "champion", row.id, "test", None, despite_gate=True)
    service.add_case("one", cell_png())
    failed = adapted(service)
    assert (failed["state"], "no concentration head" in failed["error"]) == ("failed", True)
    assert "method temperature" in failed["error"]


def test_a_plan_says_how_many_double_reads_and_whether_at_all(service: Service) -> None:
    assert "adapt" in ChangePlan().methods
    plan = service.context.settings.home / "plan.json"
    service.context.settings.change_plan = plan
    plan.write_text(json.dumps({"min_double_reads": 400}))
    service.add_case("one", cell_png())
    assert "needs 400 cases" in adapted(service)["error"]
    plan.write_text(json.dumps({"methods": ["temperature"]}))
    assert "allows the methods temperature, not adapt" in adapted(service)["error"]
    assert "other annotators" not in service.get("admin", "/releases").text
