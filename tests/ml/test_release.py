"""A release: where its network runs, what Triton serves, what it was trained on, and that nothing is sent."""

import csv
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ml.datasets.cells import load_cells, simulate_cells
from ml.images.preprocess import decode_image, pixel_digest
from ml.release.artifact import ReleaseError, read_release
from ml.release.device import (
    SIZES,
    DeviceError,
    PaddedRuns,
    cuda_fault,
    fallen_back,
    open_session,
    runs_on_cuda,
    worth_taking,
)
from ml.release.predictor import Predictor
from ml.release.training_index import INDEX_FILE, TrainingIndex, as_digests, parse_patient_hmac
from ml.release.triton import MAX_BATCH, network_name
from ml.scoring.shards import ShardError, join_job, read_job, score_shard
from ml.scoring.table import score_images
from ml.tables import evaluate as evaluate_tables
from ml.tables.matching import EvaluationOptions, match_tables
from ml.tables.reading import TableError, write_table
from ml.tables.streaming import evaluate_stream
from ml.util.files import file_sha256, read_json, write_json
from tests.support.command import run_here
from tests.support.images import encode, exif_rotated, photo
from tests.support.shards import manifest
from tests.support.tiny_release import with_training

Images = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def inputs() -> Images:
    return np.random.default_rng(0).normal(size=(2 * SIZES[-1] + 5, 3, 48, 48)).astype(np.float32)


@pytest.fixture
def no_cuda() -> None:
    if cuda_fault() is None:
        pytest.skip("CUDA can be used on this machine")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "images" / "cell.png"
    path.parent.mkdir()
    Image.fromarray(np.full((48, 48, 3), 128, dtype=np.uint8)).save(path)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("no_cuda")
def test_cuda_that_cannot_be_used_is_an_error_and_auto_takes_the_cpu(small_release: Path) -> None:
    release = read_release(small_release)
    with pytest.raises(DeviceError, match=r"^device cuda cannot be used: .*(install|GPU)"):
        Predictor(release, device="cuda")
    assert not Predictor(release, device="auto").on_gpu
    assert not runs_on_cuda("auto")
    assert fallen_back("cpu") is None


def test_the_cpu_is_taken_without_a_look_at_cuda(small_release: Path) -> None:
    cuda_fault.cache_clear()
    session = open_session(str(small_release / "network.onnx"), device="cpu")
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert cuda_fault.cache_info().currsize == 0


@pytest.mark.usefixtures("no_cuda")
def test_commands_refuse_cuda_in_one_line_and_write_nothing(
    small_release: Path, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = ("score", small_release, "--images", image.parent, "--out")
    commands = [
        ("predict", small_release, image, "--device", "cuda"),
        (*scoring, tmp_path / "p.csv", "--device", "cuda"),
        (*scoring, tmp_path / "job", "--shard", "1/2", "--device", "cuda"),
        (*scoring, tmp_path / "job", "--engine", "local", "--device", "cuda"),
    ]
    for command in commands:
        done = run_here(*command)
        assert (done.returncode, done.stdout) == (1, ""), command
        assert done.stderr.startswith("secondread: device cuda cannot be used: ")
        assert done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"images"}
    monkeypatch.setenv("SECONDREAD_DEVICE", "cuda")
    assert run_here("predict", small_release, image).returncode == 1
    assert run_here("predict", small_release, image, "--device", "cpu").returncode == 0


@pytest.mark.parametrize("count", [1, 2, 8, 9, 33, 64, 65, 133])
def test_padded_batches_say_what_the_network_says(small_release: Path, inputs: Images, count: int) -> None:
    session = open_session(str(small_release / "network.onnx"), 1, device="cpu")
    expected = session.run(["logits", "features"], {"image": inputs[:count]})
    found = PaddedRuns(session, "cpu")(inputs[:count])
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_a_run_of_many_is_not_filled_up_for_nothing() -> None:
    for waiting in range(1, SIZES[-1] + 1):
        taken = worth_taking(waiting)
        assert 1 <= taken <= waiting
        assert taken == waiting or taken in SIZES
        assert waiting < 2 * taken  # more than a half, so that nobody waits for many runs
    assert [worth_taking(n) for n in (1, 7, 8, 15, 16, 47, 64)] == [1, 7, 8, 8, 16, 32, 64]


