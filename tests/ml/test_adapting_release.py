"""A release adapted to other annotators on the command line: images and LABELS in, a release out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from ml.calibration.domain_adaptation import recalibrate_for_annotators
from ml.cli.releases import _adaptation_text
from ml.datasets.annotators import AnnotatorPool
from ml.datasets.cells import simulate_cells
from ml.images.preprocess import decode_image, pixel_digest
from ml.release.artifact import read_release
from ml.release.predictor import Predictor
from ml.release.training_index import TrainingIndex
from tests.support.command import run_here
from tests.support.tiny_release import with_training

CELLS = 60


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, tiny_release: Path) -> Path:
    """Images, and labels by two of five annotators each, who differ about twice as often as the release's."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "images").mkdir()
    cells = simulate_cells(CELLS + 3, seed=5, size=32)
    probs = np.sqrt(np.stack([cell.true_probs for cell in cells]))
    people, labels = AnnotatorPool(5).read(probs / probs.sum(axis=1, keepdims=True), 2, np.random.default_rng(1))
    classes, rows = read_release(tiny_release).classes, ["case_id,annotator,label,patient"]
    for number, cell in enumerate(cells):
        Image.fromarray(cell.pixels).save(folder / "images" / f"c{number}.png")
        if number < CELLS:  # the others are nobody's
            given = zip(people[number], labels[number], strict=True)
            rows += [f"c{number},r{person},{classes[k]},p{number // 2}" for person, k in given]
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


def adapt(release: Path, lab: Path, out: Path, *further: object) -> Any:
    options = ("--images", lab / "images", "--labels", lab / "labels.csv", "--out", out, *further)
    return run_here("adapt", release, *options)


def digests(lab: Path, numbers: range) -> list[bytes]:
    return [pixel_digest(decode_image((lab / "images" / f"c{number}.png").read_bytes())) for number in numbers]


def test_the_new_release_says_what_the_library_fits_to_the_same_images(
    tiny_release: Path, lab: Path, tmp_path: Path
) -> None:
    done = adapt(tiny_release, lab, tmp_path / "out", "--json", "--name", "ours")
    assert done.returncode == 0, done.stderr
    report, old, new = json.loads(done.stdout), read_release(tiny_release), read_release(tmp_path / "out")
    pictures = [decode_image((lab / "images" / f"c{number}.png").read_bytes()) for number in range(CELLS)]
    logits, features = Predictor(old).outputs(pictures)
    counts = np.zeros((CELLS, len(old.classes)), dtype=np.int64)
    for line in (lab / "labels.csv").read_text().splitlines()[1:]:
        case, _, label, _ = line.split(",")
        counts[int(case[1:]), old.classes.index(label)] += 1
    wanted = recalibrate_for_annotators(
        old.calibration, logits, features, counts, [f"p{number // 2}" for number in range(CELLS)]
    )
    assert report["adaptation"] == wanted.figures
    said, expected = (made.apply(logits, features) for made in (new.calibration, wanted.calibration))
    np.testing.assert_array_equal(said.disagreement_probs, expected.disagreement_probs)
    assert (new.network_sha256, new.classes) == (old.network_sha256, old.classes)
    assert new.card["name"] == "ours"
    assert new.card["adapted_from"] == {"name": old.card["name"], "card_sha256": old.card_sha256}
    assert new.card["n_held_out"] == report["adaptation"]["n_cases"] == CELLS
    assert report["n_without_labels"] == 3
    assert report["trained_on"] == "unknown"
    assert "3 images have no label" in done.stderr
    assert "is unknown" in done.stderr
    assert "adapted to other annotators by 60 cells" in (tmp_path / "out" / "README.md").read_text()
    for loss in ("L", "L_D"):
        before, after = (step[loss]["value"] for step in report["figures"].values())
        assert report["changes"][loss]["value"] == pytest.approx(after - before)
    assert report["changes"]["L_D"]["value"] < 0
    for low in (-0.01, 0.01):  # of L: what helps the one loss may harm the other
        report["changes"]["L"]["low"] = low
        assert ("WORSE than before" in _adaptation_text(report)) == (low > 0)


