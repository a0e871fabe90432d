"""Latent morphology of simulated white cells and the true label distribution that follows from it.

Cells lie on real continua: a granulocyte's nucleus goes from round over kidney and horseshoe to separate
lobes (immature granulocyte ↔ band ↔ segmented), mononuclear cells from small and dense over large and pale
(lymphocyte ↔ monocyte) or large and open (↔ blast), granules from fine to orange (eosinophil) or dark
(basophil). Experts' label distribution q is a softmax of distances along these axes; poor focus flattens it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from ml.datasets.base import ClassInfo
from ml.util.arrays import FloatArray

CLASSES = (
    ClassInfo("blast", "Blast", "b", "Immature"),
    ClassInfo("lymphocyte", "Lymphocyte", "l", "Mononuclear"),
    ClassInfo("monocyte", "Monocyte", "m", "Mononuclear"),
    ClassInfo("immature_granulocyte", "Immature granulocyte", "i", "Immature"),
    ClassInfo("band_neutrophil", "Band neutrophil", "n", "Granulocytes"),
    ClassInfo("segmented_neutrophil", "Segmented neutrophil", "g", "Granulocytes"),
    ClassInfo("eosinophil", "Eosinophil", "e", "Granulocytes"),
    ClassInfo("basophil", "Basophil", "o", "Granulocytes"),
)


@dataclass(frozen=True)
class Morphology:
    """Morphology of a simulated cell; every value is visible in its image.

    Attributes:
        granulocyte: True for the granulocyte line, False for mononuclear cells.
        maturity: 0 round nucleus to 1 separate lobes (granulocytes).
        monocytic: 0 lymphocyte to 1 monocyte: size, cytoplasm, indentation (mononuclear cells).
        blastic: 0 clumped to 1 open chromatin with nucleoli, scant deep-blue cytoplasm (mononuclear cells).
        orange: eosinophil granules, 0 to 1.
        dark: basophil granules, 0 to 1.
        lobes: number of lobes of a mature nucleus.
        radius: of the cell, µm.
        blur: standard deviation of the defocus, µm.
    """

    granulocyte: bool
    maturity: float
    monocytic: float
    blastic: float
    orange: float
    dark: float
    lobes: int
    radius: float
    blur: float


def draw_morphology(rng: np.random.Generator) -> Morphology:
    """Draw one cell: about 60 % granulocytes, of which a quarter eosinophil or basophil."""
    granulocyte = bool(rng.random() < 0.62)
    maturity = float(rng.beta(1.1, 0.9)) if granulocyte else 0.0
    orange = dark = monocytic = blastic = 0.0
    if granulocyte:
        kind = rng.random()
        if kind < 0.17:
            orange, maturity = float(rng.beta(2.5, 0.8)), 0.45 + 0.5 * maturity
        elif kind < 0.30:
            dark, maturity = float(rng.beta(2.5, 0.8)), 0.35 + 0.5 * maturity
        radius = 6.6 - 0.7 * maturity + rng.normal(0, 0.3)
    else:
        monocytic = float(rng.beta(0.7, 0.9))
        blastic = float(rng.beta(0.55, 1.3))
        radius = 4.6 + 3.2 * monocytic * (1 - 0.4 * blastic) + 1.7 * blastic * (1 - monocytic) + rng.normal(0, 0.25)
    blur = float(0.07 + 0.14 * rng.beta(1.2, 3.0))
    lobes = int(rng.choice([2, 3, 4, 5], p=[0.2, 0.45, 0.28, 0.07]))
    if orange > 0.4:
        lobes = 2
    return Morphology(granulocyte, maturity, monocytic, blastic, orange, dark, lobes, float(radius), blur)


def true_class_probs(cell: Morphology) -> FloatArray:
    """Label distribution q (K,) of an infinite pool of experts for this cell."""
    scores = np.full(len(CLASSES), -9.0)
    if cell.granulocyte:
        scores[3] = 14 * (0.36 - cell.maturity)
        scores[4] = 14 * min(cell.maturity - 0.36, 0.64 - cell.maturity)
        scores[5] = 14 * (cell.maturity - 0.64)
        scores[3:6] = np.maximum(scores[3:6], -9.0)
        scores[6] = 8 * (cell.orange - 0.42) + scores[3:6].max() + 0.5
        scores[7] = 8 * (cell.dark - 0.40) + scores[3:6].max() + 0.5
        scores[2] = max(-9.0, -2.2 - 9 * abs(cell.maturity - 0.25))
    else:
        scores[0] = 6.5 * (cell.blastic - 0.46)
        scores[1] = 6.5 * (0.46 - cell.monocytic) * (1 - 0.6 * cell.blastic)
        scores[2] = 6.5 * (cell.monocytic - 0.46) * (1 - 0.5 * cell.blastic)
        scores[3] = -3.5 - 4 * abs(cell.monocytic - 0.6)
    temperature = 0.8 + 4.0 * (cell.blur - 0.07)
    return np.asarray(softmax(scores / temperature))
