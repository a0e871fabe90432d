"""Calibration: parameters from network outputs to a predictive distribution, their document and application."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import AnyMap, DisagreementMap, PiecewiseMap
from ml.calibration.disagreement_matching import match_disagreement
from ml.calibration.scaling import Scaling
from ml.calibration.summaries import N_SUMMARIES, Summaries
from ml.dataframes import refuse_row_names
from ml.distributions.families import (
    DirichletCpe,
    DirichletMixtureCpe,
    EnsembleCpe,
    PointCpe,
    PredictiveDistribution,
    softmax_probs,
)
from ml.util.arrays import EqualByValue, FloatArray

CALIBRATION_VERSION = 1
# of a document with a constant disagreement probability
_WITH_CONSTANT = 2
# of a document with summaries or a map of disagreement probabilities
_REFINED = 3
_MAPS: dict[str, type[DisagreementMap] | type[PiecewiseMap]] = {"beta": DisagreementMap, "piecewise": PiecewiseMap}
_VERSIONS = (CALIBRATION_VERSION, _WITH_CONSTANT, _REFINED)


@dataclass(frozen=True, eq=False)
class Refinement(EqualByValue):
    """Extra inputs of head and temperature besides features and logits, and the map of φ.

    Attributes:
        summaries: of the logits; the head's last four weights are theirs. None where nothing reads them.
        temperature_weight: (4,) by which log T depends on the summaries; None with them.
        disagreement_map: φ → φ′, matched by the distribution (``disagreement_matching``); None for φ as it is.
    """

    summaries: Summaries | None = None
    temperature_weight: FloatArray | None = None
    disagreement_map: AnyMap | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether a calibration with it is one without."""
        return self.summaries is None and self.disagreement_map is None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        weight, mapped = self.temperature_weight, self.disagreement_map
        return {
            "summaries": None if self.summaries is None else self.summaries.to_dict(),
            "temperature_weight": None if weight is None else weight.tolist(),
            "disagreement_map": None if mapped is None else mapped.to_dict(),
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Refinement":
        """Read back what ``to_dict`` wrote.

        Raises:
            ValueError: a field is misshapen or not finite.
        """
        summaries, weight, mapped = (document[n] for n in ("summaries", "temperature_weight", "disagreement_map"))
        by_case = None if weight is None else np.array(weight, dtype=np.float64)
        if by_case is not None and (by_case.shape != (N_SUMMARIES,) or not np.isfinite(by_case).all()):
            raise ValueError("not a calibration document: temperature_weight is misshapen or not finite")
        if (by_case is None) != (summaries is None):
            raise ValueError("not a calibration document: summaries and temperature_weight go together")
        disagreement_map: AnyMap | None = None
        if mapped is not None:
            if mapped["kind"] not in _MAPS:
                raise ValueError(f"unknown map of disagreement probabilities {mapped['kind']!r}")
            disagreement_map = _MAPS[mapped["kind"]].from_dict(mapped)
        return cls(None if summaries is None else Summaries.from_dict(summaries), by_case, disagreement_map)


@dataclass(frozen=True)
class Calibration:
    """Parameters from a network's outputs to a predictive distribution.

    Attributes:
        scaling: how class probabilities are calibrated.
        concentration: the head, or None where no case had two labels to learn it from.
        constant_disagreement: disagreement probability of every case before there are labels, where the head's own was
            found to be worse than a constant; None where it was not.
        refinement: summaries of the logits and a map of φ, where these were found to help.

    >>> from ml.calibration.scaling import Scaling
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

    def apply(self, logits: npt.ArrayLike, features: npt.ArrayLike) -> PredictiveDistribution:
        """Predictive distribution of logits (N, K) and features (N, D), or (S, N, K) and (S, N, D) of an ensemble.

        Raises:
            ValueError: neither two nor three axes.
        """
        refuse_row_names(logits=logits, features=features)
        scaled, hidden = self._scaled(logits, features)
        if scaled.ndim not in {2, 3}:
            raise ValueError(f"logits must have shape (N, K) or (S, N, K), got {scaled.shape}")
        if self.concentration is not None and np.shape(hidden)[-1:] != self.concentration.weight.shape:
            n_extra = 0 if self.refinement.summaries is None else N_SUMMARIES
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
        dirichlet = DirichletCpe if scaled.ndim == 2 else DirichletMixtureCpe
        if self.refinement.disagreement_map is not None:
            own = dirichlet(softmax_probs(scaled), a).own_disagreement_probs
            scaled, a = match_disagreement(scaled, a, self.refinement.disagreement_map(own))
        return dirichlet(softmax_probs(scaled), a, stated_disagreement=stated)

    def _scaled(self, logits: npt.ArrayLike, features: npt.ArrayLike) -> tuple[FloatArray, npt.ArrayLike]:
        """Calibrated logits, and what the head reads."""
        scaled, refinement = self.scaling(logits), self.refinement
        if refinement.summaries is None or refinement.temperature_weight is None:
            return scaled, features
        seen = refinement.summaries(logits)
        cooled = scaled * np.exp(-(seen @ refinement.temperature_weight))[..., None]
        return cooled, np.concatenate([np.asarray(features, dtype=np.float64), seen], axis=-1)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, float64 to the last bit."""
        head, constant = self.concentration, self.constant_disagreement
        document = {
            "version": CALIBRATION_VERSION,
            **self.scaling.to_dict(),
            "concentration": None if head is None else {"weight": head.weight.tolist(), "bias": head.bias},
        }
        # versions that know of no constant, or of no refinement, must refuse it, not serve another number
        if not self.refinement.changes_nothing:
            refined = {"constant_disagreement": constant, "refinement": self.refinement.to_dict()}
            return document | {"version": _REFINED} | refined
        if constant is None:
            return document
        return document | {"version": _WITH_CONSTANT, "constant_disagreement": constant}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Calibration":
        """Read back what ``to_dict`` wrote.

        Raises:
            ValueError: another version, or a field is missing, misshapen or not finite.
        """
        try:
            version = document["version"]
            if version not in _VERSIONS:
                raise ValueError(f"calibration version {version} is none of {', '.join(map(str, _VERSIONS))}")
            stated = document["constant_disagreement"] if version != CALIBRATION_VERSION else None
            constant = _probability(stated) if stated is not None or version == _WITH_CONSTANT else None
            refinement = Refinement.from_dict(document["refinement"]) if version == _REFINED else Refinement()
            scaling, head = Scaling.from_dict(document), document["concentration"]
            if head is None:
                return cls(scaling, None, constant, refinement)
            weight, bias = np.array(head["weight"], dtype=np.float64), float(head["bias"])
        except (KeyError, TypeError) as exc:
            raise ValueError(f"not a calibration document: {exc!r}") from exc
        if weight.ndim != 1 or not (np.isfinite(weight).all() and np.isfinite(bias)):
            raise ValueError("not a calibration document: the concentration head is misshapen or not finite")
        return cls(scaling, ConcentrationHead(weight, bias), constant, refinement)


def _probability(value: Any) -> float:
    """Check a probability of a document."""
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError(f"not a calibration document: constant_disagreement is {number}")
    return number
