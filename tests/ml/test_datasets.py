"""Data sets: simulated cells whose truth is known, and the real ones."""

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ml.datasets.annotators import AnnotatorPool, count_labels
from ml.datasets.base import DatasetMissingError
from ml.datasets.blends import load_mix_mnist
from ml.datasets.cells import CLASSES, draw_morphology, load_cells, simulate_cell, simulate_cells, true_class_probs
from ml.datasets.folder import load_folder
from ml.datasets.pbc import load_pbc, load_pbc_nucleus
from ml.datasets.registry import load_dataset
from ml.metrics.cases import observed_disagreement
from ml.tables.reading import TableError
from tests.support.images import encode, photo


def test_the_same_number_gives_the_same_cell_and_patients_share_a_stain() -> None:
    first, again, neighbour = (simulate_cell(i, seed=1, size=64) for i in (3, 3, 4))
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert first.patient == neighbour.patient
    assert simulate_cell(10, seed=1, size=64).patient != first.patient
    assert (first.pixels != simulate_cell(3, seed=2, size=64).pixels).any()


def test_true_label_distributions_cover_every_class_and_real_continua() -> None:
    cells = [draw_morphology(np.random.default_rng([0, i])) for i in range(2000)]
    q = np.array([true_class_probs(cell) for cell in cells])
    np.testing.assert_allclose(q.sum(axis=1), 1, atol=1e-12)
    assert (np.bincount(q.argmax(axis=1), minlength=8) > 60).all()
    codes = [info.code for info in CLASSES]
    for pair in (("band_neutrophil", "segmented_neutrophil"), ("lymphocyte", "monocyte"), ("blast", "lymphocyte")):
        both = q[:, [codes.index(name) for name in pair]]
        assert ((both > 0.25).all(axis=1)).sum() > 10, pair
    assert 0.1 < (1 - (q**2).sum(axis=1)).mean() < 0.35


def test_independent_annotators_draw_from_the_truth_and_never_read_twice() -> None:
    q = np.tile([0.5, 0.3, 0.2], (20_000, 1))
    people, labels = AnnotatorPool(4).read(q, 3, np.random.default_rng(0))
    np.testing.assert_allclose(count_labels(labels, 3).mean(axis=0) / 3, q[0], atol=0.01)
    assert all(len(set(row)) == 3 for row in people.tolist())
    phi = observed_disagreement(count_labels(labels, 3)).mean()
    assert phi == pytest.approx(1 - (q[0] ** 2).sum(), abs=0.01)


def test_copying_annotators_disagree_less_and_a_biased_one_moves_its_labels() -> None:
    q = np.tile([0.5, 0.3, 0.2], (20_000, 1))
    _, copied = AnnotatorPool(4, copying=0.5).read(q, 2, np.random.default_rng(0))
    honest = 1 - (q[0] ** 2).sum()
    assert observed_disagreement(count_labels(copied, 3)).mean() == pytest.approx(honest / 2, abs=0.01)
    people, labels = AnnotatorPool(4, biased=1, bias=0.4).read(q, 2, np.random.default_rng(0))
    share = np.bincount(labels[people == 1], minlength=3) / (people == 1).sum()
    np.testing.assert_allclose(share, 0.6 * q[0] + 0.4 * np.roll(q[0], 1), atol=0.02)


def test_cells_are_split_by_patient_with_the_planned_labels() -> None:
    dataset = load_cells(200, seed=5)
    assert dataset.patients is not None
    for patient in set(dataset.patients):
        assert len(set(dataset.partition[np.array(dataset.patients) == patient].tolist())) == 1
    for part, labels in (("train", 1), ("valid", 2), ("calibration", 3), ("test", 5)):
        assert (dataset.label_counts[dataset.rows(part)].sum(axis=1) == labels).all()
    with pytest.raises(ValueError, match="200"):
        load_cells(100)


@pytest.mark.slow
def test_cells_are_the_same_by_whomever_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = simulate_cells(30, seed=4, size=24)
    monkeypatch.setattr("ml.datasets.cells.CELLS_PER_PROCESS", 10)
    monkeypatch.setattr("ml.datasets.cells.cores", lambda: 3)
    for one, other in zip(alone, simulate_cells(30, seed=4, size=24), strict=True):
        assert (one.case_id, one.patient) == (other.case_id, other.patient)
        np.testing.assert_array_equal(one.pixels, other.pixels)
        np.testing.assert_array_equal(one.true_probs, other.true_probs)


@pytest.mark.slow
def test_pbc_keeps_the_originals_out_of_training(datasets: Path) -> None:
    dataset = load_pbc()
    assert dataset.pixels.shape == (16_892, 48, 48, 3)
    shares = {part: dataset.rows(part).size / 16_892 for part in ("train", "valid", "test")}
    assert shares == pytest.approx({"train": 0.7, "valid": 0.1, "test": 0.2}, abs=0.01)
    with zipfile.ZipFile(datasets / "pbc_wbcatt" / "originals_test_304.zip") as archive:
        originals = {Path(name).name for name in archive.namelist() if name.endswith(".jpg")}
    held_out = {dataset.case_ids[row] for row in dataset.rows("test")}
    assert len(originals) == 304
    assert len(originals & held_out) == 104
    assert not (originals - held_out) & set(dataset.case_ids)
    assert (dataset.label_counts.sum(axis=1) == 1).all()


