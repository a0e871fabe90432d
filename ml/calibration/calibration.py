"""Calibration: a network's outputs to a distribution."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import AnyMap, PairHead, match_disagreement
from ml.calibration.logistic_normal import RANK, member_logits
from ml.calibration.scaling import Scaling
from ml.dataframes import refuse_names, refuse_row_names
from ml.distributions.families import (
    DirichletCpe,
    DirichletMixtureCpe,
    EnsembleCpe,
    PointCpe,
    PredictiveDistribution,
    softmax_probs,
)
from ml.documents import from_document, to_document
from ml.util.arrays import EqualByValue, FloatArray

# versions of documents: with a constant disagreement probability, with summaries or a map of φ, and with loadings or a
# pair head
_PLAIN, _WITH_CONSTANT, _REFINED, _EXTENDED = 1, 2, 3, 4
_NEEDED = {
    _PLAIN: "method",
    _WITH_CONSTANT: "constant_disagreement",
    _REFINED: "refinement",
    _EXTENDED: "refinement",
}
_EXTENSIONS = ("loadings", "pair_head", "pair_summaries")
#: Numbers of ``logit_summaries``.
N_SUMMARIES = 4


def logit_summaries(logits: npt.ArrayLike) -> FloatArray:
    """Largest logit, its square, entropy, log ratio: (..., 4)."""
    refuse_names(logits, "logits")
    # not SciPy's functions, which are slow for one case
    scores = np.sort(np.asarray(logits, dtype=np.float64), axis=-1)
    logs = scores - _log_sum_exp(scores)[..., None]
    largest = logs[..., -1] - _log_sum_exp(logs[..., :-1])
    entropy = -(np.exp(logs) * logs).sum(axis=-1)
    return np.stack([largest, largest**2, entropy, logs[..., -1] - logs[..., -2]], axis=-1)


def _log_sum_exp(rising: FloatArray) -> FloatArray:
    """Log of summed exponentials (...) of rising numbers."""
    largest = rising[..., -1:]
    return np.asarray(largest[..., 0] + np.log(np.exp(rising - largest).sum(axis=-1)))


@dataclass(frozen=True, eq=False)
class Summaries(EqualByValue):
    """Standardised summaries (4,), kept within their range."""

    centre: FloatArray
    spread: FloatArray  # 1 if nothing varies
    low: FloatArray  # least standardised value
    high: FloatArray

    def __post_init__(self) -> None:
        arrays = (self.centre, self.spread, self.low, self.high)
        if any(array.shape != (N_SUMMARIES,) or not np.isfinite(array).all() for array in arrays):
            raise ValueError("the summaries are misshapen or not finite")
        if not (self.spread > 0).all() or not (self.low <= self.high).all():
            raise ValueError("the summaries' spread or range is empty")

    def __call__(self, logits: npt.ArrayLike) -> FloatArray:
        """Summaries (..., 4) of logits (..., K)."""
        return np.asarray(np.clip((logit_summaries(logits) - self.centre) / self.spread, self.low, self.high))

    @classmethod
    def of(cls, logits: npt.ArrayLike) -> "Summaries":
        """Standardise by logits (..., K)."""
        raw = logit_summaries(logits).reshape(-1, N_SUMMARIES)
        centre, spread = raw.mean(axis=0), raw.std(axis=0)
        spread = np.where(spread > 1e-12 * np.maximum(1.0, np.abs(centre)), spread, 1.0)
        standardised = (raw - centre) / spread
        return cls(centre, spread, standardised.min(axis=0), standardised.max(axis=0))


@dataclass(frozen=True, eq=False)
class Refinement(EqualByValue):
    """Extra inputs of head and temperature, and the map of φ.

    Attributes:
        summaries: of the logits; the head's last four weights are theirs. None if nothing reads them.
        temperature_weight: (4,) by which log T depends on the summaries; None with them.
        disagreement_map: φ → φ′, matched by the distribution (``match_disagreement``); None for φ as it is.
        loadings: (K, 2) of a logistic normal in place of the Dirichlet, not for ensembles; None without.
        pair_head: what is mixed into φ′, by the pair's summaries; None without.
        pair_summaries: of the logits, for the pair head.
    """

    summaries: Summaries | None = None
    temperature_weight: FloatArray | None = None
    disagreement_map: AnyMap | None = None
    loadings: FloatArray | None = None
    pair_head: PairHead | None = None
    pair_summaries: Summaries | None = None

    def __post_init__(self) -> None:
        weight = self.temperature_weight
        if (self.summaries is None) != (weight is None):
            raise ValueError("summaries and temperature weights go together")
        if weight is not None and (weight.shape != (N_SUMMARIES,) or not np.isfinite(weight).all()):
            raise ValueError("the temperature's weights are misshapen or not finite")
        loadings = self.loadings
        if loadings is not None and not (loadings.shape[1:] == (RANK,) and np.isfinite(loadings).all()):
            raise ValueError("the loadings are misshapen or not finite")
        if (self.pair_head is None) != (self.pair_summaries is None):
            raise ValueError("a pair head and its summaries go together")

    @property
    def moves_disagreement(self) -> bool:
        """Whether the distribution is moved to other DPEs."""
        return self.disagreement_map is not None or self.pair_head is not None

    def disagreement(self, own: FloatArray, logits: npt.ArrayLike, features: npt.ArrayLike) -> FloatArray:
        """DPEs (N,) that the distribution has to match, of its own."""
        mapped = own if self.disagreement_map is None else self.disagreement_map(own)
        if self.pair_head is None or self.pair_summaries is None:
            return mapped
        return self.pair_head(mapped, self.pair_summaries(logits), features)


@dataclass(frozen=True)
class Calibration:
    """Parameters from a network's outputs to a predictive distribution.

    Attributes:
        scaling: how class probabilities are calibrated.
        concentration: the head, or None if no case had two labels to learn it from.
        constant_disagreement: disagreement probability of every case before there are labels, where the head's own was
            found to be worse than a constant; None if it was not.
        refinement: summaries of the logits and a map of φ, where these were found to help.

    Examples:
        >>> import numpy as np
        >>> from secondread import Calibration
        >>> from secondread.calibration import Scaling
        >>> halved = Calibration(Scaling("temperature", np.log(2.0)), None)
        >>> halved.apply([[2.0, 0.0]], np.zeros((1, 1))).class_probs.round(3)
        array([[0.731, 0.269]])
        >>> Calibration.from_dict(halved.to_dict()) == halved
        True
    """

    scaling: Scaling
    concentration: ConcentrationHead | None
    constant_disagreement: float | None = None
    refinement: Refinement = Refinement()

    def __post_init__(self) -> None:
        if self.constant_disagreement is not None and not 0 <= self.constant_disagreement <= 1:
            raise ValueError(f"constant_disagreement must be a probability, got {self.constant_disagreement}")

    @property
    def has_constant_concentration(self) -> bool:
        """Whether one concentration, the same for all cases, gives their disagreement probabilities."""
        head = self.concentration
        # members and a pair head change the order
        plain = self.refinement.loadings is None and self.refinement.pair_head is None
        return plain and head is not None and not head.weight.any() and self.constant_disagreement is None

    def apply(self, logits: npt.ArrayLike, features: npt.ArrayLike) -> PredictiveDistribution:
        """Predict from logits (N, K) and features (N, D), or (S, N, …).

        Raises:
            ValueError: neither two nor three axes.
        """
        refuse_row_names(logits=logits, features=features)
        scaled, hidden, refinement = self.scaling(logits), features, self.refinement
        if refinement.summaries is not None and refinement.temperature_weight is not None:
            seen = refinement.summaries(logits)
            scaled = scaled * np.exp(-(seen @ refinement.temperature_weight))[..., None]
            hidden = np.concatenate([np.asarray(features, dtype=np.float64), seen], axis=-1)
        if scaled.ndim not in ({2, 3} if refinement.loadings is None else {2}):
            ensembles = (
                " or (S, N, K)" if refinement.loadings is None else ", as this calibration makes its own members"
            )
            raise ValueError(f"logits must have shape (N, K){ensembles}, got {scaled.shape}")
        if self.concentration is not None and np.shape(hidden)[-1:] != self.concentration.weight.shape:
            n_extra = 0 if refinement.summaries is None else N_SUMMARIES
            raise ValueError(
                f"features must have {self.concentration.weight.size - n_extra} columns, as in the fit, got shape "
                f"{np.shape(features)}"
            )
        constant = self.constant_disagreement
        stated = None if constant is None else np.full(scaled.shape[-2], constant)
        if self.concentration is None:
            family = PointCpe if scaled.ndim == 2 else EnsembleCpe
            return family(softmax_probs(scaled), stated_disagreement=stated)
        a = self.concentration(hidden)
        if refinement.loadings is not None:
            scaled = member_logits(scaled, refinement.loadings)
            a = np.broadcast_to(a, scaled.shape[:-1])
        dirichlet = DirichletCpe if scaled.ndim == 2 else DirichletMixtureCpe
        if refinement.moves_disagreement:
            own = dirichlet(softmax_probs(scaled), a).own_disagreement_probs
            scaled, a = match_disagreement(scaled, a, refinement.disagreement(own, logits, features))
        return dirichlet(softmax_probs(scaled), a, stated_disagreement=stated)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, float64 to the last bit."""
        head, refined = self.concentration, self.refinement != Refinement()
        document = {**to_document(self.scaling), "concentration": None if head is None else to_document(head)}
        # older versions must refuse a constant or a refinement
        if refined or self.constant_disagreement is not None:
            document |= {"constant_disagreement": self.constant_disagreement}
        if refined:
            # of older versions, no key that is null
            refinement = to_document(self.refinement)
            extended = {name: value for name in _EXTENSIONS if (value := refinement.pop(name)) is not None}
            version = _EXTENDED if extended else _REFINED
            return document | {"version": version, "refinement": refinement | extended}
        return document | {"version": _PLAIN if self.constant_disagreement is None else _WITH_CONSTANT}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Calibration":
        """Read back what ``to_dict`` wrote.

        Raises:
            ValueError: another version, or a field is missing, misshapen or not finite.
        """
        try:
            version = document["version"]
            if version not in _NEEDED:
                raise ValueError(f"version {version} is none of {', '.join(map(str, _NEEDED))}")
            if document[_NEEDED[version]] is None:
                raise ValueError(f"{_NEEDED[version]} is null")
            return from_document(cls, {**document, "scaling": document})
        except (KeyError, TypeError, ValueError) as exc:
            raise ValueError(f"not a calibration document: {exc}") from exc
