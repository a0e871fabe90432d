"""Concentration head: likelihood, fit and choice of its penalty.

It starts at a = 0, α0 = 1 everywhere. With a leading axis of S ensemble members the loss is that of the members'
uniform mixture.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.calibration.optimise import FitError, minimise
from ml.calibration.scaling import Choice
from ml.dataframes import refuse_names, refuse_tables, same_rows
from ml.distributions.likelihood import DirichletMultinomial, log_probs_of, mixture_log_likelihood
from ml.util.arrays import EqualByValue, FloatArray, IntArray, as_label_counts

#: λ_α of the penalty λ_α/N Σ a² on the log concentration (paper §6.1).
LOG_CONCENTRATION_PENALTY = 0.005
#: Candidate ridge penalties on the head's weights for standardised features, chosen on the cv part.
RIDGE_CANDIDATES = (0.0, 1e-3, 1e-2, 1e-1)
#: Cases a feature below which a head without ridge is not tried: it has no well-defined optimum then.
CASES_PER_FEATURE = 10
#: Weaker λ_α, tried after the paper's.
WEAKER_PENALTIES = (5e-4, 5e-5)


@dataclass(frozen=True, eq=False)
class ConcentrationHead(EqualByValue):
    """Log concentration a = wᵀg + c of features g.

    Attributes:
        weight: (D,).
        bias: c.
    """

    weight: FloatArray
    bias: float

    def __post_init__(self) -> None:
        if self.weight.ndim != 1 or not (np.isfinite(self.weight).all() and np.isfinite(self.bias)):
            raise ValueError("a concentration head is misshapen or not finite")

    def __call__(self, features: npt.ArrayLike) -> FloatArray:
        """Log concentration (...,) of features (..., D)."""
        return np.asarray(np.asarray(features, dtype=np.float64) @ self.weight + self.bias)


def concentration_loss(
    class_probs: FloatArray,
    label_counts: IntArray,
    log_concentration: FloatArray,
    *,
    penalty: float = LOG_CONCENTRATION_PENALTY,
) -> tuple[float, FloatArray]:
    """Penalised Dirichlet-multinomial loss, and its gradient.

    −1/Σn Σ log DirMult(y | α0 f) + λ/N Σ a² (paper eq. 14). With a leading
    member axis DirMult is the members' uniform mixture and the penalty
    their mean.
    """
    refuse_tables(class_probs=class_probs, label_counts=label_counts, log_concentration=log_concentration)
    terms = DirichletMultinomial(label_counts, log_probs_of(class_probs))(log_concentration)
    return penalised_loss(*terms, label_counts.sum(axis=1), log_concentration, penalty)[:2]


def penalised_loss(
    member_nll: FloatArray,
    slope: FloatArray,
    totals: IntArray,
    log_concentration: FloatArray,
    penalty: float,
) -> tuple[float, FloatArray, FloatArray]:
    """Penalised loss, its gradient by a, and each case's weight."""
    mixed, share = mixture_log_likelihood(-member_nll)
    weight = np.full(len(totals), 1.0 / max(totals.sum(), 1))
    value, share = -weight @ mixed + penalty * (log_concentration**2).mean(), weight * share
    return float(value), share * slope + 2 * penalty * log_concentration / log_concentration.size, share


def fit_concentration(
    features: npt.ArrayLike,
    class_probs: npt.ArrayLike,
    label_counts: npt.ArrayLike,
    *,
    penalty: float = LOG_CONCENTRATION_PENALTY,
    ridge: float | None = 0.0,
) -> tuple[ConcentrationHead, int]:
    """Fit the concentration head, starting from α0 = 1 everywhere.

    Args:
        features: (N, D) or (S, N, D), standardised inside, which leaves the model unchanged.
        class_probs: (N, K) or (S, N, K) calibrated class probabilities.
        label_counts: (N, K); cases with one label carry no information on a.
        penalty: λ_α.
        ridge: penalty ρ/2 |w|² on the weights of standardised features; None for a constant head, w = 0.

    Returns:
        The head and the number of iterations.

    Raises:
        FitError: no case has two labels, or no convergence.
    """
    same_rows(features=features, class_probs=class_probs, label_counts=label_counts)
    refuse_names(class_probs, "class_probs")
    counts, probs = as_label_counts(label_counts), np.asarray(class_probs, dtype=np.float64)
    if not (counts.sum(axis=1) >= 2).any():
        raise FitError("the concentration cannot be fitted: no case has two labels, and one says nothing about it")
    design = HeadDesign.of(np.asarray(features, dtype=np.float64), ridge)
    members, totals = probs.shape[:-1], counts.sum(axis=1)
    likelihood = DirichletMultinomial(counts, log_probs_of(probs))

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        a = design.log_concentration(x).reshape(members)
        value, by_a, _ = penalised_loss(*likelihood(a), totals, a, penalty)
        return design.penalised(x, value, by_a)

    parameters, iterations = minimise(objective, np.zeros(design.columns.shape[1] + 1), "concentration head")
    return design.head(parameters), iterations


