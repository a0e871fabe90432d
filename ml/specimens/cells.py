"""Specimen: its cells' predictions, blinded labels, and the groups that are reported.

Everything random is drawn in one canonical order, cells by identifier and classes by code, so that
the order of the input changes no number.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Literal

import numpy as np
import numpy.typing as npt

from ml.annotations import Annotations
from ml.annotators.confusions import ReaderModel
from ml.annotators.posterior import Opinions, answer_distribution
from ml.dataframes import refuse_row_names
from ml.distributions.families import DirichletMixtureCpe, PredictiveDistribution
from ml.util.arrays import EqualByValue, FloatArray, IntArray, as_label_counts, as_vector

#: Log concentration of a cell whose label is its truth: a limit of the formulas, not a special case.
LABEL_IS_TRUTH = -40.0
#: Labels that a row of an annotator's matrix weighs beyond those it was fitted from.
ROW_PRIOR = 10.0
#: Draws of the matrices at most: each needs two of the sampler's chains.
MOST_DRAWS = 25
# members lighter than this are left out of the posterior of named labels
_KEEP = 1e-5
# probabilities below are this: no label is impossible
_FLOOR = 1e-12
# log concentrations beyond are these
_LARGEST = 27.0
_Part = tuple[npt.NDArray[np.intp], DirichletMixtureCpe]  # some cells, and their mixtures


@dataclass(frozen=True)
class Threshold:
    """A share of a group that matters."""

    at: float  # in (0, 1)
    miss_cost: float = 1.0  # cost of calling a share below that is above, in costs of the opposite error

    def __post_init__(self) -> None:
        if not 0 < self.at < 1 or not 0 < self.miss_cost < np.inf:
            raise ValueError(f"a threshold lies in (0, 1) with a positive cost, got {self.at} and {self.miss_cost}")


@dataclass(frozen=True)
class Group:
    """A reporting group: the sum of some classes."""

    name: str
    classes: tuple[str, ...]
    thresholds: tuple[Threshold, ...] = ()


@dataclass(frozen=True, eq=False)
class NamedReads(EqualByValue):
    """Blinded labels by annotators, and draws of their matrices."""

    labels: Annotations  # of the n cells
    matrices: FloatArray  # (B, A, K, K) draws of each annotator's matrix, answers last
    population: FloatArray  # (K, K) answers of an annotator of the panel
    log_temperature: float = 0.0  # of the opinions, as in ``ReaderModel``
    log_concentration_shift: float = 0.0
    class_bias: FloatArray | float = 0.0

    @classmethod
    def of(
        cls, model: ReaderModel, labels: Annotations, names: Sequence[str], mix: FloatArray, draws: int, seed: int = 0
    ) -> "NamedReads":
        """Draw matrices of a fitted model, 2 to 25 of each annotator of the labels, by name and seed.

        Row k of a matrix is Dir((n m_k + 10) C_k), n the labels that the annotator's matrix was fitted from, with class
        frequencies m (K,) as of the calibration cells.
        """
        fitted_from = dict(zip(model.names, model.n_labels, strict=True))
        matrices = np.empty((draws, len(names), *model.population.shape))
        for column, (name, mean) in enumerate(zip(names, model.matrices(names), strict=True)):
            weight = (fitted_from.get(name, 0) * mix + ROW_PRIOR)[:, None] * mean
            gammas = seeded(f"{seed}|{name}").standard_gamma(weight, (draws, *mean.shape)) + 1e-300
            matrices[:, column] = gammas / gammas.sum(axis=-1, keepdims=True)
        shift = model.log_temperature, model.log_concentration_shift, model.class_bias
        return cls(labels, matrices, model.population, *shift)


@dataclass(frozen=True)
class Members:
    """Weighted Dirichlets of each cell after its labels, by draw of the annotators' matrices."""

    class_probs: FloatArray  # (B, S, n, K)
    concentration: FloatArray  # (B, S, n)
    weights: FloatArray  # (B, S, n), in sum one over S

    @cached_property
    def mean(self) -> FloatArray:
        """Class probabilities (B, n, K)."""
        return np.asarray(np.einsum("bsn,bsnk->bnk", self.weights, self.class_probs))

    def pooled(self) -> "Members":
        """Members of all draws as one mixture, B = 1."""
        n_draws, n_members, n_cells, n_classes = self.class_probs.shape
        probs = self.class_probs.reshape(1, -1, n_cells, n_classes)
        weights = self.weights.reshape(1, -1, n_cells) / n_draws
        return Members(probs, self.concentration.reshape(1, n_draws * n_members, n_cells), weights)