def test_what_lay_in_the_buffers_before_changes_no_bit(small_release: Path, inputs: Images) -> None:
    session = open_session(str(small_release / "network.onnx"), 1, device="cpu")
    fresh, used = PaddedRuns(session, "cpu"), PaddedRuns(session, "cpu")
    for count in (8, 32, 64):
        used(1000 * inputs[:count])
    for count in (1, 3, 31, 40, 100):
        first, again = fresh(inputs[:count]), used(inputs[:count])
        kept = [array.copy() for array in first]
        fresh(inputs[count : 2 * count])  # what was handed out stays as it was
        for one, other, copy in zip(first, again, kept, strict=True):
            np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(one, copy)


def test_no_image_and_several_threads(small_release: Path, inputs: Images) -> None:
    runs = PaddedRuns(open_session(str(small_release / "network.onnx"), 1, device="cpu"), "cpu")
    assert [array.shape for array in runs(inputs[:0])] == [(0, 8), (0, 128)]
    expected = [runs(inputs[n : n + 5])[0] for n in range(8)]
    found: dict[int, Images] = {}

    def ask(n: int) -> None:
        for _ in range(5):
            found[n] = runs(inputs[n : n + 5])[0]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(8):
        np.testing.assert_array_equal(found[n], expected[n])


def test_a_job_of_another_device_is_refused(tiny_release: Path, tmp_path: Path) -> None:
    listed, folder = manifest(tmp_path, 3, "a.csv"), tmp_path / "job"
    score_shard(tiny_release, listed, tmp_path / "cpu", (1, 1), device="cpu")
    join_job(folder, {**read_job(tmp_path / "cpu").document, "device": "cuda"})
    with pytest.raises(ShardError, match=r"shards of another device \(device cuda, here cpu\)"):
        score_shard(tiny_release, listed, folder, (1, 1), device="cpu")


