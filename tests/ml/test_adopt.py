"""`adopt`, `calibrate --logits` and `score --logits`: a model made elsewhere becomes a release, or a clear refusal."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import secondread
from ml.calibration.calibration import Calibration
from ml.calibration.calibrators import calibrate
from ml.metrics import evaluate
from ml.release.artifact import read_release
from ml.release.predictor import Predictor
from ml.release.score import decode_file
from ml.tables.reading import read_table
from ml.util.files import file_sha256, read_json
from ml.util.splits import stratified_partitions
from tests.support.command import run_here

SIDE, CELLS, WIDTH, CLASSES = 8, 90, 6, ["blast", "lymph", "mono"]
RNG = np.random.default_rng(3)
PIXELS = RNG.integers(0, 256, (CELLS, SIDE, SIDE, 3), dtype=np.uint8)
HIDDEN = (RNG.normal(size=(3 * SIDE * SIDE, WIDTH)) / 20).astype(np.float32)
SHIFT, LAST = -0.5 * HIDDEN.sum(axis=0), (3 * RNG.normal(size=(WIDTH, len(CLASSES)))).astype(np.float32)
NAMES, PATIENTS = [f"cell-{i:03d}" for i in range(CELLS)], [f"p{i // 2}" for i in range(CELLS)]
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
INPUTS = ((PIXELS / 255 - MEAN) / STD).transpose(0, 3, 1, 2).astype(np.float32)
FEATURES = np.maximum(INPUTS.reshape(CELLS, -1) @ HIDDEN + SHIFT, 0)
LOGITS = FEATURES @ LAST
PROBS = np.exp(LOGITS / 3) / np.exp(LOGITS / 3).sum(axis=1, keepdims=True)
COUNTS = np.stack([RNG.multinomial(2, row) for row in PROBS])
STEPS = ["--mean", ",".join(map(str, MEAN)), "--std", ",".join(map(str, STD))]


def write_network(
    path: Path,
    *,
    dims: tuple[Any, ...] = ("n", 3, SIDE, SIDE),
    before: list[Any] | None = None,
    after: list[Any] | None = None,
    output: str = "y",
    kind: int = TensorProto.FLOAT,
    further: tuple[list[str], list[str]] = ([], []),
    last: np.ndarray[Any, Any] = LAST,
) -> Path:
    """Two linear layers on pixels; nodes may stand before and after, with further inputs and outputs."""
    numpy_kind = helper.tensor_dtype_to_np_dtype(kind)
    tensors = {"HIDDEN": HIDDEN, "SHIFT": SHIFT, "LAST": last}
    nodes = [*(before or []), helper.make_node("Flatten", ["x2" if before else "x"], ["flat"])]
    nodes += [helper.make_node("Gemm", ["flat", "HIDDEN", "SHIFT"], ["g"]), helper.make_node("Relu", ["g"], ["h"])]
    nodes += [helper.make_node("MatMul", ["h", "LAST"], ["y"]), *(after or [])]
    info = helper.make_tensor_value_info
    inputs = [info("x", kind, list(dims)), *(info(name, kind, ["n", 1]) for name in further[0])]
    outputs = [info(output, kind, None), *(info(name, kind, None) for name in further[1])]
    for one in outputs:
        one.type.tensor_type.shape.SetInParent()
        if one.name in {"y", "p", "h", "twin"}:
            one.type.tensor_type.shape.dim.add().dim_param = "n"
            one.type.tensor_type.shape.dim.add().dim_param = one.name
        else:
            for axis in range(3):
                one.type.tensor_type.shape.dim.add().dim_param = f"{one.name}{axis}"
    initial = [numpy_helper.from_array(np.asarray(value, dtype=numpy_kind), key) for key, value in tensors.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, initial)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def write_table(path: Path, columns: dict[str, Any]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*(np.asarray(values).tolist() for values in columns.values()), strict=True))
    return path


def long_labels(counts: np.ndarray[Any, Any] = COUNTS) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {"case_id": [], "annotator": [], "label": [], "patient": []}
    for name, patient, row in zip(NAMES, PATIENTS, counts, strict=True):
        for who, k in zip(("anna", "ben"), np.repeat(np.arange(len(CLASSES)), row), strict=False):
            for column, value in zip(columns, (name, who, CLASSES[k], patient), strict=True):
                columns[column].append(value)
    return columns


def by_class(prefix: str, values: Any) -> dict[str, Any]:
    return {f"{prefix}:{name}": values[:, k] for k, name in enumerate(CLASSES)}


def outputs(**changes: Any) -> dict[str, Any]:
    hidden = {f"feature:{k}": FEATURES[:, k].astype(float) for k in range(WIDTH)}
    return {"case_id": NAMES, **by_class("logit", LOGITS.astype(float)), **hidden, **changes}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with labels, and the same model as a graph and as a table."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "data" / "images").mkdir(parents=True)
    for name, pixels in zip(NAMES, PIXELS, strict=True):
        Image.fromarray(pixels).save(folder / "data" / "images" / f"{name}.png")
    write_table(folder / "data" / "labels.csv", long_labels())
    write_network(folder / "model.onnx")
    write_table(folder / "outputs.csv", outputs())
    return folder


def adopt(source: object, out: Path, lab: Path, *options: object) -> dict[str, Any]:
    given = (
        ("--labels", lab / "data" / "labels.csv") if str(source).endswith("csv") else ("--data", lab / "data", *STEPS)
    )
    done = run_here("adopt", source, *given, "--out", out, *options, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return {**report, "stderr": done.stderr}


@pytest.fixture(scope="module")
def adopted(lab: Path) -> dict[str, Any]:
    return adopt(lab / "model.onnx", lab / "adopted", lab)


def predicted(release: Path, lab: Path) -> Any:
    images = [decode_file(lab / "data" / "images" / f"{name}.png") for name in NAMES]
    return Predictor(read_release(release), device="cpu").predict(images)


def test_a_release_predicts_what_the_calibration_makes_of_the_sources_logits(
    lab: Path, adopted: dict[str, Any]
) -> None:
    session = onnxruntime.InferenceSession(lab / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(["y"], {"x": INPUTS})
    np.testing.assert_allclose(logits, LOGITS, atol=1e-4)
    seen, release = predicted(lab / "adopted", lab), read_release(lab / "adopted")
    np.testing.assert_allclose(seen.logits, logits, atol=1e-5)
    part = stratified_partitions(PATIENTS, COUNTS, {"calibration": 0.5, "test": 0.5}, 0)
    fit, test = part == "calibration", part == "test"
    assert (adopted["n_calibration"], adopted["n_held_out"]) == (fit.sum(), test.sum())
    groups = [patient for patient, inside in zip(PATIENTS, fit, strict=True) if inside]
    by_hand = calibrate(seen.logits[fit], seen.features[fit], COUNTS[fit], groups).calibration
    assert release.calibration == by_hand
    law = by_hand.apply(seen.logits, seen.features)
    for name in ("class_probs", "log_concentration", "disagreement_probs"):
        np.testing.assert_array_equal(getattr(seen.distribution, name), getattr(law, name))
    metrics = evaluate(
        COUNTS[test], law.class_probs[test], law.disagreement_probs[test], cluster=np.array(PATIENTS)[test]
    )
    on_card = release.card["held_out"]["with concentration head"]
    for name in ("L", "EL", "L_D", "skill"):
        assert on_card[name]["value"] == pytest.approx(metrics.metrics[name].value, abs=1e-12)
    assert adopted["parity"]["n"] == 64
    assert adopted["parity"]["max_probability_difference"] < 1e-6
    assert decode_file(Path(adopted["picture"])).size == (3 * 160, 160)


def test_the_card_states_what_was_computed_here_and_claims_no_training(lab: Path, adopted: dict[str, Any]) -> None:
    release = read_release(lab / "adopted")
    text = (lab / "adopted" / "README.md").read_text()
    assert "made elsewhere: its training is not checked" in text
    assert adopted["adopted"]["data_sha256"] in text
    assert release.card["adopted"]["source_sha256"] == file_sha256(lab / "model.onnx")
    assert release.card["adopted"]["features"] == "h"
    assert "split by patient" in text
    assert release.training is not None
    assert release.detector is not None
    digests = secondread.adopt(outputs(), lab / "memory", labels=long_labels())["adopted"]
    again = secondread.adopt(outputs(), lab / "memory2", labels=long_labels(COUNTS[:, ::-1]))["adopted"]
    assert digests["data_sha256"] != again["data_sha256"]


def test_equal_inputs_give_equal_bytes_and_the_order_of_rows_does_not_matter(
    lab: Path, adopted: dict[str, Any], tmp_path: Path
) -> None:
    assert adopt(lab / "model.onnx", tmp_path / "again", lab)["card_sha256"] == adopted["card_sha256"]
    order, labels = np.roll(np.arange(CELLS), 7), long_labels()
    mixed = {name: np.asarray(values)[order] for name, values in outputs().items()}
    backwards = {name: values[::-1] for name, values in labels.items()}
    one = secondread.adopt(outputs(), tmp_path / "one", labels=labels)
    two = secondread.adopt(mixed, tmp_path / "two", labels=backwards)
    assert one["held_out"] == two["held_out"]
    assert (tmp_path / "one/calibration.json").read_bytes() == (tmp_path / "two/calibration.json").read_bytes()


def test_a_table_of_the_networks_outputs_gives_the_same_predictions(
    lab: Path, adopted: dict[str, Any], tmp_path: Path
) -> None:
    seen = predicted(lab / "adopted", lab)
    hidden = {f"feature:{k}": seen.features[:, k].astype(float) for k in range(WIDTH)}
    table = {"case_id": NAMES, **by_class("logit", seen.logits.astype(float))}
    source = write_table(tmp_path / "outputs.csv", table)
    features = write_table(
        tmp_path / "features.csv", {"case_id": NAMES[::-1], **{k: v[::-1] for k, v in hidden.items()}}
    )
    adopt(source, tmp_path / "table", lab, "--features", features)
    assert read_release(tmp_path / "table").calibration == read_release(lab / "adopted").calibration
    for release in (tmp_path / "table", lab / "adopted"):
        scored = tmp_path / f"{release.name}.parquet"
        done = run_here("score", release, "--logits", source, "--features", features, "--out", scored)
        assert done.returncode == 0, done.stderr
        rows = secondread.tables.read_predictions(scored)
        assert rows.case_ids == NAMES
        np.testing.assert_array_equal(rows.class_probs, seen.distribution.class_probs)
        np.testing.assert_array_equal(rows.disagreement_probs, seen.distribution.disagreement_probs)
        np.testing.assert_array_equal(
            read_table(scored)["log_concentration"].to_numpy(), seen.distribution.log_concentration
        )
    done = run_here(
        *("calibrate", "--logits", source, "--labels", lab / "data" / "labels.csv", "--features", features),
        *("--out", tmp_path / "calibration.json"),
    )
    assert (done.returncode, "held-out cases" in done.stdout) == (0, True), done.stderr
    assert Calibration.from_dict(read_json(tmp_path / "calibration.json")) == read_release(lab / "adopted").calibration


@pytest.mark.parametrize("form", ["softmax", "channels last", "double", "tapped", "one output is called logits"])
def test_other_forms_of_the_same_network_give_the_same_release(
    form: str, lab: Path, adopted: dict[str, Any], tmp_path: Path
) -> None:
    path, node = tmp_path / "model.onnx", helper.make_node
    options: list[object] = []
    if form == "softmax":
        write_network(path, after=[node("Softmax", ["y"], ["p"], axis=1)], output="p")
    elif form == "channels last":
        write_network(path, dims=LAST_AXIS, before=TURNED)
    elif form == "double":
        write_network(path, kind=TensorProto.DOUBLE)
    elif form == "tapped":
        axes = node("Constant", [], ["axes"], value=numpy_helper.from_array(np.array([2, 3])))
        write_network(path, after=[axes, node("Unsqueeze", ["h", "axes"], ["pooled"])])
        options = ["--features", "pooled"]
    else:
        write_network(path, further=([], ["h"]))
        model = onnx.load(path)
        model.graph.node[-1].output[0] = model.graph.output[0].name = "logits"
        onnx.save(model, path)
    report = adopt(path, tmp_path / "release", lab, *options)
    assert report["adopted"]["output"] == ("probabilities" if form == "softmax" else "logits")
    one, other = predicted(tmp_path / "release", lab).distribution, predicted(lab / "adopted", lab).distribution
    np.testing.assert_allclose(one.class_probs, other.class_probs, atol=2e-4)
    np.testing.assert_allclose(one.disagreement_probs, other.disagreement_probs, atol=2e-4)


def test_probabilities_are_calibrated_by_their_logarithms(lab: Path, tmp_path: Path) -> None:
    raw = np.exp(LOGITS.astype(float))
    raw /= raw.sum(axis=1, keepdims=True)
    probs = {"case_id": NAMES, **by_class("prob", raw)}
    logs = {"case_id": NAMES, **by_class("logit", np.log(np.clip(raw, 1e-12, 1)))}
    one, other = (
        secondread.adopt(table, tmp_path / str(k), labels=long_labels()) for k, table in enumerate((probs, logs))
    )
    assert (one["held_out"], one["adopted"]["output"]) == (other["held_out"], "probabilities")
    assert "logarithms are calibrated" in (tmp_path / "0" / "README.md").read_text()


def test_a_partition_of_the_labels_is_kept_and_training_cells_are_left_out(tmp_path: Path) -> None:
    names = np.array(["train"] * 20 + ["valid", "calibration"] * 20 + ["test"] * 30)
    wide = {"case_id": NAMES, **by_class("count", COUNTS), "partition": names}
    report = secondread.adopt(outputs(), tmp_path / "release", labels=wide)
    assert (report["n_calibration"], report["n_held_out"], report["adopted"]["n_left_out"]) == (40, 30, 20)
    again = secondread.adopt(outputs(), tmp_path / "again", labels=wide, held_out=0.5)
    assert (again["n_calibration"], again["n_held_out"], again["adopted"]["n_left_out"]) == (35, 35, 20)
    few = secondread.adopt(outputs(), tmp_path / "few", labels=wide | {"partition": ["valid"] * 20 + ["test"] * 70})
    assert "only 20 cells calibrate" in few["warnings"][-1]
    torn = wide | {"patient": ["p"] * CELLS}
    with pytest.raises(
        ValueError, match=r"LABELS: cells of 'p' are in the partition 'test' and outside it.*--held-out"
    ):
        secondread.adopt(outputs(), tmp_path / "torn", labels=torn)


def test_one_label_a_cell_calibrates_class_probabilities_alone(tmp_path: Path) -> None:
    wide = {"case_id": NAMES, **by_class("count", np.eye(3, dtype=int)[COUNTS.argmax(axis=1)])}
    report = secondread.adopt(outputs(), tmp_path / "release", labels=wide, alpha=False, method="vector")
    assert set(report["held_out"]) == {"raw", "vector"}
    assert read_release(tmp_path / "release").card["disagreement_calibrated"] is False


def test_classes_in_another_order_than_the_outputs_are_noticed(lab: Path, tmp_path: Path) -> None:
    report = adopt(lab / "model.onnx", tmp_path / "release", lab, "--classes", "mono,blast,lymph")
    assert "if mono is blast, blast is lymph, lymph is mono" in report["stderr"]
    assert not adopt(lab / "model.onnx", tmp_path / "right", lab, "--classes", "blast,lymph,mono")["warnings"]


def test_two_exchanged_classes_are_noticed_and_outputs_of_chance_are_not(tmp_path: Path) -> None:
    swapped = outputs() | {"logit:blast": outputs()["logit:mono"], "logit:mono": outputs()["logit:blast"]}
    report = secondread.adopt(swapped, tmp_path / "swapped", labels=long_labels())
    assert "if blast is mono, mono is blast" in " ".join(report["warnings"])
    source, labels = write_table(tmp_path / "swapped.csv", swapped), write_table(tmp_path / "l.csv", long_labels())
    command = ("calibrate", "--logits", source, "--labels", labels, "--json")
    done = run_here(*command, "--out", tmp_path / "calibration.json")
    assert json.loads(done.stdout)["warnings"] == report["warnings"]
    assert f"warning: {report['warnings'][0]}" in done.stderr
    rng, many = np.random.default_rng(5), [f"k{number}" for number in range(200)]
    chance = {"case_id": NAMES, **{f"logit:{name}": rng.normal(size=CELLS) for name in many}}
    counts = {"case_id": NAMES, **{f"count:{name}": np.zeros(CELLS, dtype=int) for name in many}}
    for cell, answers in enumerate(rng.choice(many, (CELLS, 2))):
        for name in answers:
            counts[f"count:{name}"][cell] += 1
    assert not secondread.adopt(chance, tmp_path / "chance", labels=counts)["warnings"]


def test_features_of_another_table_are_on_the_card_by_their_digest(lab: Path, tmp_path: Path) -> None:
    seen = np.random.default_rng(0).normal(size=(2, CELLS))
    for number, values in enumerate(seen):
        table = write_table(tmp_path / f"f{number}.csv", {"case_id": NAMES, "feature:size": values})
        report = adopt(lab / "outputs.csv", tmp_path / str(number), lab, "--features", table)
        assert report["adopted"]["features"] == f"f{number}.csv (SHA-256 {file_sha256(table)})"


def test_images_with_a_table_of_labels_give_the_same_release(
    lab: Path, adopted: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "steps.json").write_text(json.dumps({"size": SIDE, "channels": 3, "mean": MEAN, "std": STD}))
    images = ("--labels", lab / "data" / "labels.csv", "--images", lab / "data" / "images")
    done = run_here(
        *("adopt", lab / "model.onnx", *images, "--preprocessing", tmp_path / "steps.json"),
        *("--out", tmp_path / "release"),
    )
    assert done.returncode == 0, done.stderr
    assert "three images as the network sees them" in done.stdout
    assert read_release(tmp_path / "release").calibration == read_release(lab / "adopted").calibration


def test_a_release_of_a_table_refuses_images_and_says_what_to_do(lab: Path, tmp_path: Path) -> None:
    release, image = tmp_path / "release", lab / "data" / "images" / "cell-000.png"
    adopt(lab / "outputs.csv", release, lab)
    for command in (
        ("predict", release, image),
        ("score", release, "--images", image.parent, "--out", tmp_path / "p.csv"),
        ("adapt", release, "--images", image.parent, "--labels", lab / "data/labels.csv", "--out", tmp_path / "a"),
        ("export", release, "--triton", tmp_path / "triton"),
    ):
        done = run_here(*command)
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (1, 1), done.stderr
        assert "secondread score RELEASE --logits TABLE" in done.stderr
    assert "no network and reads no images" in (release / "README.md").read_text()


MODULE = """
import numpy as np, torch
from collections.abc import Callable
from pathlib import Path
from torch import nn