@dataclass(frozen=True)
class HeadDesign:
    """Standardised inputs of a head, with a ridge on each."""

    # dividing the weights by the spread standardises without a pass

    columns: FloatArray  # (M, P) centred inputs that are read
    read: npt.NDArray[np.bool_]  # (D,) mask of these
    centre: FloatArray  # (D,) means
    spread: FloatArray  # (D,) deviations, 1 if constant
    ridge: FloatArray  # (P,) penalties ρ/2 w²

    @classmethod
    def of(cls, features: FloatArray, ridge: float | None) -> "HeadDesign":
        """Design of features (..., D) under one ridge; None reads none of them."""
        raw = features.reshape(-1, features.shape[-1])
        centre = raw.mean(axis=0)
        centred = raw - centre
        spread = np.sqrt(np.einsum("md,md->d", centred, centred) / len(raw))
        spread = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(centre)), spread, 1.0)
        read = np.full(len(centre), ridge is not None)
        columns = centred if ridge is not None else centred[:, :0]
        return cls(columns, read, centre, spread, np.full(columns.shape[1], ridge or 0.0))

    def with_standardised(self, inputs: FloatArray, ridge: float, *, read: bool) -> "HeadDesign":
        """Append inputs (M, E) that are standardised."""
        n, used = inputs.shape[1], inputs if read else inputs[:, :0]
        return HeadDesign(
            np.hstack([self.columns, used]) if used.size else self.columns,
            np.append(self.read, np.full(n, read)),
            np.append(self.centre, np.zeros(n)),
            np.append(self.spread, np.ones(n)),
            np.append(self.ridge, np.full(used.shape[1], ridge)),
        )

    def log_concentration(self, x: FloatArray) -> FloatArray:
        """Log concentrations (M,)."""
        return np.asarray(self.columns @ (x[:-1] / self.spread[self.read]) + x[-1])

    def penalised(self, x: FloatArray, loss: float, by_a: FloatArray) -> tuple[float, FloatArray]:
        """Loss with the ridge, and its gradient."""
        weight, slope = x[:-1], by_a.ravel()
        by_weight = (slope @ self.columns) / self.spread[self.read] + self.ridge * weight
        return loss + 0.5 * float(self.ridge @ weight**2), np.append(by_weight, slope.sum())

    def head(self, x: FloatArray) -> ConcentrationHead:
        """Head of the raw inputs."""
        weight = np.zeros(len(self.centre))
        weight[self.read] = x[:-1] / self.spread[self.read]
        return ConcentrationHead(weight, float(x[-1] - weight @ self.centre))

    def parameters(self, head: ConcentrationHead) -> FloatArray:
        """The opposite of ``head``."""
        return np.append((head.weight * self.spread)[self.read], head.bias + head.weight @ self.centre)


@dataclass(frozen=True)
class HeadKind:
    """Ridge ρ (None for a constant head) and penalty λ_α."""

    ridge: float | None
    penalty: float

    def __str__(self) -> str:
        kind = "constant" if self.ridge is None else f"ridge {self.ridge:g}"
        return kind if self.penalty == LOG_CONCENTRATION_PENALTY else f"{kind}, penalty {self.penalty:g}"


def choose_head(
    features: FloatArray,
    probs: tuple[FloatArray, FloatArray],
    counts: IntArray,
    fit: npt.NDArray[np.bool_],
    cv: npt.NDArray[np.bool_],
) -> tuple[ConcentrationHead, HeadKind | None, Choice]:
    """Choose the head with the lowest loss on ``cv``."""
    # the paper's λ_α pulls α0 to 1, far too small where predictions are nearly right:
    # weaker ones are tried for the best ridge and for a constant head
    chosen_on, final = probs

    def fitted(kind: HeadKind, probs: FloatArray, rows: npt.NDArray[np.bool_]) -> ConcentrationHead:
        inside = features[..., rows, :], probs[..., rows, :], counts[rows]
        return fit_concentration(*inside, ridge=kind.ridge, penalty=kind.penalty)[0]

    def cv_loss(head: ConcentrationHead) -> float:
        a = head(features[..., cv, :])
        return concentration_loss(chosen_on[..., cv, :], counts[cv], a, penalty=0.0)[0]

    def tried_loss(kind: HeadKind) -> float:
        try:
            return cv_loss(fitted(kind, chosen_on, fit))
        except FitError:  # the free head may have no optimum
            return np.inf

    start = ConcentrationHead(np.zeros(features.shape[-1]), 0.0)
    before = cv_loss(start)
    enough = (counts[fit].sum(axis=1) >= 2).sum() >= CASES_PER_FEATURE * features.shape[-1]
    ridges = [ridge for ridge in RIDGE_CANDIDATES if ridge > 0 or enough]
    tried = {kind: tried_loss(kind) for kind in (HeadKind(r, LOG_CONCENTRATION_PENALTY) for r in (*ridges, None))}
    weaker = {min(tried, key=lambda kind: tried[kind]).ridge, None}
    tried |= {kind: tried_loss(kind) for kind in (HeadKind(r, p) for r in weaker for p in WEAKER_PENALTIES)}
    losses = {str(kind): loss if np.isfinite(loss) else None for kind, loss in tried.items()}
    best = min(tried, key=lambda kind: tried[kind])
    if losses[str(best)] is None:
        raise FitError("no fit of the concentration head converged")
    if tried[best] >= before:
        return start, None, Choice(cv_before=before, cv_after=before, chosen="start", candidates=losses)
    try:
        head = fitted(best, final, fit | cv)
    except FitError:  # it did converge on the fit part
        head = fitted(best, chosen_on, fit)
    return head, best, Choice(cv_before=before, cv_after=tried[best], chosen=str(best), candidates=losses)
