"""Shards as tasks of a real Ray with two cores: what one run says byte for byte, though processes die."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ml.scoring.pool import ShardWork, connect_to_ray, run_missing, run_on_ray
from ml.scoring.shards import PartDocument, ShardError
from ml.tables.reading import TableError
from tests.support.ray_settings import set_up
from tests.support.shards import manifest, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("ray") / "images")


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """Ray with two cores in this process, to which whatever asks for the engine is connected already."""
    with pytest.MonkeyPatch.context() as patch:
        set_up(patch)
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
        run_missing(tiny_release, listed, job, "ray")
    work = ShardWork(tiny_release, manifest(images, 70, "x.csv"), tmp_path / "elsewhere", 1, None, 0, "auto")
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
