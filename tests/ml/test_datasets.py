"""Data sets, splits by patient, and training on a small folder."""

import colorsys
import csv
import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from ml.annotations import Annotations
from ml.calibration.calibrators import Calibration
from ml.calibration.scaling import Scaling
from ml.datasets.base import ClassInfo, DatasetMissingError, ImageDataset, load_dataset
from ml.datasets.blends import load_mix_mnist
from ml.datasets.cells import (
    CLASSES,
    AnnotatorPool,
    draw_morphology,
    load_cells,
    simulate_cell,
    simulate_cells,
    true_class_probs,
)
from ml.datasets.folder import load_folder
from ml.datasets.pbc import load_pbc, load_pbc_nucleus
from ml.images.image_quality_features import feature_columns
from ml.images.preprocess import Preprocessing
from ml.metrics.cases import observed_disagreement
from ml.release.card import baseline_verdict
from ml.tables.reading import TableError
from ml.training import baseline as simple
from ml.training.baseline import Baseline, fit_baseline, image_statistics
from ml.training.data import (
    EPOCHS,
    MIN_STEPS,
    augmentation_for,
    batch_for,
    class_counts,
    describe_shortages,
    passes_for,
    require_two,
)
from ml.training.learner import balancing_weights, count_weighted_nll
from ml.training.report import class_recalls, compare_with_baseline, report_classes
from ml.training.run_folder import RunFolder
from ml.util.splits import split_partitions, stratified_partitions
from tests.support.command import run_here
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
    np.testing.assert_allclose(Annotations.of_matrix(labels, 3).counts().mean(axis=0) / 3, q[0], atol=0.01)
    assert all(len(set(row)) == 3 for row in people.tolist())
    phi = observed_disagreement(Annotations.of_matrix(labels, 3).counts()).mean()
    assert phi == pytest.approx(1 - (q[0] ** 2).sum(), abs=0.01)


def test_copying_annotators_disagree_less() -> None:
    q = np.tile([0.5, 0.3, 0.2], (20_000, 1))
    _, copied = AnnotatorPool(4, copying=0.5).read(q, 2, np.random.default_rng(0))
    honest = 1 - (q[0] ** 2).sum()
    assert observed_disagreement(Annotations.of_matrix(copied, 3).counts()).mean() == pytest.approx(
        honest / 2, abs=0.01
    )


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


def dataset(partition: list[str], classes: list[int], pixels: np.ndarray | None = None, k: int = 3) -> ImageDataset:
    n = len(partition)
    drawn = np.random.default_rng(0).integers(0, 256, (n, 12, 12, 3), dtype=np.uint8)
    return ImageDataset(
        name="mine",
        classes=tuple(ClassInfo(code, code, "") for code in "abcdef"[:k]),
        pixels=drawn if pixels is None else pixels,
        label_counts=np.eye(k, dtype=np.int64)[classes],
        partition=np.array(partition),
        case_ids=[str(number) for number in range(n)],
        patients=[f"p{number // 2}" for number in range(n)],
        preprocessing=Preprocessing(3, None, 12, (0.5,) * 3, (0.2,) * 3),
        orientation="any",
        source="a test",
        licence="none",
    )


@pytest.mark.parametrize("n", [2, 30, 200, 410, 1000, 5000, 37_500])
def test_every_training_set_takes_enough_steps(n: int) -> None:
    batch = batch_for(n)
    passes, steps = passes_for(n, batch, "light"), -(-n // batch)
    assert EPOCHS * passes * steps >= MIN_STEPS
    assert 16 <= batch <= 128
    assert passes == 1 or EPOCHS * (passes - 1) * steps < MIN_STEPS
    assert passes_for(n, batch, "wide") == 2 * passes
    assert [augmentation_for(way) for way in ("any", "upright", "fixed")] == ["wide", "light", "light"]  # type: ignore[arg-type]


def test_what_is_too_small_is_said_with_how_many_and_what_to_do() -> None:
    parts = ["train"] * 120 + ["valid"] * 30 + ["calibration"] * 60 + ["test"] * 60
    enough = dataset(parts, [number % 3 for number in range(270)])
    assert describe_shortages(enough) == []
    assert class_counts(enough)["test"] == [20, 20, 20]
    rare = [2 if number in {0, 1, 200} else number % 2 for number in range(270)]
    (sentence,) = describe_shortages(dataset(parts, rare))
    assert "class c has 2 cells in train and 0 cells in test" in sentence
    assert "collect" in sentence
    (small,) = describe_shortages(dataset(parts[:-20], [number % 3 for number in range(250)]))
    assert "partition test has 40 cells of 20 patients" in small
    assert "collect 10 more" in small


def test_what_cannot_be_trained_on_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        ValueError, match=r"'valid' \(train 3, valid 0, .*3 cells, 2 patients\): at least four patients"
    ):
        require_two(dataset(["train"] * 3, [0, 1, 2]))
    with pytest.raises(ValueError, match="one class"):
        require_two(dataset(["train"] * 3 + ["valid"] * 3, [1, 1, 1, 0, 1, 2]))


