"""A full evaluation (every metric, no jackknife) beside the authors' code, the paper's formulas and two libraries.

    python -m benchmarks.evaluation --save

The authors' code runs as it is, from ``build/lh_calib``, and is cloned to there at the first run; without it that row
is left out with a message. The paper's formulas are written here as they stand, metric by metric and bin by bin.
Neither torchmetrics nor scikit-learn knows label histograms: they get the most frequent label and compute an expected
calibration error and a Brier score, a small part of what the accumulator computes.
"""

import importlib
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.harness import ROOT, Figures, interleaved, main, spend
from ml.metrics import evaluate
from ml.metrics.accumulator import Accumulator

K, ROUNDS = 22, 7
AUTHORS = ROOT / "build" / "lh_calib"
#: What the accumulator and the authors' code define alike; they bound the bins' bias otherwise (``statistics``).
ALIKE = {
    "L": "ps",
    "EL_plugin": "el_plugin",
    "EL": "el_debias",
    "CL_plugin": "cl_plugin",
    "L_D": "d_bs",
    "CL_D_plugin": "d_cl_plugin",
}
_THEIR_ADDRESS = "https://github.com/m1m0r1/lh_calib"


def problem(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    gammas = rng.standard_gamma(0.3, (n, K)) + 1e-12
    probs = gammas / gammas.sum(axis=1, keepdims=True)
    counts = rng.multinomial(5, probs).astype(np.int64)
    return counts, probs, rng.uniform(0, 1, n)


def accumulate(counts: np.ndarray, probs: np.ndarray, dpe: np.ndarray) -> None:
    acc = Accumulator(K)
    acc.update(counts, probs, dpe)
    acc.compute()


def with_formulas(counts: np.ndarray, probs: np.ndarray, dpe: np.ndarray) -> None:
    """L, EL, CL, DL of the classes and L, CL of disagreement (§4.1 and 4.3), each by its formula."""
    n = counts.sum(axis=1)
    freqs = counts / n[:, None]
    squared = ((freqs - probs) ** 2 + freqs * (1 - freqs)).sum(axis=1).mean()
    epistemic = ((freqs - probs) ** 2 - freqs * (1 - freqs) / (n[:, None] - 1)).sum(axis=1).mean()
    calibration = sum(binned(freqs[:, k], probs[:, k]) for k in range(K))
    differ = 1 - (counts * (counts - 1)).sum(axis=1) / (n * (n - 1))
    disagreement = ((differ - dpe) ** 2 + differ * (1 - differ)).mean()
    _ = squared, epistemic, calibration, epistemic - calibration, disagreement, binned(differ, dpe)


def binned(freq: np.ndarray, prob: np.ndarray, bins: int = 15) -> float:
    """Debiased calibration loss of one probability (§4.1), bin by bin."""
    at, total = np.clip(np.digitize(prob, np.arange(bins + 1) / bins) - 1, 0, bins - 1), 0.0
    for b in range(bins):
        inside = at == b
        size = inside.sum()
        if size > 1:
            f, z = freq[inside], prob[inside]
            total += size * ((f.mean() - z.mean()) ** 2 - f.var() / (size - 1))
    return total / len(prob)


def by_patient(counts: np.ndarray, probs: np.ndarray, dpe: np.ndarray) -> None:
    evaluate(counts, probs, dpe, cluster=np.arange(len(dpe)) // 4)


def authors_code() -> Callable[..., dict[str, float]] | None:
    """Their summary of a predicted histogram, accuracy and both orders; None if their code cannot be had."""
    if not AUTHORS.exists():
        clone = ["git", "clone", "--quiet", "--depth", "1", _THEIR_ADDRESS, str(AUTHORS)]
        if subprocess.run(clone, check=False, capture_output=True, timeout=120).returncode:
            print(f"the authors' code: left out; it is not in {AUTHORS} and cannot be cloned from {_THEIR_ADDRESS}")
            return None
    sys.path.append(str(AUTHORS))
    try:
        theirs = importlib.import_module("lh_calib.evaluation")
    except ImportError as exc:
        print(f"the authors' code: left out, {exc}")
        return None

    class Predicted:
        def __init__(self, probs: np.ndarray, dpe: np.ndarray) -> None:
            self.probs, self.agreement = probs, 1 - dpe

        def get_probs(self) -> np.ndarray:
            return self.probs

        def get_agreement_probs(self) -> np.ndarray:
            return self.agreement

    def summarise(counts: np.ndarray, probs: np.ndarray, dpe: np.ndarray) -> dict[str, float]:
        with warnings.catch_warnings(action="ignore"):
            summary = theirs.LHEval(theirs.LabelHist(counts), Predicted(probs, dpe)).summarize()
        return {name: float(value) for name, value in summary.iloc[0].items()}

    return summarise


def furthest(theirs: dict[str, float], data: tuple[np.ndarray, np.ndarray, np.ndarray]) -> float:
    """The largest difference of what both define alike, relative to the larger of the two."""
    acc = Accumulator(K)
    acc.update(*data)
    ours = acc.compute()
    return max(abs(ours[own] - theirs[name]) / abs(ours[own]) for own, name in ALIKE.items())


def with_torchmetrics(counts: np.ndarray, probs: np.ndarray, dpe: np.ndarray) -> None:
    import torch
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

    p, y = torch.from_numpy(probs), torch.from_numpy(counts.argmax(axis=1))
    multiclass_calibration_error(p, y, num_classes=K, n_bins=15, norm="l2")
    multiclass_accuracy(p, y, num_classes=K, average="micro")


def with_sklearn(counts: np.ndarray, probs: np.ndarray, dpe: np.ndarray) -> None:
    from sklearn.calibration import calibration_curve
    from sklearn.metrics import accuracy_score, brier_score_loss

    y = counts.argmax(axis=1)
    for k in range(K):
        calibration_curve(y == k, probs[:, k], n_bins=15)
        brier_score_loss(y == k, probs[:, k])
    accuracy_score(y, probs.argmax(axis=1))


def all_rivals(theirs: Callable[..., object] | None) -> dict[str, Callable[..., object]]:
    """What is timed: ours in two ways, and whatever of the others is at hand."""
    import ml.util.torchvision_ops  # noqa: F401  torchmetrics imports torchvision, whose CUDA build lacks operators here

    rivals: dict[str, Callable[..., object]] = {"secondread, all metrics": accumulate}
    rivals["every interval, by patients of four cases"] = by_patient
    if theirs is not None:
        rivals["the authors' code"] = theirs
    for name, package, run in (
        ("the paper's formulas", "numpy", with_formulas),
        ("torchmetrics, ECE and accuracy", "torchmetrics", with_torchmetrics),
        ("scikit-learn, curve and Brier a class", "sklearn", with_sklearn),
    ):
        try:
            __import__(package)
        except ImportError:
            print(f"{name}: not installed, left out (pip install torchmetrics scikit-learn)")
            continue
        rivals[name] = run
    return rivals


def measure(quick: bool) -> Figures:
    """Seconds of each rival for so many cases, and memory of ours."""
    theirs = authors_code() if AUTHORS.exists() or not quick else None  # a quick run fetches nothing
    figures: Figures = {}
    sizes = (2_000,) if quick else (100_000, 300_000, 1_000_000)
    rivals = all_rivals(theirs)
    for n in sizes:
        data = problem(n)
        works = {name: partial(run, *data) for name, run in rivals.items()}
        figures[f"N={n}"] = interleaved(works, 1 if quick else ROUNDS)
    data = problem(sizes[0])
    if theirs is not None:
        figures["furthest from the authors' code"] = furthest(theirs(*data), data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accumulate(*data)
    figures["megabytes beyond the inputs"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    figures[f"with intervals, N={sizes[0]}"] = spend(lambda: evaluate(*data)).processor
    return figures


if __name__ == "__main__":
    main(__doc__, {"evaluation": measure})
