"""Training on a small folder: enough steps, a word before, weights of rare classes, the simple baseline beside it."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime

from ml.calibration.calibrators import Calibration
from ml.calibration.scaling import Scaling
from ml.datasets.base import ClassInfo, ImageDataset
from ml.datasets.cells import load_cells, simulate_cells
from ml.images.preprocess import Preprocessing
from ml.release.card import baseline_verdict
from ml.training import report as simple
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
from ml.training.report import Baseline, class_recalls, compare_with_baseline, fit_baseline, histograms, report_classes
from ml.training.run_folder import RunFolder
from tests.support.command import run_here
from tests.support.images import encode


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


def test_histograms_count_every_pixel() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (300, 5, 7, 3), dtype=np.uint8)
    found = histograms(pixels)
    assert found.shape == (300, 88)
    for row in (0, 255, 256, 299):
        expected = [np.mean(pixels[row, ..., c] // 32 == shade) for c in range(3) for shade in range(8)]
        cube = pixels[row].reshape(-1, 3) // 64
        expected += [np.mean((cube == (r, g, b)).all(axis=1)) for r in range(4) for g in range(4) for b in range(4)]
        np.testing.assert_allclose(found[row] ** 2, expected, atol=1e-12)
    assert histograms(pixels[..., :1]).shape == (300, 8)


def test_the_baseline_is_the_penalised_optimum() -> None:
    rng = np.random.default_rng(2)
    columns = np.hstack([rng.normal(size=(60, 4)), np.ones((60, 1))])
    counts = rng.integers(0, 3, (60, 3)).astype(float)
    weight = simple._fitted(columns, counts, 0.1, np.zeros((5, 3)))

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
    assert probs[classes == 0, 1].max() < 0.05
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
