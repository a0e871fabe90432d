"""Fitted model of named annotators."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.annotations import Annotations
from ml.annotators.posterior import Component, Opinions, mixed_answers, mixed_posterior
from ml.distributions.families import DirichletMixtureCpe, PredictiveDistribution
from ml.documents import from_document, to_document
from ml.messages import Message
from ml.util.arrays import EqualByValue, FloatArray, as_class_probs

READER_MODEL_VERSION = 1
#: A habit is told where it is at least this much more frequent than the population's, and this frequent.
MORE_THAN_OTHERS, OFTEN = 0.1, 0.15
_SHARES = (
    (0.175, Message("about one cell in seven")),
    (0.225, Message("about a fifth of cells")),
    (0.29, Message("about a quarter of cells")),
    (0.415, Message("about a third of cells")),
    (0.585, Message("about half of cells")),
    (0.71, Message("about two thirds of cells")),
    (0.85, Message("about three quarters of cells")),
    (1.01, Message("nearly all cells")),
)


@dataclass(frozen=True, eq=False)
class ReaderModel(EqualByValue):
    """A model of named annotators, beside a release's predictions.

    Opinions are Dir(α0 f) with the release's f and a, sharpened by T, tilted by a class bias b, and a shifted: what a
    release predicts are the population's answers, which hold the annotators' own spread and tilt; refitted beside the
    matrices, opinions do without them. Labels weigh by a mixture of this model and an exchangeable one.

    Attributes:
        names: R annotators.
        n_labels: (R,) labels that each was fitted from.
        confusions: (R, K, K) probability of each answer (last axis) given each opinion.
        population: (K, K) C̄ = Σ_r w_r C⁽ʳ⁾, what an annotator drawn from the population makes of an opinion; anybody
            who is not named here has it.
        log_temperature: ln T of the opinions, f^(1/T) exp(b) normalised.
        log_concentration_shift: added to a.
        class_bias: (K,) b, in sum zero; zero if left out.
        population_spread: (K, K) Σ_l Cov(C̄_kl, C̄_jl) under the posterior of the matrices; zero if left out.
        weight: λ of this model before any label, in [0, 1]; the exchangeable one has the rest.
        exchangeable: the model that takes annotators as alike; without it λ is 1.
    """

    names: tuple[str, ...]
    n_labels: npt.NDArray[np.int64]
    confusions: FloatArray
    population: FloatArray
    log_temperature: float = 0.0
    log_concentration_shift: float = 0.0
    class_bias: FloatArray = field(default_factory=lambda: np.zeros(0))
    population_spread: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    weight: float = 1.0
    exchangeable: "ReaderModel | None" = None

    def __post_init__(self) -> None:
        n, k = len(self.names), self.population.shape[0] if self.population.ndim else 0
        if not self.confusions.size:  # an empty list of JSON has no shape
            object.__setattr__(self, "confusions", np.zeros((0, k, k)))
        for name, shape in (("class_bias", (k,)), ("population_spread", (k, k))):
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.zeros(shape))
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {getattr(self, name).shape}")
        if not 0 <= self.weight <= 1 or (self.exchangeable is None and self.weight != 1):
            raise ValueError(f"weight must be in [0, 1], and 1 without an exchangeable model, got {self.weight}")
        if self.confusions.shape != (n, k, k) or self.population.shape != (k, k) or self.n_labels.shape != (n,):
            shapes = self.confusions.shape, self.population.shape, self.n_labels.shape
            raise ValueError(f"{n} names do not go with confusions, population and n_labels of shapes {shapes}")
        if len(set(self.names)) != n:
            raise ValueError("an annotator is named twice")
        if n:
            as_class_probs(self.confusions, "confusions")
        as_class_probs(self.population, "population")

    @classmethod
    def alike(cls, n_classes: int) -> "ReaderModel":
        """Annotators taken as alike: the paper's posterior."""
        none = np.zeros((0, n_classes, n_classes))
        return cls((), np.zeros(0, dtype=np.int64), none, np.eye(n_classes))

    def matrices(self, names: Sequence[str]) -> FloatArray:
        """Matrices (A, K, K); the population's for unknown names."""
        row_of = {name: row for row, name in enumerate(self.names)}
        confusions = [self.confusions[row_of[name]] if name in row_of else self.population for name in names]
        return np.array(confusions, dtype=np.float64).reshape(-1, *self.population.shape)

    def opinions(self, prior: PredictiveDistribution) -> Opinions:
        """Prior of opinions that a release's prediction stands for."""
        return Opinions.of(prior).adjusted(self.log_temperature, self.log_concentration_shift, self.class_bias)

    def components(self, prior: PredictiveDistribution, names: Sequence[str]) -> list[Component]:
        """Models that are mixed, as they take cases and annotators; those without weight are left out."""
        mixed = [(self.weight, self), (1 - self.weight, self.exchangeable)]
        return [
            Component(model.opinions(prior), model.matrices(names), model.population, model.population_spread, weight)
            for weight, model in mixed
            if model is not None and weight > 0
        ]

    def answers(
        self, prior: PredictiveDistribution, long: Annotations, names: Sequence[str], keep: float = 1e-9
    ) -> DirichletMixtureCpe:
        """Distribution of the population's answers after labels by annotators of these names.

        Raises:
            ValueError: cases with different numbers of labels.
        """
        return mixed_answers(self.components(prior, names), long, keep)

    def expected_gains(
        self, prior: PredictiveDistribution, long: Annotations, names: Sequence[str], candidates: Sequence[str]
    ) -> FloatArray:
        """Expected fall (A, N) of the squared error by one more label by each candidate."""
        after = mixed_posterior(self.components(prior, names), long)
        # an opinion is a model and a class
        of_next = self.components(prior, candidates)
        matrices = np.concatenate([part.confusions for part in of_next], axis=1)
        population = np.concatenate([part.population for part in of_next])
        gains = [after.worth(matrix, population) for matrix in matrices]
        return np.array(gains).reshape(len(candidates), long.n_cases)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, float64 to the last bit."""
        return {"version": READER_MODEL_VERSION} | to_document(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "ReaderModel":
        """Read back what ``to_dict`` wrote.

        Raises:
            ValueError: another version, or a field is missing, misshapen or not finite.
        """
        version = document.get("version") if isinstance(document, dict) else None
        if version != READER_MODEL_VERSION:
            raise ValueError(f"model of readers of version {version!r}, expected {READER_MODEL_VERSION}")
        model = from_document(cls, document)
        numbers = (
            model.log_temperature,
            model.log_concentration_shift,
            *model.class_bias,
            *model.population_spread.flat,
        )
        if not np.isfinite(numbers).all():
            raise ValueError("not a model of readers: temperature, concentration, bias or spread is not finite")
        return model


def describe_annotator_habit(model: ReaderModel, name: str, classes: Sequence[str]) -> str | None:
    """Sentence on an annotator's main habit; None without one.

    Args:
        model: of the annotators, whose matrices are shrunk: few labels make no habit.
        name: of the annotator.
        classes: K names.
    """
    if name not in model.names:
        return None
    confusions = model.confusions[model.names.index(name)]
    more = np.where(np.eye(len(classes), dtype=bool), -np.inf, confusions - model.population)
    notable = (more >= MORE_THAN_OTHERS) & (confusions >= OFTEN)
    if not notable.any():
        return None
    opinion, answer = divmod(int(np.where(notable, confusions, -np.inf).argmax()), len(classes))
    share = next(words for limit, words in _SHARES if confusions[opinion, answer] <= limit)
    return Message(
        "{name} labels {opinion} as {answer} in {share}; such labels count less.",
        name=name,
        opinion=classes[opinion],
        answer=classes[answer],
        share=share,
    )
