"""Shift suite: a release's flags and losses on standard shifts of held-out images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ml.charts.rows import ShiftPoint
from ml.images.preprocess import Pixels
from ml.images.standard_shifts import shifted, shifts_for
from ml.metrics.cases import agreement_terms
from ml.release.predictor import Prediction, Predictor
from ml.util.arrays import FloatArray, IntArray

#: Strengths by the word that names them: 1 is the standard shift.
STRENGTHS = {"mild": (0.1, 0.5), "standard": (1.0, 1.0)}
UNSHIFTED, OTHER = "unshifted", "another data set"


@dataclass(frozen=True)
class _Terms:
    agreement: FloatArray
    loss: FloatArray


def _terms(label_counts: IntArray, prediction: Prediction) -> _Terms:
    labelled = label_counts.sum(axis=1) > 0
    counts, probs = label_counts[labelled], prediction.distribution.class_probs[labelled]
    freqs = counts / counts.sum(axis=1, keepdims=True)
    loss = 1 + np.square(probs).sum(axis=1) - 2 * (freqs * probs).sum(axis=1)
    return _Terms(agreement_terms(freqs, probs), loss)


def _row(kind: str, strength: str, prediction: Prediction, terms: _Terms | None, plain: _Terms | None) -> ShiftPoint:
    has_labels = terms is not None and len(terms.agreement) > 0
    change = terms.agreement - plain.agreement if has_labels and terms and plain is not None else None
    several = change is not None and len(change) > 1
    return {
        "kind": kind,
        "strength": strength,
        "n": len(prediction.logits),
        "flagged": float(prediction.out_of_distribution.mean()),
        "agreement": float(terms.agreement.mean()) if has_labels and terms else None,
        "agreement_change": None if change is None else float(change.mean()),
        "agreement_change_se": float(change.std(ddof=1) / np.sqrt(len(change)))
        if several and change is not None
        else None,
        "loss": float(terms.loss.mean()) if has_labels and terms else None,
        "mean_disagreement": float(prediction.distribution.disagreement_probs.mean()),
    }


def _series(pixels: Pixels, seed: int) -> Iterator[tuple[str, str, Pixels]]:
    for number, shift in enumerate(shifts_for(pixels.shape[-1])):
        for word, strengths in STRENGTHS.items():
            yield shift.name, word, shifted(pixels, shift, strengths, seed + number)[0]


def shift_suite(
    predictor: Predictor,
    pixels: Pixels,
    label_counts: IntArray,
    other: Pixels | None = None,
    observer: Callable[[int, int], None] = lambda done, total: None,
    *,
    seed: int = 0,
) -> list[ShiftPoint]:
    """Predict pixels (N, H, W, C) plain, shifted, and of another data set."""
    plain = predictor.predict(list(pixels))
    plain_terms = _terms(label_counts, plain)
    rows = [_row(UNSHIFTED, "none", plain, plain_terms, None)]
    total = 1 + len(shifts_for(pixels.shape[-1])) * len(STRENGTHS) + (other is not None)
    observer(1, total)
    for kind, strength, images in _series(pixels, seed):
        prediction = predictor.predict(list(images))
        rows.append(_row(kind, strength, prediction, _terms(label_counts, prediction), plain_terms))
        observer(len(rows), total)
    if other is not None:
        rows.append(_row(OTHER, "none", predictor.predict(list(other)), None, None))
        observer(len(rows), total)
    return rows