def make():
    arrays = np.load(Path(__file__).parent / "weights.npz")
    hidden, shift, last = (torch.tensor(arrays[name]) for name in ("hidden", "shift", "last"))
    first, head = nn.Linear(*hidden.shape), nn.Linear(*last.shape, bias=False)
    with torch.no_grad():
        first.weight.copy_(hidden.T), first.bias.copy_(shift), head.weight.copy_(last.T)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Dropout(0.5), head)

def loud():
    print("loading weights")
    return make()

def broken():
    raise RuntimeError("no weights")

def nothing():
    return 3

def twice():
    class Twice(nn.Module):
        def forward(self, image):
            return image, image
    return Twice()

def pooled():
    class Pooled(nn.Module):
        def forward(self, image):
            return image.mean(dim=(2, 3))
    return Pooled()
"""


@pytest.fixture(scope="module")
def module(lab: Path) -> Path:
    (lab / "net.py").write_text(MODULE)
    np.savez(lab / "weights.npz", hidden=HIDDEN, shift=SHIFT, last=LAST)
    return lab / "net.py"


@pytest.mark.slow
@pytest.mark.ci
def test_a_torch_module_gives_the_release_of_its_onnx_file(
    lab: Path, module: Path, adopted: dict[str, Any], tmp_path: Path
) -> None:
    report = adopt(f"{module}:make", tmp_path / "release", lab, "--size", SIDE)
    assert (report["adopted"]["kind"], report["adopted"]["features"]) == ("module", "input of 4")
    assert report["parity"]["max_probability_difference"] < 1e-5
    one, other = predicted(tmp_path / "release", lab), predicted(lab / "adopted", lab)
    np.testing.assert_allclose(one.features, other.features, atol=1e-4)
    np.testing.assert_allclose(one.distribution.class_probs, other.distribution.class_probs, atol=1e-3)
    (tmp_path / "in.py:1").symlink_to(lab)
    layer = adopt(tmp_path / "in.py:1/net.py:loud", tmp_path / "layer", lab, "--size", SIDE, "--features", "1")
    assert read_release(tmp_path / "layer").card["name"] == "net"
    assert layer["adopted"]["features"] == "1"
    assert (predicted(tmp_path / "layer", lab).features < 0).any()  # before the ReLU


@pytest.mark.slow
@pytest.mark.ci
def test_tables_and_graphs_are_adopted_without_torch(lab: Path, tmp_path: Path) -> None:
    code = """