@pytest.mark.slow
def test_nucleus_shapes_are_calibrated_where_two_labels_are(datasets: Path) -> None:
    dataset = load_pbc_nucleus()
    totals = dataset.label_counts.sum(axis=1)
    assert (totals == 2).sum() == 800
    assert (totals[dataset.rows("calibration")] == 2).all()
    assert (totals[dataset.rows("train")] == 1).all()
    assert (totals[dataset.rows("test")] == 2).sum() == 304
    assert dataset.rows("calibration").size == 496
    assert {name: dataset.rows(name).size for name in ("train", "valid")} == {"train": 5577, "valid": 926}
    raw = observed_disagreement(dataset.label_counts[totals == 2]).mean()
    assert 1 - raw == pytest.approx(0.903, abs=0.02)


@pytest.mark.slow
def test_mix_mnist_follows_the_split_tables(datasets: Path) -> None:
    dataset = load_mix_mnist(2)
    assert dataset.pixels.shape == (52_500, 28, 28, 1)
    totals = dataset.label_counts.sum(axis=1)
    for part, size, labels in (("train", 37_500, 1), ("valid", 7_500, 2), ("test", 7_500, 10)):
        rows = dataset.rows(part)
        assert (rows.size, set(totals[rows].tolist())) == (size, {labels})
    assert dataset.true_probs is not None
    exact = 1 - (dataset.true_probs[dataset.rows("test")] ** 2).sum(axis=1)
    assert exact.mean() == pytest.approx(0.0998, abs=5e-5)
    with pytest.raises(ValueError, match="valid_labels"):
        load_mix_mnist(3)


def test_a_missing_data_set_is_one_line_that_says_where_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SECONDREAD_DATASETS", raising=False)
    with pytest.raises(DatasetMissingError, match="SECONDREAD_DATASETS"):
        load_pbc()
    monkeypatch.setenv("SECONDREAD_DATASETS", str(tmp_path))
    with pytest.raises(DatasetMissingError, match="get it from"):
        load_pbc()


def _folder(path: Path, labels: str, images: tuple[str, ...] = ("a", "b", "c")) -> Path:
    (path / "images").mkdir(parents=True)
    for seed, name in enumerate(images):
        (path / "images" / f"{name}.png").write_bytes(encode(photo(seed)))
    (path / "labels.csv").write_text(labels)
    return path


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    labels = "case_id,annotator,label,patient\na,r1,x,p\na,r2,y,p\nb,r1,y,p\nc,r1,x,q\n"
    dataset = load_dataset(str(_folder(tmp_path / "mine", labels)), {"size": 16, "seed": 1})
    assert dataset.pixels.shape == (3, 16, 16, 3)
    assert dataset.label_counts.tolist() == [[1, 1], [0, 1], [1, 0]]
    assert [info.code for info in dataset.classes] == ["x", "y"]
    assert dataset.partition[0] == dataset.partition[1]
    (tmp_path / "mine" / "labels.csv").unlink()
    (tmp_path / "mine" / "labels.csv.gz").write_bytes(gzip.compress(labels.encode()))
    assert (load_folder(tmp_path / "mine", size=16).label_counts == dataset.label_counts).all()
    (tmp_path / "mine" / "classes.csv").write_text("code,name,group\ny,Why,Letters\nx,Ex,\n")
    named = load_folder(tmp_path / "mine", size=16)
    assert [info.to_dict() for info in named.classes] == [
        {"code": "y", "name": "Why", "shortcut": "", "group": "Letters"},
        {"code": "x", "name": "Ex", "shortcut": ""},
    ]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("case_id,annotator,label\nd,r,x\na,r,y\n", "'d' has no image"),
        ("case_id,annotator,label\na,r,x\n", "two classes"),
        ("case_id,annotator,label,partition\na,r,x,wrong\nb,r,y,train\n", "'wrong' is none of"),
        ("case_id,annotator,label,file\na,r,x,nowhere.png\nb,r,y,images/b.png\n", "nowhere.png"),
        ("case_id,annotator,label,file\na,r,x,labels.csv\nb,r,y,images/b.png\n", "labels.csv"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(labels: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(TableError, match=words):
        load_folder(_folder(tmp_path / "mine", labels))


def test_unknown_data_and_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a folder nor"):
        load_dataset("nonsense", {})
    with pytest.raises(ValueError, match="does not take"):
        load_dataset("pbc", {"size": 3})


def test_an_error_of_a_loader_is_not_blamed_on_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_cells(count: int = 1) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr("ml.datasets.cells.load_cells", load_cells)
    with pytest.raises(TypeError, match="a bug"):
        load_dataset("cells", {"count": 2})