def test_images_that_the_release_was_made_with_are_left_out_and_those_that_taught_are_known(
    tiny_release: Path, lab: Path, tmp_path: Path
) -> None:
    index = TrainingIndex.of(digests(lab, range(8)), ["network"] * 5 + ["calibration"] * 3, None)
    trained = with_training(tiny_release, tmp_path / "trained", index)
    done = adapt(trained, lab, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "8 images are left out because the release was made with them" in done.stderr
    assert f"{CELLS - 8} labelled images" in done.stdout
    for word in ("temperature", "slope", "level", "mean φ", "skill_D", "by fits without the image"):
        assert word in done.stdout
    found = read_release(tmp_path / "out").training
    assert found is not None
    uses = found.uses_of(digests(lab, range(CELLS + 3)), None).tolist()
    assert uses == ["network"] * 5 + ["calibration"] * (CELLS - 5) + [""] * 3
    again = adapt(tmp_path / "out", lab, tmp_path / "again")
    assert (again.returncode, "made with all 60" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("c99,r1,{known},p9", "column case_id: no image in"),
        ("c1,r9,unheard of,p0", "unknown class"),
        ("c1,r9,{known},p7", "patient"),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_row_and_nothing_is_written(
    tiny_release: Path, lab: Path, tmp_path: Path, line: str, words: str
) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text(
        (lab / "labels.csv").read_text() + line.format(known=read_release(tiny_release).classes[0]) + "\n"
    )
    done = run_here("adapt", tiny_release, "--images", lab / "images", "--labels", labels, "--out", tmp_path / "out")
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_a_table_without_labels_is_refused_by_name(tiny_release: Path, lab: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text((lab / "labels.csv").read_text().splitlines()[0] + "\n")
    done = run_here("adapt", tiny_release, "--images", lab / "images", "--labels", labels, "--out", tmp_path / "out")
    assert (done.returncode, "labels.csv: contains no label" in done.stderr) == (1, True), done.stderr


def test_too_few_double_reads_and_a_full_folder_are_refused(tiny_release: Path, lab: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join((lab / "labels.csv").read_text().splitlines()[:15]) + "\n")
    few = run_here("adapt", tiny_release, "--images", lab / "images", "--labels", labels, "--out", tmp_path / "out")
    assert (few.returncode, "needs 20 cases with two labels or more, there are 7" in few.stderr) == (1, True)
    full = adapt(tiny_release, lab, lab)
    assert (full.returncode, "the folder is not empty" in full.stderr) == (1, True)


@pytest.mark.slow
def test_the_fused_graph_of_an_adapted_release_says_what_it_says(
    small_release: Path, lab: Path, tmp_path: Path
) -> None:
    """The exported network and the calibration behind it, joined: as `export --fused` makes them of the trained one."""
    done = adapt(small_release, lab, tmp_path / "out", "--fused")
    assert done.returncode == 0, done.stderr
    again = adapt(small_release, lab, tmp_path / "again", "--fused")
    assert again.returncode == 0
    assert (tmp_path / "out" / "fused.onnx").read_bytes() == (tmp_path / "again" / "fused.onnx").read_bytes()
    release = read_release(tmp_path / "out")
    pictures = [decode_image((lab / "images" / f"c{number}.png").read_bytes()) for number in range(20)]
    predictor = Predictor(release)
    inputs = release.preprocessing.normalise(np.stack(predictor.pixels(pictures)))
    names = ["class_probs", "log_concentration", "disagreement_prob"]
    probs, a, phi = onnxruntime.InferenceSession(release.path / "fused.onnx").run(names, {"image": inputs})
    said: Any = predictor.predict(pictures).distribution
    np.testing.assert_allclose(probs, said.class_probs, atol=1e-5)
    np.testing.assert_allclose(phi, said.disagreement_probs, atol=1e-5)
    np.testing.assert_allclose(a, said.log_concentration, atol=1e-3)


@pytest.mark.slow
def test_an_ensemble_is_adapted_and_has_no_fused_graph(dropout_release: Path, lab: Path, tmp_path: Path) -> None:
    refused = adapt(dropout_release, lab, tmp_path / "fused", "--fused")
    assert (refused.returncode, "without dropout" in refused.stderr) == (1, True), refused.stderr
    done = adapt(dropout_release, lab, tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    change = json.loads(done.stdout)["adaptation"]
    assert change["mean_after"] == pytest.approx(change["seen"], abs=0.05)


def test_where_nobody_differs_from_the_release_it_says_that_nothing_is_gained(
    tiny_release: Path, lab: Path, tmp_path: Path
) -> None:
    """Labels of the distribution that the release itself states."""
    pictures = [decode_image((lab / "images" / f"c{number}.png").read_bytes()) for number in range(CELLS)]
    release = read_release(tiny_release)
    said: Any = Predictor(release).predict(pictures).distribution
    rng = np.random.default_rng(8)
    true = [rng.dirichlet(np.exp(a) * f + 1e-9) for a, f in zip(said.log_concentration, said.class_probs, strict=True)]
    rows = [f"c{n},{who},{rng.choice(release.classes, p=q)}" for n, q in enumerate(true) for who in "ab"]
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["case_id,annotator,label", *rows]) + "\n")
    done = run_here("adapt", tiny_release, "--images", lab / "images", "--labels", labels, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "these labels do not show that its disagreement probability suits your annotators better" in done.stdout