@pytest.mark.gpu
def test_a_gpu_says_what_the_cpu_says(small_release: Path) -> None:
    release = read_release(small_release)
    cells = [Image.fromarray(pixels) for pixels in load_cells(240, seed=5).pixels[:133]]
    cpu, gpu = (Predictor(release, device=device) for device in ("cpu", "cuda"))
    assert gpu.on_gpu
    for count in (1, 5, 64, 133):
        expected, found = cpu.predict(cells[:count]), gpu.predict(cells[:count])
        largest = np.abs(expected.logits).max()
        np.testing.assert_allclose(found.logits, expected.logits, rtol=0, atol=1e-4 * largest)
        probs = [prediction.distribution.class_probs for prediction in (found, expected)]
        np.testing.assert_allclose(probs[0], probs[1], rtol=0, atol=1e-5)
    alone = np.concatenate([gpu.predict([cell]).distribution.class_probs for cell in cells[:5]])
    np.testing.assert_allclose(alone, gpu.predict(cells).distribution.class_probs[:5], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def definition() -> ModuleType:
    """Triton's own model_config.proto, compiled; the package beside it needs gRPC, the file does not."""
    path = Path(tritonclient.__path__[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_repository_serves_the_network_of_a_release_unchanged(
    small_release: Path, tmp_path: Path, definition: ModuleType
) -> None:
    release, repository = read_release(small_release), tmp_path / "models"
    done = run_here("export", small_release, "--triton", repository, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == {"model": network_name(release.network_sha256), "network_sha256": release.network_sha256}
    model = repository / told["model"]
    files = sorted(path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file())
    assert files == ["1/model.onnx", "config.pbtxt"]
    assert (model / "1" / "model.onnx").read_bytes() == release.network.read_bytes()
    assert file_sha256(model / "1" / "model.onnx") == release.network_sha256
    config = text_format.Parse((model / "config.pbtxt").read_text(), definition.ModelConfig())
    session = Predictor(release, 1, device="cpu")
    side = release.preprocessing.size
    kinds = definition.DataType
    assert (config.name, config.backend, config.max_batch_size) == (model.name, "onnxruntime", MAX_BATCH)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("image", kinds.TYPE_FP32, [3, side, side])]
    assert [(o.name, o.data_type, list(o.dims)) for o in config.output] == [
        ("logits", kinds.TYPE_FP32, [len(release.classes)]),
        ("features", kinds.TYPE_FP32, [session.n_features]),
    ]
    assert config.HasField("dynamic_batching")
    assert [group.kind for group in config.instance_group] == [definition.ModelInstanceGroup.KIND_AUTO]
    assert config.parameters["network_sha256"].string_value == release.network_sha256


def test_a_model_that_is_there_is_left_alone(small_release: Path, tmp_path: Path) -> None:
    assert run_here("export", small_release, "--triton", tmp_path).returncode == 0
    again = run_here("export", small_release, "--triton", tmp_path)
    assert again.returncode == 1
    assert "is there already" in again.stderr
    assert run_here("export", small_release).returncode == 2
    assert run_here("export", tmp_path, "--triton", tmp_path / "other").returncode == 1


def digest_of(data: bytes) -> bytes:
    return pixel_digest(decode_image(data))


@pytest.mark.parametrize(
    "picture",
    [
        encode(photo(1)),
        encode(photo(2), "JPEG", quality=80),
        encode(photo(3)[..., 0]),
        exif_rotated(),
        encode(Image.fromarray(photo(4)[:40])),
    ],
    ids=["PNG", "JPEG", "grey", "turned by EXIF", "not square"],
)
def test_another_lossless_container_hides_nothing(picture: bytes) -> None:
    pixels = np.asarray(decode_image(picture))
    again = [
        encode(pixels),
        encode(pixels, compress_level=0),
        encode(pixels, "TIFF"),
        encode(pixels, "PNG", dpi=(72, 72)),
    ]
    again += [encode(pixels, "TIFF", compression=name) for name in ("tiff_lzw", "tiff_deflate", "packbits")]
    again += [encode(Image.fromarray(pixels).convert(mode)) for mode in ("RGB", "RGBA")]
    assert len(set(again)) > 5
    assert {digest_of(data) for data in again} == {digest_of(picture)}


def test_one_pixel_or_another_shape_is_another_picture() -> None:
    pixels = photo(0, 12)
    other = pixels.copy()
    other[3, 4, 1] ^= 1
    pictures = [pixels, other, pixels.reshape(6, 24, 3), pixels.swapaxes(0, 1), pixels[::-1], pixels[..., ::-1]]
    pictures += [pixels[..., 0], pixels[..., 0].reshape(6, 24), np.repeat(pixels[..., 1:2], 3, axis=2)]
    assert len({pixel_digest(np.ascontiguousarray(picture)) for picture in pictures}) == len(pictures)
    assert pixel_digest(pixels[..., :1]) == pixel_digest(pixels[..., 0]) == pixel_digest(pixels[..., [0, 0, 0]])


def name(number: int) -> bytes:
    """Digest of a number; some end or begin with zero bytes, as one in 256 does."""
    digest = hashlib.sha256(str(number).encode()).digest()
    return {0: digest[:-1] + b"\0", 1: b"\0" + digest[1:], 2: digest[:-2] + b"\0\0"}.get(number % 5, digest)


def index_of(uses: dict[int, str], patients: dict[int, int] | None = None) -> TrainingIndex:
    hmacs = None if patients is None else [f"key:{name(1000 + patients[number]).hex()}" for number in uses]
    return TrainingIndex.of([name(number) for number in uses], list(uses.values()), hmacs)


_USES = st.dictionaries(st.integers(0, 60), st.sampled_from(["network", "calibration", ""]), max_size=40)


@settings(deadline=None, max_examples=60)
@given(_USES, st.lists(st.integers(0, 60), max_size=30), st.data())
def test_looking_up_is_membership(
    tmp_path_factory: pytest.TempPathFactory, uses: dict[int, str], wanted: list[int], data: st.DataObject
) -> None:
    patients = {number: number % 7 for number in range(61)} if data.draw(st.booleans()) else None
    index = index_of(uses, patients)
    path = tmp_path_factory.mktemp("index") / INDEX_FILE
    path.write_bytes(index.to_bytes())
    read = TrainingIndex.read(path)
    asked = as_digests(name(1000 + number % 7) for number in wanted) if patients else None
    found = read.uses(as_digests(name(number) for number in wanted), asked).tolist()
    for number, use in zip(wanted, found, strict=True):
        own = {uses.get(number, "")}
        if patients:
            own |= {other for case, other in uses.items() if case % 7 == number % 7}
        assert use == next((kind for kind in ("network", "calibration") if kind in own), "")
    assert read.to_bytes() == index.to_bytes()
    turned = dict(reversed(uses.items()))
    assert index_of(turned, patients).to_bytes() == index.to_bytes()
    used = [number for number, use in uses.items() if use]
    assert index.document()["n_images"] == len(used)
    assert index.document()["n_patients"] == (len({number % 7 for number in used}) if patients and used else None)


def test_an_image_without_a_digest_is_not_looked_up() -> None:
    index = TrainingIndex.of([bytes(32)], ["network"], None)
    assert index.uses(as_digests([bytes(32)])).tolist() == [""]


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:-1],
        lambda data: data + bytes(32),
        lambda data: b"S" + data[1:],
        lambda data: data[:28] + b"{}" + data[28:],
        lambda data: data[:-64] + data[-32:] + data[-64:-32],
        lambda data: data.replace(b'"network": 2', b'"network": -2'),
        lambda data: b"",
    ],
)
def test_a_harmed_index_is_refused(harm: Any, tmp_path: Path) -> None:
    data = index_of(
        {1: "network", 2: "network", 3: "calibration", 4: "calibration"}, {n: n for n in range(5)}
    ).to_bytes()
    (tmp_path / INDEX_FILE).write_bytes(data)
    TrainingIndex.read(tmp_path / INDEX_FILE)
    (tmp_path / INDEX_FILE).write_bytes(harm(data))
    with pytest.raises(ValueError, match=INDEX_FILE):
        TrainingIndex.read(tmp_path / INDEX_FILE)


