"""Minimisation of smooth losses by SciPy's L-BFGS."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ml.util.arrays import FloatArray

MAX_ITERATIONS = 2000


class FitError(ValueError):
    """A fit did not converge, or the data cannot support it."""


def minimise(
    objective: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    what: str,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
    tolerance: float | None = None,
) -> tuple[FloatArray, int]:
    """Minimise a loss with its gradient; ``what`` is for errors."""
    options: dict[str, float] = {"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS + 1000}
    if tolerance is not None:
        options["ftol"] = tolerance
    from scipy.optimize import minimize  # slow to load

    with _one_thread():
        result = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    if not (result.success and np.isfinite(result.fun)):
        raise FitError(f"the fit of the {what} did not converge after {result.nit} iterations: {result.message}")
    return np.asarray(result.x, dtype=np.float64), int(result.nit)


def _one_thread() -> AbstractContextManager[Any]:
    """Linear algebra in one thread, faster for small products."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:  # without it fits are only slower
        return nullcontext()
    limited: AbstractContextManager[Any] = threadpool_limits(1, "blas")
    return limited
