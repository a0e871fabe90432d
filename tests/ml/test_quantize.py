"""Commands that make a release of a release: int8, and adapted to other annotators."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from PIL import Image

from app.releases.onnx_safety import require_plain_graph
from ml.calibration.calibrators import calibrate, calibration_mix
from ml.calibration.domain_adaptation import recalibrate_for_annotators
from ml.cli.releases import _adaptation_text, _quantization_text
from ml.datasets.base import ImageDataset
from ml.datasets.cells import CLASSES, AnnotatorPool, load_cells, simulate_cells
from ml.images.preprocess import decode_image, pixel_digest
from ml.metrics import evaluate
from ml.metrics.paired_difference import HARM_LIMIT, describe_regressions, paired_change
from ml.release.artifact import FAMILIARITY_FILE, read_release, write_release
from ml.release.device import clips_sums
from ml.release.predictor import Predictor
from ml.release.training_index import TrainingIndex
from ml.training.quantize import cases_for, quantize_graph, require_pairs
from tests.support.command import run_here
from tests.support.tiny_release import with_training

CELLS, IMAGES = 300, 24


@pytest.fixture(scope="module")
def cells() -> ImageDataset:
    """The data set that ``small_release`` was made with."""
    return load_cells(CELLS, seed=0)


@pytest.fixture(scope="module")
def made(small_release: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """An int8 release of ``small_release``, and what the command said."""
    out = tmp_path_factory.mktemp("int8") / "release"
    done = quantize(small_release, out, "--despite-gate", "--json")
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


def quantize(release: Path, out: Path, *further: object) -> "subprocess.CompletedProcess[str]":
    data = () if "--data" in further else ("--data", "cells", "--cases", CELLS)
    return run_here("quantize", release, *data, "--images", IMAGES, "--no-shifts", "--out", out, *further)


def whole_weights(network: onnx.ModelProto) -> list[np.ndarray]:
    """Weights of a network that are whole numbers of eight bits."""
    tensors = network.graph.initializer
    return [numpy_helper.to_array(tensor) for tensor in tensors if tensor.data_type == onnx.TensorProto.INT8]


def rewritten(source: Path, out: Path, **changes: object) -> Path:
    """A release with the network and the calibration of another one, without digests, and with changes of its card."""
    release, left = read_release(source), {"files", "version", "training"}
    card: Any = {key: value for key, value in release.card.items() if key not in left} | changes
    return write_release(out, {"network.onnx": release.network.read_bytes()}, release.calibration, card, "").path


@pytest.mark.slow
def test_its_network_is_a_plain_graph_with_whole_weights(
    small_release: Path, made: tuple[Path, dict[str, Any]]
) -> None:
    source, release = read_release(small_release), read_release(made[0])
    require_plain_graph(release.network)
    network = onnx.load(release.network)
    weights = [weight for weight in whole_weights(network) if weight.ndim == 4]
    assert len(weights) == made[1]["quantized"]["n_layers"] == 6
    assert {int(np.abs(weight.astype(int)).max()) for weight in weights} == {127}
    assert release.network.stat().st_size < 0.4 * source.network.stat().st_size
    kinds = [node.op_type for node in network.graph.node]
    assert "BatchNormalization" not in kinds
    assert kinds.count("Gemm") == 1  # logits and features are not rounded
    logits, features = Predictor(release, device="cpu").run(np.zeros((3, 3, 48, 48), dtype=np.float32))
    assert (logits.shape, features.shape) == ((3, 8), (3, 128))


@pytest.mark.slow
def test_sums_of_two_products_with_weights_of_seven_bits_fit_sixteen(small_release: Path, cells: ImageDataset) -> None:
    """With the largest activation, 255: what processors without VNNI add up before they widen."""
    release, folder = read_release(small_release), cells.rows("calibration")[:IMAGES]
    inputs = [release.preprocessing.normalise(cells.pixels[folder])]
    weights = whole_weights(onnx.load_from_string(quantize_graph(release.network, inputs, "percentile", 7)[0]))
    assert max(int(np.abs(weight.astype(int)).max()) for weight in weights) == 64
    assert 2 * 255 * 64 < 2**15 <= 2 * 255 * 127


@pytest.mark.slow
def test_the_way_of_processors_that_clip_gives_the_same_bits(
    made: tuple[Path, dict[str, Any]], cells: ImageDataset
) -> None:
    """It multiplies other types by other instructions; on a processor that does not clip both are exact."""
    release = read_release(made[0])
    inputs = release.preprocessing.normalise(cells.pixels[cells.rows("test")])
    outputs = []
    for precise in "01":
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.x64quantprecision", precise)
        session = onnxruntime.InferenceSession(str(release.network), options, providers=["CPUExecutionProvider"])
        outputs.append(session.run(["logits", "features"], {"image": inputs}))
    same = all((plain == precise).all() for plain, precise in zip(*outputs, strict=True))
    assert same or clips_sums()
    served = Predictor(release, device="cpu").run(inputs)
    assert all((one == precise).all() for one, precise in zip(served, outputs[1], strict=True))


@pytest.mark.slow
def test_convolutions_run_in_whole_numbers(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """What ONNX Runtime makes of the graph: operators on whole numbers, and none on floats among them."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(made[0] / "network.onnx"), options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert kinds.count("QLinearConv") == 6
    assert "Conv" not in kinds


