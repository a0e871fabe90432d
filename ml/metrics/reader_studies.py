"""Reader studies with known truth: percent correct and AUC, for new readers and new cases.

Both are U-statistics of the readings, so the covariance of two readers' scores, which comes from the cases they share,
is estimated without bias from the same sums. The variance of the mean over R readers is (MS_R + R c)/R, MS_R the mean
square of the readers' scores and c the mean covariance of two readers; Student's t has
(MS_R + R c)² / (MS_R² / (R − 1)) degrees of freedom.

Sources: Gallas 2006, Acad. Radiol. 13:353 (one-shot estimate); Gallas, Pennello and Myers 2007, J. Opt. Soc. Am. A
24:B70 (percent correct); Obuchowski and Rockette 1995, Commun. Stat. Simul. Comput. 24:285; Hillis 2007, Stat. Med.
26:596 (degrees of freedom).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from ml.dataframes import column_names
from ml.util.arrays import EqualByValue, FloatArray


@dataclass(frozen=True, eq=False)
class ReaderMean(EqualByValue):
    """Mean of a score over readers, for readers and cases like these.

    Attributes:
        value: mean over the readers.
        se: standard error.
        df: degrees of freedom.
        low: lower end of the 95 % interval, not below the score's range.
        high: upper end.
        reader_mean_square: mean square of the readers' scores.
        covariance: mean covariance of two readers' scores by the cases that they share.
        scores: (R,) of each reader.
    """

    value: float
    se: float
    df: float
    low: float
    high: float
    reader_mean_square: float
    covariance: float
    scores: FloatArray


def percent_correct(correct: npt.ArrayLike, *, minus: npt.ArrayLike | None = None) -> ReaderMean:
    """Share of correct answers, mean over readers: p̂ = 1/R Σ_r Σ_i x_ri / N_r.

    The product of two readers' expectations is estimated by pairs of different cases, (S_r S_s − Σ_i x_ri x_si) over
    their number (Gallas, Pennello and Myers 2007).

    Args:
        correct: (R, N) 1 or 0 for each reading, NaN where the reader did not read the case.
        minus: (R, N) the same with another modality, whose share is taken off.

    Returns:
        The mean with its interval, in [0, 1], or in [−1, 1] of a difference.

    Raises:
        ValueError: shapes that do not match, fewer than three readers, a reader with fewer than two cases, or values
            that are not 0 or 1.

    >>> study = percent_correct([[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]])
    >>> round(study.value, 4), round(study.se, 4), round(study.df, 2)
    (0.75, 0.1863, 5.56)
    """
    first = _readings(correct, "correct")
    values, read = _difference(first, minus)
    if not np.isin(first[~np.isnan(first)], (0.0, 1.0)).all():
        raise ValueError("correct must be 1, 0 or NaN")
    total, number = values.sum(axis=1), read.sum(axis=1)
    pairs = np.outer(number, number) - read @ read.T
    if (np.diag(pairs) <= 0).any():
        raise ValueError("every reader needs two cases")
    apart = (np.outer(total, total) - values @ values.T) / np.where(pairs > 0, pairs, 1.0)
    return _reader_mean(total / number, apart, -1.0 if minus is not None else 0.0)


def area_under_curve(ratings: npt.ArrayLike, truth: npt.ArrayLike, *, minus: npt.ArrayLike | None = None) -> ReaderMean:
    """Area under the empirical ROC curve, mean over readers: Â_r = mean of 1[x > y] + 1[x = y]/2 over pairs of cases.

    x are ratings of diseased cases, y those of others. The product of two readers' expectations is estimated by pairs
    of pairs that share neither case (Gallas 2006).

    Args:
        ratings: (R, N) NaN where the reader did not read the case; larger: more likely diseased.
        truth: (N,) 1 of diseased cases, 0 of others.
        minus: (R, N) ratings with another modality, whose area is taken off.

    Returns:
        The mean with its interval, in [0, 1], or in [−1, 1] of a difference.

    Raises:
        ValueError: shapes that do not match, fewer than three readers, or a reader with fewer than two cases of a kind.

    >>> study = area_under_curve([[1, 2, 3, 4], [2, 1, 2, 3], [1, 3, 2, 4]], [0, 0, 1, 1])
    >>> round(study.value, 4), [round(float(score), 3) for score in study.scores]
    (0.875, [1.0, 0.875, 0.75])
    """
    first = _readings(ratings, "ratings")
    ill = np.asarray(truth) == 1
    if ill.shape != (first.shape[1],):
        raise ValueError(f"truth must have shape ({first.shape[1]},), got {ill.shape}")
    kernel, read = _wins(first, ill)
    if minus is not None:
        other = _readings(minus, "minus")
        if other.shape != first.shape:
            raise ValueError(f"minus must have shape {first.shape}, got {other.shape}")
        less, also = _wins(other, ill)
        read = read * also
        kernel = (kernel - less) * read
    pairs = _unshared(read)
    if (np.diag(pairs) <= 0).any():
        raise ValueError("every reader needs two cases with and two without the disease")
    scores = kernel.sum(axis=(1, 2)) / read.sum(axis=(1, 2))
    return _reader_mean(scores, _unshared(kernel) / np.where(pairs > 0, pairs, 1.0), -1.0 if minus is not None else 0.0)


def _readings(values: npt.ArrayLike, name: str) -> FloatArray:
    """Readings (R, N)."""
    if column_names(values) is not None:
        raise ValueError(f"{name} has named columns: pass an array with a row per reader and the cases in one order")
    readings = np.asarray(values, dtype=np.float64)
    if readings.ndim != 2 or readings.shape[0] < 3:
        raise ValueError(f"{name} must have shape (R, N) with three readers or more, got {readings.shape}")
    return readings


def _difference(first: FloatArray, minus: npt.ArrayLike | None) -> tuple[FloatArray, FloatArray]:
    """Values (R, N), 0 where something was not read, and whether it was."""
    values = first if minus is None else first - _readings(minus, "minus")
    if values.shape != first.shape:
        raise ValueError(f"minus must have shape {first.shape}, got {values.shape}")
    read = ~np.isnan(values)
    return np.where(read, values, 0.0), read.astype(np.float64)


def _wins(ratings: FloatArray, ill: npt.NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Kernel (R, n₁, n₀) of every pair of a diseased case and another one, 0 where not both were read, and whether."""
    diseased, others = ratings[:, ill, None], ratings[:, None, ~ill]
    read = ~(np.isnan(diseased) | np.isnan(others))
    wins = (diseased > others) + 0.5 * (diseased == others)
    return np.where(read, wins, 0.0), read.astype(np.float64)


