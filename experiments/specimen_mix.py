"""Which mix a release is calibrated for: by the labels of its calibration cells, or by their predictions.

A specimen's own mix π weighs each cell by f π / m. Simulated: six classes, of which the first is rare; a network that
is exact, or that states the odds of the rare class twice too high; m from 60 or 1,000 calibration cells with a label
each. Shown: the mean share of the rare class in specimens, and how many are decided to be above 5 %.
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
#: Distance of the classes in units of the noise, and factor of the odds of the rare class.
NETWORKS = ((2.0, 1.0), (2.0, 2.0), (3.0, 1.0), (3.0, 2.0))
CALIBRATION_CELLS, SHARES = (60, 1_000), (0.003, 0.02)


def predict(rng: np.random.Generator, classes: npt.NDArray[np.intp], apart: float, odds: float) -> FloatArray:
    """Probabilities (n, K) by the network, which is calibrated for ``MIX`` if its odds are right."""
    logits = rng.normal(size=(len(classes), len(MIX))) + apart * np.eye(len(MIX))[classes]
    return softmax_probs(np.log(MIX) + apart * logits + np.log(np.where(np.arange(len(MIX)) == 0, odds, 1.0)))


def compare(apart: float, odds: float, n_calibration: int, share: float, n_specimens: int) -> dict[str, object]:
    """Mean share, and part of the specimens above the threshold, by either mix."""
    shares: dict[str, list[float]] = {"labels": [], "predictions": []}
    above: dict[str, list[bool]] = {"labels": [], "predictions": []}
    inside = np.r_[share, MIX[1:] / MIX[1:].sum() * (1 - share)]
    for number in range(n_specimens):
        rng = np.random.default_rng([number, n_calibration])
        labels = rng.choice(len(MIX), n_calibration, p=MIX)
        mixes = {
            "labels": calibration_mix(np.eye(len(MIX))[labels]),
            "predictions": calibration_mix(predict(rng, labels, apart, odds)),
        }
        prior = PointCpe(predict(rng, rng.choice(len(MIX), N_CELLS, p=inside), apart, odds))
        cells = tuple(f"{row:03d}" for row in range(N_CELLS))
        for name, mix in mixes.items():
            one = Specimen(f"{share} {number}", cells, CLASSES, prior, mix, target="label")
            found = measure_specimen(one, [RARE]).groups[0]
            shares[name].append(found.patient.share)
            above[name].append(found.thresholds[0].decision == "above")
    return {
        "apart": apart,
        "odds": odds,
        "calibration cells": n_calibration,
        "true share": share,
        **{f"share by {name}": float(np.mean(values)) for name, values in shares.items()},
        **{f"above 5 % by {name}": float(np.mean(values)) for name, values in above.items()},
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
    written = [[f"{row[column]:.4g}" for column in columns] for row in rows]
    text = f"{n_specimens} specimens of {N_CELLS} cells per row, each with calibration cells of its release.\n\n"
    text += markdown_table(" | ".join(columns), written) + "\n"
    return Reproduction("The mix that a release is calibrated for", rows, text, {})


def main() -> None:
    reproduce_from_arguments("specimen-mix", __doc__ or "", reproduce)


if __name__ == "__main__":
    main()