@pytest.mark.parametrize("text", ["", "abc", ":" + "0" * 64, "key:zz", "key:" + "0" * 62])
def test_a_malformed_digest_of_a_patient_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="digest of a patient"):
        parse_patient_hmac(text)


def test_a_release_says_what_is_in_its_index(tiny_release: Path, tmp_path: Path) -> None:
    copy = tmp_path / "release"
    shutil.copytree(tiny_release, copy)
    release = read_release(copy)
    if release.training is None:
        assert "training" not in release.card
        (copy / INDEX_FILE).write_bytes(index_of({1: "network"}).to_bytes())
    card = read_json(copy / "card.json")
    card["files"][INDEX_FILE] = file_sha256(copy / INDEX_FILE)
    card["training"] = {"n_images": 10_000, "n_patients": None}
    write_json(copy / "card.json", card)
    with pytest.raises(ReleaseError, match=INDEX_FILE):
        read_release(copy)


@pytest.mark.slow
def test_a_trained_release_knows_its_cells_and_says_how_many(small_release: Path) -> None:
    from ml.datasets.cells import load_cells

    release, cells = read_release(small_release), load_cells(300, seed=0)
    assert release.training is not None
    assert cells.pixel_digests is not None
    uses = release.training.uses(as_digests(cells.pixel_digests))
    expected = {"train": "network", "valid": "network", "calibration": "calibration", "test": ""}
    assert uses.tolist() == [expected[part] for part in cells.partition.tolist()]
    text = (small_release / "README.md").read_text()
    assert f"{(uses != '').sum():,} images" in text
    assert json.loads((small_release / "card.json").read_text())["training"]["n_images"] == (uses != "").sum()