@pytest.mark.slow
def test_figures_and_calibration_are_those_of_the_library_on_the_same_cells(
    small_release: Path, made: tuple[Path, dict[str, Any]], cells: ImageDataset
) -> None:
    source, (out, report) = read_release(small_release), made
    release, test = read_release(out), cells.rows("test")
    assert report["n_held_out"] == release.card["n_held_out"] == len(test)
    assert report["left_out"] == {"calibration": 0, "test": 0}
    assert report["trained_on"] == "known"
    pictures, counts = list(cells.pixels[test]), cells.label_counts[test]
    cluster = np.array(cells.patients)[test]
    said = [Predictor(one, device="cpu").predict(pictures).distribution for one in (source, release)]
    pairs = [(one.class_probs, one.disagreement_probs) for one in said]
    for figures, pair in zip(report["figures"].values(), pairs, strict=True):
        wanted = evaluate(counts, *pair, cluster=cluster).metrics
        assert {name: figure["value"] for name, figure in figures.items()} == pytest.approx(
            {name: wanted[name].value for name in figures}
        )
    change = paired_change(counts, *pairs, cluster=cluster)
    changes = report["quantized"]["changes"]
    assert changes["L"]["value"] == pytest.approx(change.loss.value)
    assert changes["L_D"]["se"] == pytest.approx(change.disagreement_loss.se)
    assert report["quantized"]["harms"] == describe_regressions(change)
    fitted = cells.rows("calibration")
    logits, features = Predictor(release, device="cpu").outputs(list(cells.pixels[fitted]))
    groups = [cells.patients[row] for row in fitted] if cells.patients else []
    wanted_fit = calibrate(logits, features, cells.label_counts[fitted], groups)
    np.testing.assert_array_equal(
        release.calibration.apply(logits, features).class_probs,
        wanted_fit.calibration.apply(logits, features).class_probs,
    )


@pytest.mark.slow
def test_the_card_says_what_it_is_and_of_what_it_was_made(
    small_release: Path, made: tuple[Path, dict[str, Any]]
) -> None:
    source, release = read_release(small_release), read_release(made[0])
    quantized = release.card["quantized"]
    assert quantized["source"] == {"name": "small cells", "card_sha256": source.card_sha256}
    assert (quantized["kind"], quantized["weight_bits"], quantized["n_range_images"]) == ("int8", 8, IMAGES)
    assert release.card["name"] == "small cells int8"
    assert list(release.card["held_out"]) == ["float32", "int8"]
    assert "fused.onnx" not in release.card["files"]
    assert release.card["training"] == source.card["training"]
    assert set(release.card["reference"]) == set(source.card["reference"])
    assert release.card["reference"]["stain_mean"] == source.card["reference"]["stain_mean"]
    assert release.card["reference"]["distance_sq_mean"] != source.card["reference"]["distance_sq_mean"]
    text = (made[0] / "README.md").read_text()
    for words in ("## int8", "the release small cells (card", "6 convolutions in 8 bits", "| float32 | int8 |"):
        assert words in text
    assert ("worse than that release" in text) == bool(quantized["harms"])
    assert "network 1." in _quantization_text(made[1])  # type: ignore[arg-type]


