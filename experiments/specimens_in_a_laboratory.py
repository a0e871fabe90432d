"""Shares of specimens in a simulated laboratory whose annotators tilt, and whose patients' cells err together.

The release knows how kinds of cells look, but every patient has a mix of their own, and a shift of the logits that all
of the patient's cells share. Experts disagree about a cell, most about bands and segmented cells, which matter to no
threshold. Annotators tilt: each calls some classes more often than the others do. Shown: coverage of the slide's share
once completely read specimens of other patients have taught the overdispersion, and the loss of decisions about blasts
after a few reads, chosen in several ways.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax, softmax

from ml.distributions.families import DirichletCpe
from ml.specimens.cells import Group, Specimen, Threshold
from ml.util.arrays import FloatArray, IntArray

CLASSES = ("blast", "reactive", "lymphocyte", "band", "segmented", "monocyte", "eosinophil", "other")
#: Class frequencies of the calibration cells, which are those of the training laboratory.
MIX = np.array([0.06, 0.06, 0.20, 0.10, 0.40, 0.10, 0.05, 0.03])
#: Strength with which a patient's mix resembles it.
KAPPA = 2.0
N_CELLS, N_ANNOTATORS = 100, 12
#: Standard deviation of an annotator's tilt on the log-odds of each class.
TILT = 0.3
# distance of the kinds in units of the noise, and of those that are alike
_APART, _ALIKE = 4.0, 2.0
_PAIRS = ((0, 1), (3, 4))
#: Thresholds of the share of blasts; a miss costs as much as four false alarms.
BLASTS = Group("blasts", ("blast",), (Threshold(0.05, 4.0), Threshold(0.2, 4.0)))


@dataclass(frozen=True)
class Patient:
    """A specimen with what nobody in the laboratory knows."""

    specimen: Specimen
    experts: FloatArray  # (n, K) what experts think of each cell
    panel: FloatArray  # (n, K) what all annotators together answer
    share: float  # of blasts by the panel, in the patient's blood


class World:
    """Annotators, looks of cells, and patients."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([39, seed])
        self.tilts = rng.normal(0, TILT, (N_ANNOTATORS, len(CLASSES)))
        self.looks = _APART / np.sqrt(2) * np.eye(len(CLASSES))
        for one, other in _PAIRS:
            middle, half = self.looks[[one, other]].mean(axis=0), _ALIKE / np.sqrt(8)
            direction = np.sqrt(2) / _APART * (self.looks[one] - self.looks[other])
            self.looks[one], self.looks[other] = middle + half * direction, middle - half * direction
        kinds = np.repeat(np.arange(len(CLASSES)), 4000)
        _, experts = self._cells(rng, kinds)
        #: What the panel answers about a kind of cell, on average.
        self.answers = self.answered(experts).mean(axis=0).reshape(len(CLASSES), 4000, -1).mean(axis=1)

    def _cells(self, rng: np.random.Generator, kinds: IntArray) -> tuple[FloatArray, FloatArray]:
        """Log probabilities of cells under the calibration mix, and what experts think of them."""
        seen = self.looks[kinds] + rng.normal(0, 1, (len(kinds), len(CLASSES)))
        distances = ((seen[:, None] - self.looks) ** 2).sum(axis=2)
        logs = np.asarray(log_softmax(np.log(MIX) - distances / 2, axis=1))
        gammas = rng.standard_gamma(_concentration(np.exp(logs))[:, None] * np.exp(logs) + np.eye(len(CLASSES))[kinds])
        return logs, gammas / gammas.sum(axis=1, keepdims=True)

    def answered(self, experts: FloatArray) -> FloatArray:
        """Distribution (A, n, K) of each annotator's answer."""
        return np.asarray(softmax(np.log(experts + 1e-12) + self.tilts[:, None], axis=2))

    def patient(self, key: str, rng: np.random.Generator, shift: float) -> Patient:
        """Draw a patient whose cells share a shift of the logits with this standard deviation."""
        mix = rng.dirichlet(KAPPA * MIX)
        logs, experts = self._cells(rng, rng.choice(len(CLASSES), N_CELLS, p=mix))
        alpha = _concentration(np.exp(logs))
        served = softmax(logs + rng.normal(0, shift, len(CLASSES)), axis=1)
        cells = tuple(f"{row:03d}" for row in range(N_CELLS))
        one = Specimen(key, cells, CLASSES, DirichletCpe(served, np.log(alpha)), MIX)
        return Patient(one, experts, self.answered(experts).mean(axis=0), float((mix @ self.answers)[0]))

    def labels(self, experts: FloatArray, annotators: IntArray, rng: np.random.Generator) -> IntArray:
        """Answers about cells (n, K), each by one annotator."""
        below = self.answered(experts)[annotators, np.arange(len(experts))].cumsum(axis=1)
        return np.asarray((rng.random((len(experts), 1)) > below[:, :-1]).sum(axis=1))


def _concentration(probs: FloatArray) -> npt.NDArray[np.float64]:
    """α of cells: experts split on bands and segmented cells, and a label there shows little."""
    return 2 + 10 * probs[:, 3:5].sum(axis=1)
