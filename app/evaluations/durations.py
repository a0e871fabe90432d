"""How long things take when some of them have not ended: the product-limit estimate (Kaplan and Meier 1958)."""

import numpy as np
import numpy.typing as npt

from app.evaluations.report_schemas import DurationOut
from ml.arrays import FloatArray

_Z = 1.959963984540054


def duration_of(hours: FloatArray, ended: npt.NDArray[np.bool_]) -> DurationOut:
    """Hours by which half and nine tenths have ended; what is still open counts as long as it has been.

    Leaving out what is open would praise whoever leaves the slow ones undone.

    Args:
        hours: (N,) until the end, or until now.
        ended: (N,) whether it has ended.
    """
    order = np.lexsort((~ended, hours))
    hours, events = np.maximum(hours[order], 0.0), ended[order]
    at_risk = np.arange(hours.size, 0, -1)
    left = np.cumprod(np.where(events, 1 - 1 / at_risk, 1.0), dtype=np.float64)
    return DurationOut(
        n=int(hours.size),
        n_open=int((~events).sum()),
        median=_first(hours, left <= 0.5),
        nine_tenths=_first(hours, left <= 0.1 + 1e-12),
        **_ends(hours, events, at_risk, left),
    )


def _first(hours: FloatArray, reached: npt.NDArray[np.bool_]) -> float | None:
    return float(hours[int(reached.argmax())]) if reached.any() else None


def _ends(
    hours: FloatArray, events: npt.NDArray[np.bool_], at_risk: npt.NDArray[np.intp], left: FloatArray
) -> dict[str, float | None]:
    """Where the log-log interval of what is left, by Greenwood's formula, goes past a tenth."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(events & (at_risk > 1), 1 / (at_risk * (at_risk - 1.0)), 0.0)
        spread = _Z * np.sqrt(np.cumsum(steps)) / np.abs(np.log(left))
        lower, upper = left ** np.exp(spread), left ** np.exp(-spread)
    inside = (left > 0) & (left < 1)
    low = np.where(inside, lower, left) <= 0.1
    high = np.where(inside, upper, left) <= 0.1
    # nothing is known of what would come after the last end
    return {"low": _first(hours, low), "high": _first(hours, high & (left > 0))}