def _unshared(kernel: FloatArray) -> FloatArray:
    """Σ k_rij k_si′j′ (R, R) over pairs of pairs with i ≠ i′ and j ≠ j′."""
    total, rows, columns = kernel.sum(axis=(1, 2)), kernel.sum(axis=2), kernel.sum(axis=1)
    flat = kernel.reshape(len(kernel), -1)
    return np.asarray(np.outer(total, total) - rows @ rows.T - columns @ columns.T + flat @ flat.T)


def _reader_mean(scores: FloatArray, apart: FloatArray, lowest: float) -> ReaderMean:
    """The mean with its interval from readers' scores (R,) and products of their expectations (R, R)."""
    n_readers = scores.size
    covariances = np.outer(scores, scores) - apart
    shared = ~np.eye(n_readers, dtype=bool)
    square, covariance = float(scores.var(ddof=1)), float(covariances[shared].mean())
    inflated = square + n_readers * max(covariance, 0.0)
    value, se = float(scores.mean()), float(np.sqrt(inflated / n_readers))
    df = (n_readers - 1) * inflated**2 / square**2 if square > 0 else float("inf")
    half = float(stdtrit(df, 0.975)) * se
    return ReaderMean(value, se, df, max(lowest, value - half), min(1.0, value + half), square, covariance, scores)