@pytest.mark.slow
def test_familiar_cells_are_flagged_as_rarely_as_before(made: tuple[Path, dict[str, Any]], cells: ImageDataset) -> None:
    release = read_release(made[0])
    assert FAMILIARITY_FILE in release.card["files"]
    test = list(cells.pixels[cells.rows("test")])
    flagged = Predictor(release, device="cpu").predict(test).out_of_distribution
    assert flagged.mean() <= 0.02


@pytest.mark.slow
def test_what_is_made_again_has_the_same_bytes(
    small_release: Path, made: tuple[Path, dict[str, Any]], int8_release: Path, tmp_path: Path
) -> None:
    """Python shuffles its sets from process to process, and ONNX Runtime's quantiser uses some."""
    outs = [int8_release, tmp_path / "1", tmp_path / "2"]  # by the library, and by other processes
    arguments = [small_release, "--data", "cells", "--cases", CELLS, "--images", IMAGES, "--no-shifts"]
    command = [sys.executable, "-c", "from app.cli.main import main; main()", "quantize", *map(str, arguments)]
    for out in outs[1:]:
        environment = os.environ | {"PYTHONHASHSEED": out.name}
        done = subprocess.run([*command, "--despite-gate", "--out", str(out)], env=environment, check=False)
        assert done.returncode == 0
    written = {path.name: path.read_bytes() for path in made[0].iterdir()}
    for out in outs:
        assert {path.name: path.read_bytes() for path in out.iterdir()} == written


@pytest.fixture(scope="module")
def faint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose calibration images have next to no contrast: ranges found on them cut real cells off."""
    folder = tmp_path_factory.mktemp("faint")
    (folder / "images").mkdir()
    drawn = simulate_cells(90, seed=21, size=48)
    truth = np.stack([cell.true_probs for cell in drawn])
    _, labels = AnnotatorPool().read(truth, 3, np.random.default_rng(3))
    rows = ["case_id,annotator,label,patient,partition"]
    codes = [info.code for info in CLASSES]
    for number, cell in enumerate(drawn):
        partition = "calibration" if number < 40 else "test"
        pixels = cell.pixels if partition == "test" else (128 + 0.02 * (cell.pixels - 128.0)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"c{number}.png")
        case = f"c{number},r{{}},{{}},p{number // 2},{partition}"
        rows += [case.format(reader, codes[k]) for reader, k in enumerate(labels[number])]
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    (folder / "classes.csv").write_text("\n".join(["code,name", *(f"{code},{code}" for code in codes)]) + "\n")
    return folder


def test_a_network_that_is_worse_on_held_out_cells_is_refused_and_nothing_is_written(
    small_release: Path, faint: Path, tmp_path: Path
) -> None:
    done = quantize(small_release, tmp_path / "out", "--data", faint, "--ranges", "minmax")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "the int8 network is worse than small cells on 50 held-out cells: L is worse by" in last
    assert "Nothing was written" in last
    assert not (tmp_path / "out").exists()


def test_whoever_wants_it_all_the_same_gets_a_card_that_says_so(
    small_release: Path, faint: Path, tmp_path: Path
) -> None:
    done = quantize(small_release, tmp_path / "out", "--data", faint, "--ranges", "minmax", "--despite-gate")
    assert done.returncode == 0, done.stderr
    assert "warning: written despite the check: L is worse" in done.stderr
    release = read_release(tmp_path / "out")
    assert any("L is worse" in reason for reason in release.card["quantized"]["harms"])
    assert "**It is worse than that release" in (tmp_path / "out" / "README.md").read_text()
    assert release.training is not None
    index, before = release.card["training"], read_release(small_release).card["training"]
    assert index["n_images"] > before["n_images"]  # those that calibrated it


@pytest.mark.slow
def test_images_that_the_release_was_made_with_judge_nothing(small_release: Path) -> None:
    """More cells are split in another way: among those that would judge are some that trained the network."""
    other = load_cells(400, seed=0)
    release = read_release(small_release)
    found = cases_for(release, other)
    assert release.training is not None
    assert found.left_out["test"] > 0
    assert found.left_out["calibration"] > 0
    test = [found.dataset.digests()[row] for row in found.dataset.rows("test")]
    assert set(release.training.uses_of(test, None)) == {""}
    fitted = [found.dataset.digests()[row] for row in found.dataset.rows("calibration")]
    assert "network" not in release.training.uses_of(fitted, None)


def test_a_picture_that_calibrates_under_another_name_judges_nothing(small_release: Path, cells: ImageDataset) -> None:
    """Also where somebody's own table splits a patient, or has a picture twice."""
    before = cases_for(read_release(small_release), cells)
    judge, fit = cells.rows("test")[0], cells.rows("calibration")[0]
    pixels = cells.pixels.copy()
    pixels[judge] = pixels[fit]
    found = cases_for(read_release(small_release), replace(cells, pixels=pixels, pixel_digests=None))
    assert found.left_out["test"] == before.left_out["test"] + 1
    calibrating = {found.dataset.digests()[row] for row in found.calibrating()}
    assert calibrating.isdisjoint(found.dataset.digests()[row] for row in found.dataset.rows("test"))


