"""Where networks run: never quietly elsewhere than was asked, and with the same results in padded batches."""

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from ml.datasets.cells import load_cells
from ml.release.artifact import read_release
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
from ml.scoring.shards import ShardError, join_job, read_job, score_shard
from tests.support.command import run_here
from tests.support.shards import manifest

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
