"""PREDICTIONS that say which cells were trained on: those never judge."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.datasets.cells import simulate_cells
from ml.images.preprocess import pixel_digest
from ml.release.training_index import TrainingIndex
from ml.scoring.table import score_images
from ml.tables import evaluate as evaluate_tables
from ml.tables.matching import EvaluationOptions, match_tables
from ml.tables.reading import TableError, write_table
from ml.tables.streaming import evaluate_stream
from tests.support.images import encode
from tests.support.tiny_release import with_training

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
    found = [text for text in cases.warnings() if "left out because" in text]
    assert found == ["3 of 8 cells are left out because the release was trained on them"]


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