def test_without_second_labels_harm_to_disagreement_is_said_to_be_unknown_before_the_work(
    small_release: Path, cells: ImageDataset
) -> None:
    cases = cases_for(read_release(small_release), cells)
    require_pairs(cases)
    counts = cases.dataset.label_counts
    single = np.eye(counts.shape[1], dtype=np.int64)[counts.argmax(axis=1)]
    with pytest.raises(ValueError, match="cases 0 have two labels, of 0 patients where two are needed"):
        require_pairs(replace(cases, dataset=replace(cases.dataset, label_counts=single)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("classes", "has the class 'unheard of', which the release does not have"),
        ("size", "has the size 32, the release's network reads 48"),
        ("none left", "has no case in partition 'test' that the release was not made with"),
    ],
)
def test_data_that_do_not_fit_are_refused(small_release: Path, cells: ImageDataset, change: str, words: str) -> None:
    data = {
        "classes": replace(cells, classes=(replace(cells.classes[0], code="unheard of"), *cells.classes[1:])),
        "size": replace(cells, preprocessing=replace(cells.preprocessing, size=32)),
        "none left": replace(cells, partition=np.where(cells.partition == "test", "valid", cells.partition)),
    }[change]
    with pytest.raises(ValueError, match=words):
        cases_for(read_release(small_release), data)


