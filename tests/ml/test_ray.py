"""`score --engine ray`: shards as tasks of a real Ray, and the command that begins and ends it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from ml.scoring.pool import ShardWork, connect_to_ray, run_missing, run_on_ray
from ml.scoring.shards import PartDocument, ShardError
from ml.scoring.table import ScoreRequest
from ml.tables.reading import TableError
from tests.support.command import run_here
from tests.support.ray_settings import SETTINGS, set_up
from tests.support.shards import joined, left_over, manifest, one_run, write_images

MARK = "SECONDREAD_TEST_OF_RAY"
COMMAND = [sys.executable, "-c", "from app.cli.main import main; main()"]


@pytest.fixture(scope="module", autouse=True)
def ray_environment() -> Iterator[None]:
    """One cluster at a time, since two can take each other's ports; Ray reads its settings once in a process."""
    lock = FileLock(Path(tempfile.gettempdir()) / "secondread-ray.lock")
    with lock, pytest.MonkeyPatch.context() as patch:
        set_up(patch)
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("ray") / "images")


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A word in the environment of every process that a command starts; at the end none of them is left."""
    word = uuid.uuid4().hex
    monkeypatch.setenv(MARK, word)
    for name in SETTINGS:
        monkeypatch.delenv(name)
    yield word
    gone(word)


def marked(word: str) -> list[str]:
    """Command lines of other processes that were started with this word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment, line = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
        except OSError:  # has ended
            continue
        if f"{MARK}={word}".encode() in environment and folder.name != str(os.getpid()) and line:
            found.append(line.replace(b"\0", b" ").decode())
    return found


def gone(word: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds * float(os.environ.get("SECONDREAD_TEST_PATIENCE", 1))
    while marked(word) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert marked(word) == []


@pytest.mark.slow
def test_the_command_starts_ray_here_and_ends_it(tiny_release: Path, images: Path, tmp_path: Path, mark: str) -> None:
    listed, home = manifest(images, 700, "command.csv"), tmp_path / "home"
    home.mkdir()
    options = ["--images", str(listed), "--out", str(tmp_path / "job"), "--engine", "ray", "--json"]
    environment = os.environ | {"HOME": str(home)}
    done = subprocess.run(
        [*COMMAND, "score", str(tiny_release), *options], capture_output=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert b'"n_predictions": 686' in done.stdout
    assert list(home.iterdir()) == []
    gone(mark)
    assert joined(tmp_path / "job") == one_run(tiny_release, listed, tmp_path / "one.parquet")


@pytest.mark.slow
def test_ray_ends_with_the_command_that_was_killed(tiny_release: Path, images: Path, tmp_path: Path, mark: str) -> None:
    listed, job = manifest(images, 60_000, "killed.csv"), tmp_path / "job"
    options = ["--images", str(listed), "--out", str(job), "--engine", "ray"]
    process = subprocess.Popen([*COMMAND, "score", str(tiny_release), *options], stderr=subprocess.DEVNULL)
    while process.poll() is None and not (job.exists() and left_over(job)):
        time.sleep(0.01)
    assert len(marked(mark)) > 3
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    gone(mark, 120)  # Ray's agents take a minute


def test_without_ray_one_line_says_what_to_install(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from app.cli.main import main; main()"
    options = ["--images", str(manifest(images, 70, "without.csv")), "--out", str(tmp_path / "job"), "--engine", "ray"]
    command = [sys.executable, "-c", code, "score", str(tiny_release), *options]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "`score` needs the package 'ray': pip install 'secondread-cells[ray]'" in line
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379", "no address"])
def test_a_cluster_that_is_not_there_is_said_at_once(
    tiny_release: Path, images: Path, tmp_path: Path, address: str
) -> None:
    listed = manifest(images, 70, "nobody.csv")
    options = ("--images", listed, "--out", tmp_path / "job", "--engine", "ray", "--ray-address", address)
    refused = run_here("score", tiny_release, *options)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert f"Ray ({address}) cannot be used: " in refused.stderr
    assert not (tmp_path / "job").exists()


def test_an_address_without_the_engine_is_refused(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    refused = run_here("score", tiny_release, "--images", images, "--out", tmp_path, "--ray-address", "auto")
    assert (refused.returncode, "belongs to --engine ray" in refused.stderr) == (1, True)


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """Ray with two cores in this process, to which whatever asks for the engine is connected already."""
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_what_a_task_cannot_use_is_said_as_it_is_without_ray(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = images / "empty cell.csv", tmp_path / "job"
    listed.write_text("case_id,file\n" + "".join(f"c{row},0.png\n" for row in range(200)) + ",0.png\n")
    with pytest.raises(TableError, match="row 202, column case_id: the value is missing"):
        run_missing(ScoreRequest(tiny_release, listed), job, "ray")
    work = ShardWork(ScoreRequest(tiny_release, manifest(images, 70, "x.csv")), tmp_path / "elsewhere", 1)
    with connect_to_ray(None), pytest.raises(ShardError, match="every machine has to see the same one"):
        list(run_on_ray(work, [1]))


@dataclass(frozen=True)
class Unknown:
    """Work that a machine without the package meets."""

    def __call__(self, shard: int) -> PartDocument:
        raise ModuleNotFoundError("No module named 'onnxruntime'")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_machine_without_the_package_is_not_taken_for_this_one() -> None:
    said = r"a machine of the Ray cluster cannot make shards \(No module named 'onnxruntime'\)"
    with connect_to_ray(None), pytest.raises(ShardError, match=said):
        list(run_on_ray(Unknown(), [1]))


@dataclass(frozen=True)
class Deadly:
    """Work whose process is killed at one shard."""

    folder: Path
    at: int

    def __call__(self, shard: int) -> PartDocument:
        if shard == self.at:
            with (self.folder / "tries").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return {
            "job_sha256": "",
            "shard": shard,
            "n_predictions": 1,
            "n_errors": 0,
            "predictions_sha256": "",
            "errors_sha256": "",
        }


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_shard_that_kills_its_process_is_named_when_all_others_are_done(tmp_path: Path) -> None:
    done: list[int] = []
    with connect_to_ray(None), pytest.raises(ShardError, match=r"shards 2 died, .*WorkerCrashedError"):
        done.extend(part["shard"] for part in run_on_ray(Deadly(tmp_path, at=2), [1, 2, 3, 4, 5]))
    assert sorted(done) == [1, 3, 4, 5]
    assert (tmp_path / "tries").read_text() == "xxxx"