CLASSES = ("x", "y", "z")


def tables(seed: int, n: int, wide: bool) -> tuple[dict[str, list], dict[str, list]]:
    rng = np.random.default_rng(seed)
    names = [f"c{number}" for number in range(n)]
    probs = rng.dirichlet(np.ones(3), n)
    predictions = {"case_id": names} | {f"prob:{c}": probs[:, k].tolist() for k, c in enumerate(CLASSES)}
    counts = rng.integers(0, 3, (n, 3))
    if wide:
        return {"case_id": names} | {f"count:{c}": counts[:, k].tolist() for k, c in enumerate(CLASSES)}, predictions
    rows = [(names[i], f"r{j}", CLASSES[k]) for i in range(n) for j, k in enumerate(np.repeat(range(3), counts[i]))]
    rng.shuffle(rows)
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], []]
    return dict(zip(("case_id", "annotator", "label"), columns, strict=True)), predictions


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 50), st.booleans(), st.data())
def test_leaving_them_out_is_evaluating_the_others(seed: int, wide: bool, data: st.DataObject) -> None:
    n = 12
    labels, predictions = tables(seed, n, wide)
    answers = data.draw(st.lists(st.sampled_from(["yes", "no"]), min_size=n, max_size=n).filter(lambda a: "no" in a))
    found = evaluate_tables(labels, predictions | {"trained_on": answers})
    others = {name for name, answer in zip(predictions["case_id"], answers, strict=True) if answer == "no"}

    def kept(table: dict[str, list]) -> dict[str, list]:
        rows = [row for row, name in enumerate(table["case_id"]) if name in others]
        return {name: [values[row] for row in rows] for name, values in table.items()}

    if not wide and not kept(labels)["case_id"]:
        return
    expected = evaluate_tables(kept(labels), kept(predictions))
    assert found.to_dict()["metrics"] == expected.to_dict()["metrics"]
    n_left_out = answers.count("yes")
    said = [text for text in found.to_dict()["warnings"] if text not in expected.to_dict()["warnings"]]
    assert [text.split(" of ")[0] for text in said] == ([str(n_left_out)] if n_left_out else [])


def test_what_is_unknown_is_said_and_other_words_are_refused() -> None:
    labels, predictions = tables(0, 5, wide=True)
    unknown = evaluate_tables(labels, predictions | {"trained_on": ["unknown"] * 5})
    assert unknown.to_dict()["metrics"] == evaluate_tables(labels, predictions).to_dict()["metrics"]
    assert any("5 of 5 cells is unknown" in text for text in unknown.to_dict()["warnings"])
    with pytest.raises(TableError, match="row 1, column trained_on: must be yes, no or unknown, not 'maybe', 1 in all"):
        evaluate_tables(labels, predictions | {"trained_on": ["no", "maybe", "no", "no", "no"]})
    with pytest.raises(TableError, match="all 5 cells"):
        evaluate_tables(labels, predictions | {"trained_on": ["yes"] * 5})


def test_two_predictions_are_compared_on_what_neither_was_trained_on() -> None:
    labels, predictions = tables(1, 8, wide=True)
    other = tables(2, 8, wide=True)[1] | {"trained_on": ["no", "yes", "yes", *["no"] * 5]}
    own = predictions | {"trained_on": ["yes", "yes", *["no"] * 6]}
    (cases,) = match_tables(labels, own, EvaluationOptions(), other)
    assert cases.predictions.case_ids == [f"c{number}" for number in range(3, 8)]
    assert cases.rival is not None
    assert len(cases.rival.rows) == 5
    found = [text for text in cases.warnings() if "excluded because" in text]
    assert found == ["3 of 8 cells are because the model was trained on them"]