def test_colours_and_textures_are_those_of_each_pixel() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (300, 9, 7, 3), dtype=np.uint8)
    pixels[0], pixels[1, ..., 1:] = 77, pixels[1, ..., :1]
    found = image_statistics(pixels)
    assert found.shape == (300, 24 + 72 + 12 + 20 + feature_columns(7, 3)["stain"].stop)
    for row in (0, 1, 255, 256, 299):
        shades = [np.mean(pixels[row, ..., c] // 32 == shade) for c in range(3) for shade in range(8)]
        np.testing.assert_allclose(found[row, :24] ** 2, shades, atol=1e-12)
        cells = np.zeros(72)
        for pixel in pixels[row].reshape(-1, 3) / 255:
            hue, *levels = colorsys.rgb_to_hsv(*pixel)
            cells[(min(int(hue * 8), 7) * 3 + min(int(levels[0] * 3), 2)) * 3 + min(int(levels[1] * 3), 2)] += 1 / 63
        np.testing.assert_allclose(found[row, 24:96] ** 2, cells, atol=1e-12)
    np.testing.assert_allclose(np.square(found[:, 96:128]).sum(axis=1), 4, atol=1e-9)
    assert image_statistics(pixels[..., :1]).shape[1] < found.shape[1]


@pytest.mark.parametrize("turns", range(4))
def test_textures_are_the_same_whichever_way_a_cell_lies(turns: int) -> None:
    pixels = np.stack([photo(seed, size=32) for seed in range(4)])
    turned = np.rot90(pixels, turns, axes=(1, 2))[:, :, ::-1]
    np.testing.assert_allclose(image_statistics(turned), image_statistics(pixels), atol=1e-5)
    flat = np.full((1, 32, 32, 3), 120, dtype=np.uint8)
    assert np.abs(image_statistics(flat)[0, 96:128] - image_statistics(pixels)[:, 96:128]).max(axis=1).min() > 0.1


def test_the_baseline_is_the_penalised_optimum() -> None:
    rng = np.random.default_rng(2)
    columns = np.hstack([rng.normal(size=(60, 4)), np.ones((60, 1))])
    counts = rng.integers(0, 3, (60, 3)).astype(float)
    weight = simple._fitted(columns, counts, 0.1, np.zeros((5, 3)), 300)

    def loss(flat: np.ndarray) -> float:
        w = flat.reshape(5, 3)
        return simple._nll(columns @ w, counts) + 0.05 * float((w[:-1] ** 2).sum())

    assert np.abs(approx_fprime(weight.ravel(), loss, 1e-7)).max() < 1e-4
    for _ in range(20):
        assert loss(weight.ravel() + 0.05 * rng.normal(size=15)) > loss(weight.ravel())


def test_the_baseline_tells_colours_apart_and_says_which_share_each_has() -> None:
    rng = np.random.default_rng(3)
    classes = rng.integers(0, 3, 240)
    pixels = rng.integers(0, 80, (240, 12, 12, 3), dtype=np.uint8)
    for row, k in enumerate(classes):
        if k < 2:  # the third class looks like either
            pixels[row, ..., k] += 150
        else:
            pixels[row, ..., row % 2] += 150
    data = dataset(["train"] * 160 + ["valid"] * 80, classes.tolist(), pixels)
    fitted = fit_baseline(data)
    assert isinstance(fitted, Baseline)
    probs = fitted(pixels)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
    assert probs[classes == 0, 1].max() < 0.1
    assert probs[classes < 2, 2].mean() == pytest.approx(1 / 3, abs=0.1)


def test_weights_of_classes_leave_the_best_probabilities_where_they_are() -> None:
    """The weighted loss is least at the true log odds: its gradient there is zero, whatever the weights."""
    rng = np.random.default_rng(4)
    truth = rng.dirichlet(np.ones(5), size=30)
    logits = torch.tensor(np.log(truth) + rng.normal(size=(30, 1)), requires_grad=True)
    weights = torch.tensor(rng.uniform(0.2, 5, 5))
    count_weighted_nll(logits, torch.tensor(truth), torch.log(weights)).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-12
    plain = count_weighted_nll(logits.detach(), torch.tensor(truth))
    assert count_weighted_nll(logits.detach(), torch.tensor(truth), torch.zeros(5)) == pytest.approx(float(plain))


def test_balancing_weighs_each_class_alike() -> None:
    counts = np.array([[40, 0, 0, 0], [0, 10, 0, 0], [0, 0, 10, 0]])
    whole = balancing_weights(counts, 1.0)
    np.testing.assert_allclose(whole[:3] * counts.sum(axis=0)[:3], 20)
    assert whole[3] == 1
    np.testing.assert_allclose(balancing_weights(counts, 0.5), np.sqrt(whole))
    np.testing.assert_allclose(balancing_weights(counts, 0.0), 1)


def test_recall_is_the_share_of_labels_that_are_led() -> None:
    rng = np.random.default_rng(5)
    counts, probs = rng.integers(0, 3, (50, 4)), rng.dirichlet(np.ones(4), 50)
    counts[:, 3] = 0
    probs[:10] = 0.25  # four leaders share
    found = class_recalls(counts, probs, list("abcd"))
    for k, row in enumerate(found):
        hits = sum(
            n * (0.25 if i < 10 else float(p.argmax() == k))
            for i, (n, p) in enumerate(zip(counts[:, k], probs, strict=True))
        )
        assert row["class"] == "abcd"[k]
        assert (row["n_labels"], row["n_cells"]) == (counts[:, k].sum(), (counts[:, k] > 0).sum())
        assert row["recall"] == (pytest.approx(hits / counts[:, k].sum()) if counts[:, k].any() else None)


def test_the_verdict_goes_by_the_interval() -> None:
    rng = np.random.default_rng(6)
    truth = rng.dirichlet(np.ones(3) * 0.5, 400)
    counts = np.stack([rng.multinomial(2, row) for row in truth])
    flat = np.full((400, 3), 1 / 3)
    groups = [str(number // 4) for number in range(400)]
    assert "better than" in baseline_verdict(compare_with_baseline(counts, flat, truth, "test", groups))
    assert "WORSE" in baseline_verdict(compare_with_baseline(counts, truth, flat, "test", groups))
    assert "no better than" in baseline_verdict(compare_with_baseline(counts, truth, truth, "test", groups))


@pytest.fixture(scope="module")
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred and twenty cells of two kinds, by sixty patients, one of them hardly ever seen."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "images").mkdir()
    rows = []
    for number, cell in enumerate(simulate_cells(120, seed=3, size=24)):
        (folder / "images" / f"cell-{number}.png").write_bytes(encode(cell.pixels))
        for who in ("anna", "ben")[: 1 + number % 2]:
            rows.append((f"cell-{number}", who, "rare" if number % 13 == 0 else "common", f"p{number // 2}"))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("case_id", "annotator", "label", "patient"), *rows])
    return folder


@pytest.mark.slow
def test_a_small_folder_is_trained_for_enough_steps_and_its_card_says_what_it_is(
    own_folder: Path, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "release"
    trained = run_here("train", "--data", own_folder, "--out", run, "--size", 16, "--threads", 1)
    assert trained.returncode == 0, trained.stderr
    assert "small: partition train has 72 cells of 36 patients" in trained.stderr
    assert "small: class rare has" in trained.stderr
    assert trained.stderr.index("small:") < trained.stderr.index("training compact")
    config = RunFolder(run).read_config()["train"]
    steps = config["epochs"] * config["passes"] * -(-72 // config["batch_size"])
    assert (config["epochs"], steps >= 2 * MIN_STEPS, config["augmentation"]) == (EPOCHS, True, "wide")
    assert "simple baseline" in trained.stdout
    for command in (("calibrate", run), ("export", run, "--out", out)):
        done = run_here(*command)
        assert done.returncode == 0, done.stderr
    text = (out / "README.md").read_text()
    assert "Labelled by 2 annotators: anna, ben." in text
    assert "| class | train | valid | calibration | test | recall | of held-out cells |" in text
    assert "simple baseline" in text
    few = run_here(
        "train", "--data", own_folder, "--out", tmp_path / "few", "--size", 16, "--epochs", 2, "--augmentation", "light"
    )
    assert few.returncode == 0, few.stderr
    trained_as = RunFolder(tmp_path / "few").read_config()["train"]
    assert (trained_as["passes"], trained_as["augmentation"]) == (1, "light")


@pytest.mark.slow
def test_the_card_figures_are_those_of_the_cached_outputs(trained_run: Path) -> None:
    folder = RunFolder(trained_run)
    recall, document = report_classes(folder, Calibration(Scaling(), None))
    assert document is not None
    cells = load_cells(300, seed=0)
    rows = cells.rows("test")
    assert (document["judged_on"], document["n_cells"], len(recall)) == ("test", len(rows), 8)
    again = fit_baseline(cells)(cells.pixels[rows])
    counts = cells.label_counts[rows]
    loss = 1 - 2 * (counts * again).sum() / counts.sum() + (again**2).sum(axis=1).mean()  # five labels each
    assert document["baseline"]["L"]["value"] == pytest.approx(loss, abs=1e-9)
    assert document["change"]["L"]["value"] == pytest.approx(
        document["network"]["L"]["value"] - document["baseline"]["L"]["value"], abs=1e-12
    )


SHARES = {"train": 0.6, "valid": 0.1, "calibration": 0.1, "test": 0.2}


@st.composite
def cells(draw: st.DrawFn) -> tuple[list[str], np.ndarray]:
    n_groups, n_classes = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    groups = draw(st.lists(st.integers(0, n_groups - 1), min_size=1, max_size=80))
    counts = draw(
        st.lists(
            st.lists(st.integers(0, 3), min_size=n_classes, max_size=n_classes),
            min_size=len(groups),
            max_size=len(groups),
        )
    )
    return [f"p{group}" for group in groups], np.array(counts).reshape(len(groups), n_classes)


@settings(deadline=None, max_examples=50)
@given(cells(), st.integers(0, 3))
def test_no_patient_is_split_and_no_partition_is_empty(data: tuple[list[str], np.ndarray], seed: int) -> None:
    groups, counts = data
    parts = stratified_partitions(groups, counts, SHARES, seed)
    assert set(parts.tolist()) <= set(SHARES)
    assert len(set(zip(groups, parts.tolist(), strict=True))) == len(set(groups))
    if len(set(groups)) >= len(SHARES):
        assert set(parts.tolist()) == set(SHARES)
    assert (parts == stratified_partitions(groups, counts, SHARES, seed)).all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=80))
def test_a_partition_is_over_its_share_by_less_than_the_largest_patient(numbers: list[int]) -> None:
    groups = [f"p{number}" for number in numbers]
    parts = stratified_partitions(groups, np.ones((len(groups), 1)), SHARES, 0)
    largest = max(groups.count(group) for group in groups)
    for name, share in SHARES.items():
        assert (parts == name).sum() <= share * len(groups) + largest


def test_rare_classes_reach_every_partition_where_a_plain_split_loses_them() -> None:
    rng = np.random.default_rng(0)
    missed = {"plain": 0, "stratified": 0}
    for seed in range(40):
        groups = [f"p{number // 4}" for number in range(240)]
        classes = rng.choice(4, size=240, p=[0.7, 0.2, 0.06, 0.04])
        counts = np.eye(4, dtype=int)[classes]
        for kind, parts in (
            ("plain", split_partitions(groups, SHARES, seed)),
            ("stratified", stratified_partitions(groups, counts, SHARES, seed)),
        ):
            missed[kind] += sum(counts[parts == name].sum(axis=0)[k] == 0 for name in SHARES for k in (2, 3))
    assert missed["stratified"] < missed["plain"] / 4
    assert missed["plain"] > 20
