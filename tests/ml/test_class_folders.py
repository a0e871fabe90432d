"""A folder for each class, labels by one unnamed annotator, and what a training of them shows."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from ml.cli.stages import TrainingBar
from ml.datasets.base import folder_note, load_dataset
from ml.datasets.cells import simulate_cells
from ml.datasets.folder import load_folder
from ml.release.artifact import read_release
from ml.tables.reading import TableError
from ml.training.learner import StepReport
from ml.training.run_folder import RunFolder
from ml.training.train import digest_of, train
from tests.support.command import run_here
from tests.support.configs import quick_config
from tests.support.images import encode, photo

#: Image files of a data set, with their classes and partitions.
LAYOUTS: dict[str, dict[str, tuple[str, str | None]]] = {
    "classes": {f"{code}/{number}.png": (code, None) for code in ("left", "right") for number in range(6)},
    "images": {f"images/{code}/{number}.png": (code, None) for code in ("left", "right") for number in range(6)},
    "partitions": {
        f"{folder}/{code}/{number}.png": (code, part)
        for folder, part in (("train", "train"), ("val", "valid"), ("test", "test"))
        for code in ("left", "right")
        for number in range(2)
    },
}


def write_images(root: Path, names: object) -> Path:
    for seed, name in enumerate(sorted(names)):  # type: ignore[call-overload]
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encode(photo(seed, size=12)))
    return root


@pytest.mark.parametrize("annotator", [None, "anna"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_class_folders_are_the_same_data_as_a_table_of_their_labels(
    layout: str, annotator: str | None, tmp_path: Path
) -> None:
    files = LAYOUTS[layout]
    found = load_folder(write_images(tmp_path / "mine", files), size=8)
    assert (found.annotators, len(found.notes)) == (None, 1)
    table = write_images(tmp_path / "table" / "mine", files)
    header = ["case_id", "file", "label", *(["annotator"] if annotator else [])]
    rows = [[name, name, code, *([annotator] if annotator else [])] for name, (code, _) in sorted(files.items())]
    if layout == "partitions":
        header, rows = [*header, "partition"], [[*row, files[row[0]][1] or ""] for row in rows]
    with (table / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    same = load_folder(table, size=8)
    assert digest_of(same) == digest_of(found)
    assert (same.classes, same.preprocessing, same.digests()) == (found.classes, found.preprocessing, found.digests())
    assert (same.annotators, same.source == found.source) == ((annotator,) if annotator else None, not annotator)


def test_what_is_no_image_of_a_class_is_skipped_and_counted(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "mine", LAYOUTS["classes"])
    plain = digest_of(load_folder(folder, size=8))
    (folder / "left" / ".DS_Store").touch()
    (folder / "left" / ".ipynb_checkpoints").mkdir()
    (folder / "right" / "notes.txt").touch()
    (folder / "overview.png").touch()
    found = load_folder(folder, size=8)
    assert digest_of(found) == plain
    assert found.notes[1].split("skipped ")[1].split(", ") == [
        "hidden files (2)",
        "images outside the class folders (1)",
        "files that are no images (1)",
    ]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "neither a table of labels"),
        (["left/a.png", "right/notes.txt"], "right: the class folder contains no image"),
        (["left/a.png", "ri|ght/b.png"], r"ri\|ght: the class name .* rename"),
        (["left/a.png", "left/b.png"], "at least two classes are needed, found left"),
        (["left/a.png", "right/deep/b.png"], "right/deep: a class folder contains images and no folders"),
        (["train/left/a.png", "test/right/b.png"], "exactly the folders train, val, test"),
        (["train/a.png", "val/a.png", "test/a.png"], "train, val, test contain no class folders"),
    ],
)
def test_class_folders_that_cannot_be_used_are_named(names: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(TableError, match=words):
        load_folder(write_images(tmp_path / "mine", names), size=8)


def test_one_image_in_two_classes_is_refused_and_twice_in_one_is_not(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "mine", LAYOUTS["classes"])
    (folder / "left" / "copy.png").write_bytes((folder / "left" / "0.png").read_bytes())
    assert len(load_folder(folder, size=8).case_ids) == 13
    (folder / "right" / "copy.png").write_bytes((folder / "left" / "0.png").read_bytes())
    with pytest.raises(TableError, match=r"left/0\.png and right/copy\.png are the same image in two classes"):
        load_folder(folder, size=8)


def test_a_folder_is_taken_before_the_data_set_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_note("pbc") is None
    with pytest.raises(ValueError, match="'pbc' does not take size; its options: seed") as refused:
        load_dataset("pbc", {"size": 8, "seed": 0})
    assert "load_" not in str(refused.value)
    write_images(tmp_path / "pbc", LAYOUTS["classes"])
    assert load_dataset("pbc", {"size": 8, "seed": 0}).pixels.shape == (12, 8, 8, 3)
    assert "built-in" in (folder_note("pbc") or "")
    assert folder_note("./pbc") is None


def test_a_log_has_a_line_a_minute_within_an_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("ml.cli.shared.time.monotonic", lambda: now[0])
    with TrainingBar(2) as bar:
        for epoch in range(2):
            for step in range(1, 101):
                now[0] += 7.0
                bar.update(StepReport(epoch, step, 100, 2.5, torch.ones(()), step))
    lines = capsys.readouterr().err.splitlines()
    assert all(re.search(r"step \d+/100  loss .*  2\.5 images/s  \d+:\d+:\d+ left$", line) for line in lines)
    seconds = [7 * (100 * (int(line[6]) - 1) + int(re.findall(r"step (\d+)", line)[0])) for line in lines]
    assert max(np.diff([0, *seconds])) <= 60 + 7
    assert len(lines) <= 1400 / 60 + 2
    assert {700, 1400} <= set(seconds)


def test_what_cannot_work_is_refused_before_any_data_are_read(tmp_path: Path) -> None:
    unknown = run_here("train", "--data", tmp_path, "--out", tmp_path / "run", "--network", "resnet18")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    assert "unknown network 'resnet18'; there are compact" in unknown.stderr
    missing = run_here("calibrate", tmp_path / "nothere")
    assert (missing.returncode, "nothere: no such folder" in missing.stderr) == (1, True)


@pytest.mark.slow
@pytest.mark.ci
def test_class_folders_become_a_release_that_states_one_unnamed_annotator(tmp_path: Path) -> None:
    folder, run, out = tmp_path / "mine", tmp_path / "run", tmp_path / "release"
    for number, cell in enumerate(simulate_cells(120, seed=3, size=16)):
        path = folder / ("round" if number % 2 else "oval") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(cell.pixels))
    speeds: list[float] = []
    config = quick_config(epochs=1, passes=3)
    small = load_folder(folder, size=16)
    train(
        small,
        config,
        RunFolder(tmp_path / "fast"),
        device=torch.device("cpu"),
        observer=lambda report: speeds.append(report.images_per_second),
    )
    assert RunFolder(tmp_path / "fast").read_metrics()[0]["images_per_second"] == pytest.approx(speeds[-1], rel=0.1)
    for command in (
        ("train", "--data", folder, "--size", 16, "--epochs", 1, "--out", run),
        ("calibrate", run),
        ("export", run, "--out", out, "--no-shifts"),
    ):
        done = run_here(*command)
        assert done.returncode == 0, done.stderr
        assert ("one unnamed annotator" in done.stderr) == (command[0] == "train")
    release = read_release(out)
    text = (out / "README.md").read_text()
    assert "each with one label by one unnamed annotator" in text
    baseline = release.card["baseline"]
    assert baseline is not None
    for metric in ("agreement", "L"):
        assert f"{baseline['baseline'][metric]['value']:.4f}" in text
    assert "colour and texture" in text
