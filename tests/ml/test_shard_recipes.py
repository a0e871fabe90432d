"""The files that start shards elsewhere, run as they are with what Slurm and Kubernetes set: together, one run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.scoring.shards import score_shard
from tests.support.shards import joined, manifest, one_run, write_images

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("recipes") / "images")


def variables(tmp_path: Path, release: Path, listed: Path, shards: int) -> dict[str, str]:
    """What whoever starts a recipe sets, with this checkout as the command `secondread`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "secondread"
    command.write_text(f"#!{sys.executable}\nfrom app.cli.main import main\nmain()\n")
    command.chmod(0o755)
    own = {"RELEASE": str(release), "IMAGES": str(listed), "OUT": str(tmp_path / "job"), "SHARDS": str(shards)}
    root = str(EXAMPLES.parents[1])
    return os.environ | own | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": root}


def run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def job_of_kubernetes() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / "score-kubernetes.yaml").read_text())
    return document


@pytest.mark.slow
def test_an_array_of_slurm_is_one_run(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, script = manifest(images, 300, "slurm.parquet"), EXAMPLES / "score.slurm"
    environment = variables(tmp_path, tiny_release, listed, shards=2)
    for task in ("2", "1"):
        # of an array of one task, as when a shard is run again
        run(["sh", str(script)], environment | {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "1"})
    assert joined(tmp_path / "job") == one_run(tiny_release, listed, tmp_path / "one.parquet")
    outside = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, check=False)
    assert outside.returncode != 0
    assert "SLURM_ARRAY_TASK_ID" in outside.stderr


@pytest.mark.slow
def test_an_indexed_job_of_kubernetes_is_one_run(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed = manifest(images, 300, "kubernetes.parquet")
    (container,) = job_of_kubernetes()["spec"]["template"]["spec"]["containers"]
    environment = variables(tmp_path, tiny_release, listed, shards=2)
    assert {row["name"] for row in container["env"]} < set(environment)
    for index in ("0", "1"):
        run([*container["command"], *container["args"]], environment | {"JOB_COMPLETION_INDEX": index})
    assert joined(tmp_path / "job") == one_run(tiny_release, listed, tmp_path / "one.parquet")


def test_an_indexed_job_of_kubernetes_has_as_many_indexes_as_shards() -> None:
    spec = job_of_kubernetes()["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    values = {row["name"]: row["value"] for row in container["env"]}
    assert (spec["completionMode"], str(spec["completions"])) == ("Indexed", values["SHARDS"])
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    for name in ("RELEASE", "IMAGES", "OUT"):
        assert values[name].startswith("/data/")
        assert "/data" in mounts


@pytest.mark.slow
@pytest.mark.parametrize("program", [name for name in ("parallel", "xargs") if shutil.which(name)])
def test_parallel_or_xargs_are_one_run(tiny_release: Path, images: Path, tmp_path: Path, program: str) -> None:
    listed = manifest(images, 300, f"{program}.parquet")
    environment = variables(tmp_path, tiny_release, listed, shards=3) | {"JOBS": "2"}
    if program == "xargs":
        for name in ("sh", "seq", "xargs"):
            (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
        environment["PATH"] = str(tmp_path / "bin")
    score_shard(tiny_release, listed, tmp_path / "job", (2, 3))
    run(["sh", str(EXAMPLES / "score-parallel.sh")], environment)
    assert (tmp_path / "job" / "predictions.parquet").is_file()
    assert joined(tmp_path / "job") == one_run(tiny_release, listed, tmp_path / "one.parquet")


def test_every_line_of_the_recipes_is_a_command_with_its_options() -> None:
    """A renamed option would be seen on a cluster only."""
    import typer

    from app.cli.main import secondread

    score = typer.main.get_command(secondread).commands["score"]  # type: ignore[attr-defined]
    known = {name for parameter in score.params for name in parameter.opts}
    for path in sorted(EXAMPLES.glob("score*")):
        lines = [line for line in path.read_text().splitlines() if "secondread score " in line and "#" not in line[:3]]
        assert lines, path.name
        for line in lines:
            asked = set(re.findall(r"(--[a-z-]+)", line.partition("secondread score ")[2]))
            assert asked <= known, f"{path.name}: {line}"
