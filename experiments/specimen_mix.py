"""Which mix a release is calibrated for: by labels of its calibration cells, by predictions, or by both.

A specimen's own mix π weighs each cell by f π / m. Simulated: six classes, of which the first is rare; a network that
was trained for the laboratory's mix or for equally many cells of each class, and is exact, or states the odds of the
rare class twice too high; m from 60 or 1,000 calibration cells with a label each: frequencies of labels, mean of the
predictions, or what fits both. Shown: the mean share of the rare class in specimens, and how many are decided to be
above 5 %.
"""

import numpy as np
import numpy.typing as npt

from experiments import reproduce_from_arguments
from ml.calibration.calibrators import calibration_mix
from ml.distributions.families import PointCpe, softmax_probs
from ml.reproduce.report import Reproduction, Setting
from ml.reproduce.scoring import markdown_table
from ml.specimens.cells import Group, Specimen, Threshold
from ml.specimens.shares import measure_specimen
from ml.util.arrays import FloatArray

MIX = np.array([0.01, 0.04, 0.1, 0.2, 0.25, 0.4])
CLASSES = tuple(f"class {k}" for k in range(len(MIX)))
RARE = Group("rare", CLASSES[:1], (Threshold(0.05),))
N_CELLS, N_SPECIMENS = 200, 20
#: Distance of the classes in units of the noise, factor of the odds of the rare class, and mix of the training.
NETWORKS = ((2.0, 1.0, "own"), (2.0, 2.0, "own"), (3.0, 1.0, "own"), (3.0, 2.0, "own"), (2.0, 1.0, "even"))
TRAINING = {"own": MIX, "even": np.full(len(MIX), 1 / len(MIX))}
WAYS = ("labels", "predictions", "both")
CALIBRATION_CELLS, SHARES = (60, 1_000), (0.003, 0.02)


def predict(
    rng: np.random.Generator, classes: npt.NDArray[np.intp], apart: float, odds: float, trained: str
) -> FloatArray:
    """Probabilities (n, K) by the network."""
    evidence = rng.normal(size=(len(classes), len(MIX))) + apart * np.eye(len(MIX))[classes]
    bias = np.log(TRAINING[trained]) + np.log(np.where(np.arange(len(MIX)) == 0, odds, 1.0))
    return softmax_probs(apart * evidence + bias)


def mean_with_half_a_cell(rows: FloatArray) -> FloatArray:
    """Mean (K,) of rows (n, K), half a row of equal parts added."""
    return np.asarray((rows.sum(axis=0) + 0.5 / rows.shape[1]) / (len(rows) + 0.5))


def compare(
    apart: float, odds: float, trained: str, n_calibration: int, share: float, n_specimens: int
) -> dict[str, object]:
    """Mean share, and part of the specimens above the threshold, by each mix."""
    shares: dict[str, list[float]] = {way: [] for way in WAYS}
    above: dict[str, list[bool]] = {way: [] for way in WAYS}
    inside = np.r_[share, MIX[1:] / MIX[1:].sum() * (1 - share)]
    for number in range(n_specimens):
        rng = np.random.default_rng([number, n_calibration])
        classes = rng.choice(len(MIX), n_calibration, p=MIX)
        labels, probs = np.eye(len(MIX), dtype=np.int64)[classes], predict(rng, classes, apart, odds, trained)
        mixes = mean_with_half_a_cell(labels), mean_with_half_a_cell(probs), calibration_mix(probs, labels)
        prior = PointCpe(predict(rng, rng.choice(len(MIX), N_CELLS, p=inside), apart, odds, trained))
        cells = tuple(f"{row:03d}" for row in range(N_CELLS))
        for way, mix in zip(WAYS, mixes, strict=True):
            one = Specimen(f"{share} {number}", cells, CLASSES, prior, mix, target="label")
            measured = measure_specimen(one, [RARE]).groups[0]
            shares[way].append(measured.patient.share)
            above[way].append(measured.thresholds[0].decision == "above")
    return {
        "trained for": trained,
        "apart": apart,
        "odds": odds,
        "calibration cells": n_calibration,
        "true share": share,
        **{f"share by {way}": float(np.mean(values)) for way, values in shares.items()},
        **{f"above 5 % by {way}": float(np.mean(values)) for way, values in above.items()},
    }


def reproduce(setting: Setting) -> Reproduction:
    """One table."""
    n_specimens = 2 if setting.quick else N_SPECIMENS
    cases = [(*network, n, share) for network in NETWORKS for n in CALIBRATION_CELLS for share in SHARES]
    rows = []
    for done, case in enumerate(cases[:2] if setting.quick else cases):
        setting.observer("specimens", done, len(cases))
        rows.append(compare(*case, n_specimens))
    columns = list(rows[0])
    written = [[value if isinstance(value, str) else f"{value:.4g}" for value in row.values()] for row in rows]
    text = f"{n_specimens} specimens of {N_CELLS} cells per row, each with calibration cells of its release.\n\n"
    text += markdown_table(" | ".join(columns), written) + "\n"
    return Reproduction("The mix that a release is calibrated for", rows, text, {})


def main() -> None:
    reproduce_from_arguments("specimen-mix", __doc__ or "", reproduce)


if __name__ == "__main__":
    main()