import sys
from app.cli.main import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    for source, given in (("model.onnx", ["--data", "data"]), ("outputs.csv", ["--labels", "data/labels.csv"])):
        command = [sys.executable, "-c", code, "adopt", source, *given, "--out", str(tmp_path / source)]
        done = subprocess.run(command, cwd=lab, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def _labels(path: Path, **changes: Any) -> Path:
    return write_table(path, {"case_id": NAMES, **by_class("count", COUNTS), "patient": PATIENTS, **changes})


def _onnx(path: Path, *options: object, **form: Any) -> tuple[object, ...]:
    return write_network(path / "net.onnx", **form), "--data", "DATA", *options


def _table(path: Path, *options: object, **changes: Any) -> tuple[object, ...]:
    return write_table(path / "outputs.csv", outputs(**changes)), "--labels", "LABELS", *options


def _images(path: Path, *options: object, **changes: Any) -> tuple[object, ...]:
    given = {"--labels": _labels(path / "labels.csv", **changes), "--images": "DATA/images"}
    return write_network(path / "net.onnx"), *(part for pair in given.items() for part in pair), *options


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _filled(path: Path) -> Path:
    (path / "out" / "mine").mkdir(parents=True)
    return path


def _without_image(path: Path) -> tuple[object, ...]:
    names = ["nowhere", *NAMES[1:]]
    return _images(path, case_id=names)


def _broken_image(path: Path) -> tuple[object, ...]:
    (path / "images").mkdir()
    _written(path / "images" / "cell-000.png", "no picture")
    labels = write_table(path / "labels.csv", {"case_id": ["cell-000"], **by_class("count", COUNTS[:1])})
    return write_network(path / "net.onnx"), "--labels", labels, "--images", path / "images"


ONE = np.eye(len(CLASSES), dtype=int)[COUNTS.argmax(axis=1)]
NAN, LARGE = LOGITS.astype(float), np.full(LAST.shape, np.inf, dtype=np.float32)
NAN[4, 1] = np.nan
LAST_AXIS, TURNED = ("n", SIDE, SIDE, 3), [helper.make_node("Transpose", ["x"], ["x2"], perm=[0, 3, 1, 2])]
THIRD = [helper.make_node("Unsqueeze", ["y", "axes"], ["z"])]
THIRD.insert(0, helper.make_node("Constant", [], ["axes"], value=numpy_helper.from_array(np.array([2]))))
FIXED = [helper.make_node("Constant", [], ["size"], value=numpy_helper.from_array(np.array([1, 3])))]
FIXED.append(helper.make_node("Reshape", ["y", "size"], ["p"]))
#: What is given, the exit status, and what the line on stderr names.
BAD: dict[str, tuple[Callable[[Path], tuple[object, ...]], int, tuple[str, ...]]] = {
    "no ONNX": (lambda p: (_written(p / "net.onnx", "text"), "--data", "DATA"), 1, ("net.onnx", "ONNX")),
    "missing ONNX": (lambda p: (p / "net.onnx", "--data", "DATA"), 1, ("net.onnx", "no such file")),
    "another kind of file": (lambda p: (p / "net.h5", "--data", "DATA"), 1, ("net.h5", ".onnx", "model.py:network")),
    "several inputs": (lambda p: _onnx(p, further=(["age"], [])), 1, ("one input", "x, age")),
    "no image": (lambda p: _onnx(p, dims=("n", 192)), 1, ("'x'", "image input")),
    "several outputs": (lambda p: _onnx(p, further=([], ["h"])), 1, ("2 outputs", "'logits'")),
    "three axes": (lambda p: _onnx(p, after=THIRD, output="z"), 1, ("shape (64, 3, 1)", "(N, K)")),
    "a batch of one": (lambda p: _onnx(p, after=FIXED, output="p"), 1, ("64 images", "dynamic batch")),
    "two channels": (lambda p: _onnx(p, dims=("n", 2, 8, 8)), 1, ("2 channels", "RGB")),
    "no square": (lambda p: _onnx(p, dims=("n", 3, 8, 9)), 1, ("8 x 9", "squares")),
    "wrong size": (lambda p: _onnx(p, "--size", 9), 1, ("8", "9", "--size")),
    "wrong size of an open input": (lambda p: _onnx(p, "--size", 9, dims=("n", 3, "h", "w")), 1, ("net.onnx", "9")),
    "no size": (lambda p: _onnx(p, dims=("n", 3, "h", "w")), 1, ("net.onnx", "--size")),
    "wrong colour": (lambda p: _onnx(p, "--colour", "grey"), 1, ("3 channels", "--colour")),
    "whole numbers": (lambda p: _onnx(p, kind=TensorProto.INT32), 1, ("net.onnx", "TABLE")),
    "one output": (lambda p: _onnx(p, last=LAST[:, :1]), 1, ("one output", "sigmoid", "prob:<class>")),
    "unknown tensor": (lambda p: _onnx(p, "--features", "nose"), 1, ("'nose'", "--features", "h, y")),
    "features of an image": (
        lambda p: _onnx(p, "--features", "x2", dims=LAST_AXIS, before=TURNED), 1, ("'x2'", "(64, 3, 8, 8)")
    ),
    "infinite outputs": (lambda p: _onnx(p, last=LARGE), 1, ("net.onnx", "not finite")),
    "no probabilities": (lambda p: _onnx(p, "--output", "probabilities"), 1, ("net.onnx", "sum to 1")),
    "fewer classes": (lambda p: _onnx(p, "--classes", "blast,lymph,mono,neutro"), 1, ("3 outputs for 4", "--classes")),
    "unknown classes": (lambda p: _onnx(p, "--classes", "blast,lymph,baso"), 1, ("data", "'mono'", "--classes")),
    "one class twice": (lambda p: _onnx(p, "--classes", "blast,blast,mono"), 1, ("different", "blast, blast")),
    "no labels": (lambda p: (write_network(p / "net.onnx"),), 1, ("data", "labels and images")),
    "no folder": (lambda p: (write_network(p / "net.onnx"), "--data", p / "none"), 1, ("none", "no such folder")),
    "missing image": (_without_image, 1, ("labels.csv", "'nowhere'", "images")),
    "broken image": (_broken_image, 1, ("cell-000.png",)),
    "no such images": (lambda p: (*_images(p)[:-1], p / "none"), 1, ("none", "no such file")),
    "unknown patient column": (lambda p: _images(p, "--cluster", "mouse"), 1, ("labels.csv", "'mouse'")),
    "no number": (lambda p: _onnx(p, "--mean", "a,b,c"), 2, ("--mean",)),
    "two means": (lambda p: _onnx(p, "--mean", "0.1,0.2"), 1, ("net.onnx", "mean")),
    "a std of zero": (lambda p: _onnx(p, "--std", "0"), 1, ("net.onnx", "positive")),
    "unknown step": (
        lambda p: _onnx(p, "--preprocessing", _written(p / "s.json", '{"zoom": 2}')), 1, ("'zoom'", "size")
    ),
    "broken steps": (lambda p: _onnx(p, "--preprocessing", _written(p / "s.json", "{")), 1, ("s.json", "JSON")),
    "all held out": (lambda p: _table(p, "--held-out", "1"), 1, ("held-out", "1.0")),
    "unknown method": (lambda p: _table(p, "--method", "magic"), 2, ("magic",)),
    "a table with images": (lambda p: _table(p, "--images", "DATA/images"), 1, ("table", "images")),
    "another output": (lambda p: _table(p, "--output", "probabilities"), 1, ("outputs.csv", "logits")),
    "NaN": (lambda p: _table(p, **by_class("logit", NAN)), 1, ("outputs.csv", "row 6", "logit:lymph")),
    "probabilities as logits": (lambda p: _table(p, **by_class("logit", PROBS)), 1, ("outputs.csv", "prob:<class>")),
    "duplicated case": (lambda p: _table(p, case_id=[NAMES[1], *NAMES[1:]]), 1, ("outputs.csv", "cell-001")),
    "label without outputs": (lambda p: _table(p, case_id=["x", *NAMES[1:]]), 1, ("labels.csv", "cell-000")),
    "unknown class": (
        lambda p: (*_table(p)[:2], _labels(p / "l.csv", **{"count:baso": COUNTS[:, 0]})), 1, ("l.csv", "count:baso")
    ),
    "no second label": (
        lambda p: (*_table(p)[:2], _labels(p / "l.csv", **by_class("count", ONE))), 1, ("l.csv", "--no-alpha")
    ),
    "no label": (
        lambda p: (*_table(p)[:2], _labels(p / "l.csv", **by_class("count", 0 * COUNTS))), 1, ("l.csv", "label")
    ),
    "one patient": (lambda p: (*_table(p)[:2], _labels(p / "l.csv", patient=["p"] * CELLS)), 1, ("l.csv", "patient")),
    "no features there": (lambda p: _table(p, "--features", _labels(p / "f.csv")), 1, ("f.csv", "feature:<name>")),
    "a full folder": (lambda p: _table(_filled(p)), 1, ("out", "choose another --out")),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_adopted_is_one_line_that_names_it_and_leaves_nothing(
    case: str, lab: Path, tmp_path: Path
) -> None:
    make, status, words = BAD[case]
    replaced = {"DATA": lab / "data", "LABELS": lab / "data" / "labels.csv", "DATA/images": lab / "data" / "images"}
    command = [replaced.get(part, part) if isinstance(part, str) else part for part in make(tmp_path)]
    before = sorted(tmp_path.rglob("*"))
    done = run_here("adopt", *command, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    if status == 1:
        assert done.stderr.startswith("secondread: ")
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert [word for word in words if word not in done.stderr] == [], done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.ci
def test_a_factory_that_cannot_be_adopted_is_one_line_that_names_it(lab: Path, module: Path, tmp_path: Path) -> None:
    for source, words in {
        f"{tmp_path}/none.py:make": ("none.py", "no such file"),
        f"{module}:missing": ("'missing'", "net.py:FUNCTION"),
        f"{module}:broken": ("net.py:broken", "RuntimeError: no weights"),
        f"{module}:nothing": ("must return a torch.nn.Module", "int"),
        f"{module}:twice": ("one tensor (N, K)", "tuple"),
        f"{module}:pooled": ("no linear layer", "--features"),
        f"{module}:make --size 9": ("(3, 9, 9)",),
        f"{module}:make --features 17": ("'17'", "0, 1, 2, 3, 4"),
        f"{_written(tmp_path / 'wrong.py', 'def make(:')}:make": ("wrong.py", "SyntaxError"),
    }.items():
        size = () if "--size" in source else ("--size", SIDE)
        done = run_here("adopt", *source.split(), *size, "--data", lab / "data", "--out", tmp_path / "out")
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (1, 1), done.stderr
        assert [word for word in words if word not in done.stderr] == [], done.stderr
        assert not (tmp_path / "out").exists()


def test_calibrate_and_score_of_tables_refuse_what_does_not_fit(lab: Path, adopted: dict[str, Any]) -> None:
    labels, release, out = lab / "data" / "labels.csv", lab / "adopted", lab / "refused"
    source = write_table(lab / "plain.csv", {"case_id": NAMES, **by_class("logit", LOGITS)})
    other = write_table(lab / "other.csv", {"case_id": NAMES, "logit:blast": NAMES, "logit:b": LOGITS[:, 0]})
    calibrated = ("calibrate", "--logits", source)
    for command, status, words in (
        (("calibrate",), 2, "--logits"),
        (("calibrate", "run", "--logits", source), 2, "run folder"),
        (calibrated, 2, "--labels"),
        ((*calibrated, "--labels", labels, "--out", out), 1, ".json"),
        ((*calibrated, "--labels", lab / "none.csv", "--out", f"{out}.json"), 1, "none.csv: no such file"),
        (("score", release, "--out", f"{out}.csv"), 2, "--images"),
        (("score", release, "--logits", source, "--images", lab, "--out", f"{out}.csv"), 2, "--images"),
        (("score", release, "--logits", source, "--shard", "1/2", "--out", f"{out}.csv"), 2, "--shard"),
        (("score", release, "--logits", source, "--out", f"{out}.csv"), 1, "feature:0"),
        (("score", release, "--logits", source, "--out", f"{out}.txt"), 1, ".parquet"),
        (("score", release, "--logits", other, "--out", f"{out}.csv"), 1, "blast, lymph, mono are expected"),
    ):
        done = run_here(*command)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert words in done.stderr
        assert not list(lab.glob("refused*"))