def test_a_stream_that_contains_them_is_refused(tmp_path: Path) -> None:
    labels, predictions = tables(1, 8, wide=True)
    for name, table in (("labels", labels), ("predictions", predictions | {"trained_on": [*["no"] * 7, "yes"]})):
        write_table(table, tmp_path / f"{name}.csv")
    with pytest.raises(TableError, match="trained on some of the cells"):
        evaluate_stream(tmp_path / "labels.csv", tmp_path / "predictions.csv")


def test_score_says_which_cells_its_release_was_trained_on(tiny_release: Path, tmp_path: Path) -> None:
    cells = simulate_cells(6, seed=9, size=16)
    hmacs = [f"key:{number:064x}" for number in range(3)]
    index = TrainingIndex.of([pixel_digest(cells[0].pixels)] * 2, ["network", "calibration"], hmacs[:2])
    release = with_training(tiny_release, tmp_path / "release", index)
    for number, cell in enumerate(cells):
        kind = "TIFF" if number % 2 else "PNG"
        (tmp_path / f"renamed {number}.{kind.lower()}").write_bytes(encode(cell.pixels, kind))
    with (tmp_path / "all.csv").open("w", newline="") as file:
        files = [f"renamed {number}.{'tiff' if number % 2 else 'png'}" for number in range(6)]
        patients = [hmacs[2], hmacs[2], hmacs[1], hmacs[2], f"other:{1:064x}", hmacs[2]]
        writer = csv.writer(file)
        writer.writerow(["case_id", "file", "patient_hmac"])
        writer.writerows(zip(map(str, range(6)), files, patients, strict=True))
    assert score_images(release, tmp_path / "all.csv", tmp_path / "out.csv").n_predictions == 6
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    # the image itself, and another one of a patient; the same number under another key is another patient
    assert [row["trained_on"] for row in rows] == ["yes", "no", "yes", "no", "no", "no"]
    assert len({row["release_sha256"] for row in rows}) == 1
    score_images(tiny_release, tmp_path / "all.csv", tmp_path / "unknown.csv")
    with (tmp_path / "unknown.csv").open() as file:
        assert {row["trained_on"] for row in csv.DictReader(file)} == {"unknown"}


def test_messages_name_rows_of_the_whole_table() -> None:
    labels, predictions = tables(3, 4, wide=False)
    own = predictions | {"trained_on": ["yes", "no", "no", "no"]}
    last = max(row for row, case in enumerate(labels["case_id"]) if case != "c0")
    numbers = ["1"] * last + ["x"] + ["1"] * (len(labels["case_id"]) - last - 1)
    assert labels["case_id"][:last].count("c0") > 0
    with pytest.raises(TableError, match=f"row {last}, column planned_read"):
        evaluate_tables(labels | {"planned_read": numbers}, own)


#: In the presence of these ONNX Runtime is silent by itself.
QUIETENING = ("CI", "TF_BUILD", "GITHUB_ACTIONS", "ORT_RUNNING_UNIT_TESTS", "ORT_DISABLE_TELEMETRY")
PROGRAM = """
import sys, numpy as np
from pathlib import Path
from ml.release.artifact import read_release
from ml.release.predictor import Predictor
from PIL import Image
predictor = Predictor(read_release(Path(sys.argv[1])))
predictor.outputs(predictor.pixels([Image.new("RGB", (48, 48))]))
"""


def test_a_prediction_leaves_no_identifier_of_the_machine(tiny_release: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in QUIETENING}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    command = [sys.executable, "-c", PROGRAM, str(tiny_release)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(home.iterdir()) == []