@dataclass(frozen=True, eq=False)
class Specimen(EqualByValue):
    """Cells of one specimen, as a release predicts them and annotators label them.

    The target "panel" is the experts' distribution of each cell. "label" is for a concentration that was fitted without
    cells that were read twice: it means nothing then, and the truth of a cell is its label.

    Raises:
        ValueError: identifiers twice, shapes that do not fit, a mix that is not positive, two kinds of labels.
    """

    key: str  # of the specimen and the release: it seeds the draws
    cells: tuple[str, ...]  # (n,) identifiers, each once
    classes: tuple[str, ...]  # (K,) codes, each once
    prior: PredictiveDistribution  # the release's predictions of the cells
    mix: FloatArray  # (K,) m for which the release is calibrated, positive, in sum one (``calibration_mix``)
    label_counts: IntArray | None = None  # (n, K) blinded labels of annotators taken as alike
    n_annotators: int = 0  # distinct annotators of these labels
    named: NamedReads | None = None  # labels by annotators with matrices, in place of counts
    target: Literal["panel", "label"] = "panel"

    def __post_init__(self) -> None:
        refuse_row_names(label_counts=self.label_counts, mix=self.mix)
        shape = (len(self.cells), len(self.classes))
        for name, codes in (("cells", self.cells), ("classes", self.classes)):
            code, times = Counter(codes).most_common(1)[0] if codes else ("", 0)
            if times > 1:
                raise ValueError(f"{name} must differ, {code!r} is named {times} times")
        if shape[0] == 0 or self.prior.class_probs.shape != shape:
            raise ValueError(f"{shape[0]} cells and {shape[1]} classes, predictions {self.prior.class_probs.shape}")
        mix = as_vector(self.mix, shape[1], "mix", np.finfo(np.float64).tiny, 1.0)
        if abs(mix.sum() - 1) > 1e-6:
            raise ValueError(f"mix must sum to 1, got {mix.sum():g}")
        object.__setattr__(self, "mix", mix)
        if self.label_counts is not None:
            counts = as_label_counts(self.label_counts)
            if counts.shape != shape or self.named is not None:
                raise ValueError(f"label_counts must have shape {shape}, without named labels, got {counts.shape}")
            object.__setattr__(self, "label_counts", counts)
        if self.named is not None and (self.named.labels.n_cases, self.named.matrices.shape[2]) != shape:
            raise ValueError(f"named labels must be of {shape[0]} cells and {shape[1]} classes")
        if self.named is not None and not 1 <= len(self.named.matrices) <= MOST_DRAWS:
            raise ValueError(f"1 to {MOST_DRAWS} draws of the matrices are used, got {len(self.named.matrices)}")

    @property
    def counts(self) -> IntArray:
        """Blinded labels (n, K), named or not."""
        if self.named is not None:
            return self.named.labels.counts()
        return np.zeros(self.prior.class_probs.shape, np.int64) if self.label_counts is None else self.label_counts

    @cached_property
    def order(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Rows of the cells and columns of the classes in canonical order."""
        cells = sorted(range(len(self.cells)), key=self.cells.__getitem__)
        return np.array(cells), np.array(sorted(range(len(self.classes)), key=self.classes.__getitem__))

    def memberships(self, groups: Sequence[Group]) -> IntArray:
        """Number (K,) of each class's group, in the order of ``classes``; the number of groups for none."""
        number = dict.fromkeys(self.classes, len(groups))
        for row, group in enumerate(groups):
            if not group.classes:
                raise ValueError(f"group {group.name!r} has no class")
            for code in group.classes:
                if code not in number:
                    raise ValueError(f"group {group.name!r} has class {code!r}, which the release lacks")
                if number[code] != len(groups):
                    raise ValueError(f"class {code!r} belongs to {groups[number[code]].name!r} and {group.name!r}")
                number[code] = row
        return np.array([number[code] for code in self.classes])

    def members(self) -> Members:
        """Dirichlets of the cells after their labels, in canonical order."""
        rows, columns = self.order
        opinions = Opinions.of(self.prior)
        probs = np.maximum(opinions.class_probs[:, rows][..., columns], _FLOOR)
        a, logs = np.minimum(opinions.log_concentration, _LARGEST)[:, rows], opinions.log_weights[:, rows]
        if self.target == "label":
            probs = np.einsum("sn,snk->nk", np.exp(logs), probs)[None]
            a, logs = np.full((1, len(rows)), LABEL_IS_TRUTH), np.zeros((1, len(rows)))
        prior = Opinions(probs / probs.sum(axis=-1, keepdims=True), a, logs)
        if self.named is None:
            mixture = DirichletMixtureCpe(prior.class_probs, prior.log_concentration, prior.log_weights)
            by_draw = [[(np.arange(len(rows)), mixture.posterior(self.counts[rows][:, columns]))]]
        else:
            by_draw = _named_posteriors(prior, self.named, rows, columns)
        return _stacked(by_draw, len(rows), len(columns))


def seeded(key: str) -> np.random.Generator:
    """Random numbers that depend on a text alone."""
    return np.random.default_rng(np.frombuffer(sha256(key.encode()).digest(), dtype=np.uint32))


def _named_posteriors(
    prior: Opinions, named: NamedReads, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]
) -> list[list[_Part]]:
    """Answers of the panel after named labels, by draw of the matrices and number of labels."""
    bias = np.broadcast_to(named.class_bias, len(columns))[columns]
    prior = prior.adjusted(named.log_temperature, named.log_concentration_shift, bias)
    classes = replace(named.labels, label=np.argsort(columns)[named.labels.label])
    labels = classes.renumbered(np.argsort(rows), len(rows)).by_case()
    matrices, population = named.matrices[:, :, columns][..., columns], named.population[np.ix_(columns, columns)]
    by_draw: list[list[_Part]] = [[] for _ in matrices]
    for n in np.unique(labels.per_case):
        cells = np.flatnonzero(labels.per_case == n)
        place = np.full(len(rows), -1)
        place[cells] = np.arange(len(cells))
        some, prior_of_some = labels.renumbered(place, len(cells)), prior.rows(cells)
        for parts, draw in zip(by_draw, matrices, strict=True):
            parts.append((cells, answer_distribution(prior_of_some, some, draw, population, _KEEP)))
    return by_draw


def _stacked(by_draw: list[list[_Part]], n_cells: int, n_classes: int) -> Members:
    """Mixtures of all cells by draw, with as many members each, the heaviest first."""
    widest = max(int((np.exp(part.log_weights) > 0).sum(axis=0).max()) for parts in by_draw for _, part in parts)
    shape = (len(by_draw), widest, n_cells)
    stacked = Members(np.full((*shape, n_classes), 1 / n_classes), np.ones(shape), np.zeros(shape))
    for b, parts in enumerate(by_draw):
        for cells, part in parts:
            heaviest = np.argsort(-part.log_weights, axis=0, kind="stable")[:widest].T
            at, rows = (b, slice(len(heaviest[0])), cells), np.arange(len(cells))[:, None]
            a = np.minimum(part.member_log_concentration, _LARGEST)
            stacked.class_probs[at] = part.member_class_probs[heaviest, rows]
            stacked.concentration[at] = np.exp(a)[heaviest, rows]
            stacked.weights[at] = np.exp(part.log_weights)[heaviest, rows]
    return stacked