@pytest.mark.slow
def test_a_release_that_cannot_be_quantised_and_a_full_folder_are_refused(
    small_release: Path, tiny_release: Path, made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    calibration, out = read_release(small_release).card["calibration"], tmp_path / "out"
    adapted = rewritten(small_release, tmp_path / "adapted", calibration={**calibration, "adaptation": {}})
    for source, folder, words in (
        (small_release, small_release, "the folder is not empty"),
        (made[0], out, "is quantised already"),
        (adapted, out, "was adapted to other annotators"),
        (rewritten(small_release, tmp_path / "again", recalibration={}), out, "was recalibrated from labels"),
    ):
        refused = quantize(source, folder)
        assert (refused.returncode, words in refused.stderr) == (1, True), refused.stderr
    inputs = [np.zeros((2, 3, 8, 8), dtype=np.float32)]
    with pytest.raises(ValueError, match="has no convolution"):
        quantize_graph(read_release(tiny_release).network, inputs, "minmax")


@pytest.mark.slow
def test_a_release_without_digests_is_made_and_says_that_nothing_is_known(small_release: Path, tmp_path: Path) -> None:
    done = quantize(rewritten(small_release, tmp_path / "plain"), tmp_path / "out", "--despite-gate")
    assert done.returncode == 0, done.stderr
    assert "the training images of the release are unknown" in done.stderr
    assert read_release(tmp_path / "out").training is None


@pytest.mark.slow
def test_an_ensemble_is_quantised_before_its_head(dropout_release: Path, cells: ImageDataset, tmp_path: Path) -> None:
    done = quantize(dropout_release, tmp_path / "out", "--despite-gate")
    assert done.returncode == 0, done.stderr
    source, release = read_release(dropout_release), read_release(tmp_path / "out")
    assert release.head is not None
    assert release.card["mc_dropout"] == source.card["mc_dropout"]
    pictures = list(cells.pixels[cells.rows("test")])
    before, after = (Predictor(one, device="cpu").predict(pictures).distribution for one in (source, release))
    assert np.abs(before.class_probs - after.class_probs).mean() < 0.05


def test_harm_is_a_rise_of_more_than_a_standard_error() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(2, np.full(3, 1 / 3), size=200)
    probs, dpe = rng.dirichlet(np.ones(3), size=200), rng.uniform(size=200)
    worse = np.roll(counts / 2, 1, axis=1) * 0.3 + 0.7 * probs
    change = paired_change(counts, (probs, dpe), (worse, dpe))
    assert change.loss.se is not None
    assert change.loss.value > HARM_LIMIT * change.loss.se
    assert describe_regressions(change) == [
        f"L is worse by {change.loss.value:.4f}; {change.loss.se:.4f} (one standard error) is allowed"
    ]
    assert describe_regressions(paired_change(counts, (worse, dpe), (probs, dpe))) == []
    single = np.eye(3, dtype=np.int64)[rng.integers(3, size=200)]
    (unknown,) = describe_regressions(paired_change(single, (probs, dpe), (probs, dpe)))
    assert unknown == "the change of L_φ cannot be estimated: too few labelled patients"


ADAPTED = 60


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, tiny_release: Path) -> Path:
    """Images, and labels by two of five annotators each, who differ about twice as often as the release's."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "images").mkdir()
    cells = simulate_cells(ADAPTED + 3, seed=5, size=32)
    probs = np.sqrt(np.stack([cell.true_probs for cell in cells]))
    people, labels = AnnotatorPool(5).read(probs / probs.sum(axis=1, keepdims=True), 2, np.random.default_rng(1))
    classes, rows = read_release(tiny_release).classes, ["case_id,annotator,label,patient"]
    for number, cell in enumerate(cells):
        Image.fromarray(cell.pixels).save(folder / "images" / f"c{number}.png")
        if number < ADAPTED:  # the others are nobody's
            given = zip(people[number], labels[number], strict=True)
            rows += [f"c{number},r{person},{classes[k]},p{number // 2}" for person, k in given]
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


def adapt(release: Path, lab: Path, out: Path, *further: object, labels: Path | None = None) -> Any:
    options = ("--images", lab / "images", "--labels", labels or lab / "labels.csv", "--out", out, *further)
    return run_here("adapt", release, *options)


def pictures(lab: Path, n: int = ADAPTED) -> list[Image.Image]:
    return [decode_image((lab / "images" / f"c{number}.png").read_bytes()) for number in range(n)]


def digests(lab: Path, n: int) -> list[bytes]:
    return [pixel_digest(picture) for picture in pictures(lab, n)]


def test_the_new_release_says_what_the_library_fits_to_the_same_images(
    tiny_release: Path, lab: Path, tmp_path: Path
) -> None:
    done = adapt(tiny_release, lab, tmp_path / "out", "--json", "--name", "ours")
    assert done.returncode == 0, done.stderr
    report, old, new = json.loads(done.stdout), read_release(tiny_release), read_release(tmp_path / "out")
    logits, features = Predictor(old).outputs(pictures(lab))
    counts = np.zeros((ADAPTED, len(old.classes)), dtype=np.int64)
    for line in (lab / "labels.csv").read_text().splitlines()[1:]:
        case, _, label, _ = line.split(",")
        counts[int(case[1:]), old.classes.index(label)] += 1
    wanted = recalibrate_for_annotators(
        old.calibration, logits, features, counts, [f"p{number // 2}" for number in range(ADAPTED)]
    )
    assert report["adaptation"] == wanted.figures
    said, expected = (made.apply(logits, features) for made in (new.calibration, wanted.calibration))
    np.testing.assert_array_equal(said.disagreement_probs, expected.disagreement_probs)
    assert (new.network_sha256, new.classes) == (old.network_sha256, old.classes)
    assert new.card["name"] == "ours"
    assert new.card["adapted_from"] == {"name": old.card["name"], "card_sha256": old.card_sha256}
    assert new.card["calibration"]["class_mix"] == calibration_mix(expected.class_probs, counts).tolist()
    assert new.card["n_held_out"] == report["adaptation"]["n_cases"] == ADAPTED
    assert report["n_without_labels"] == 3
    assert report["trained_on"] == "unknown"
    assert "3 images have no label" in done.stderr
    assert "are unknown" in done.stderr
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
    index = TrainingIndex.of(digests(lab, 8), ["network"] * 5 + ["calibration"] * 3, None)
    trained = with_training(tiny_release, tmp_path / "trained", index)
    done = adapt(trained, lab, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "8 images are left out because the release was made with them" in done.stderr
    assert f"{ADAPTED - 8} labelled images" in done.stdout
    for word in ("temperature", "slope", "level", "mean φ", "skill_D", "by fits without the image"):
        assert word in done.stdout
    found = read_release(tmp_path / "out").training
    assert found is not None
    uses = found.uses_of(digests(lab, ADAPTED + 3), None).tolist()
    assert uses == ["network"] * 5 + ["calibration"] * (ADAPTED - 5) + [""] * 3
    again = adapt(tmp_path / "out", lab, tmp_path / "again")
    assert (again.returncode, "made with all 60" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("n_lines", "line", "words"),
    [
        (None, "c99,r1,{known},p9\n", "column case_id: no image in"),
        (None, "c1,r9,unheard of,p0\n", "unknown class"),
        (None, "c1,r9,{known},p7\n", "patient"),
        (1, "", "labels.csv: contains no label"),
        (15, "", "needs 20 cases with two labels or more, there are 7"),
    ],
)
def test_labels_that_do_not_fit_or_are_too_few_are_refused_and_nothing_is_written(
    tiny_release: Path, lab: Path, tmp_path: Path, n_lines: int | None, line: str, words: str
) -> None:
    labels, lines = tmp_path / "labels.csv", (lab / "labels.csv").read_text().splitlines(keepends=True)
    labels.write_text("".join(lines[:n_lines]) + line.format(known=read_release(tiny_release).classes[0]))
    done = adapt(tiny_release, lab, tmp_path / "out", labels=labels)
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_no_release_is_written_into_a_full_folder(tiny_release: Path, lab: Path) -> None:
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
    predictor, few = Predictor(release), pictures(lab, 20)
    inputs = release.preprocessing.normalise(np.stack(predictor.pixels(few)))
    names = ["class_probs", "log_concentration", "disagreement_prob"]
    probs, a, phi = onnxruntime.InferenceSession(release.path / "fused.onnx").run(names, {"image": inputs})
    said: Any = predictor.predict(few).distribution
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
    release = read_release(tiny_release)
    said: Any = Predictor(release).predict(pictures(lab)).distribution
    rng = np.random.default_rng(8)
    true = [rng.dirichlet(np.exp(a) * f + 1e-9) for a, f in zip(said.log_concentration, said.class_probs, strict=True)]
    rows = [f"c{n},{who},{rng.choice(release.classes, p=q)}" for n, q in enumerate(true) for who in "ab"]
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["case_id,annotator,label", *rows]) + "\n")
    done = adapt(tiny_release, lab, tmp_path / "out", labels=labels)
    assert done.returncode == 0, done.stderr
    assert "these labels do not show that its disagreement probability suits your annotators better" in done.stdout
