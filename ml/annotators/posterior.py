"""Posterior of the true class from labels of named annotators.

Labels y_1..y_n by annotators r_1..r_n have the likelihood

    p(y | x) = Σ_{z ∈ [K]^n} DirMult(z | α0 f) Π_j C⁽ʳʲ⁾_{z_j y_j},

and given them q is a mixture Σ_m w_m Dir(α0 f + m) over count vectors
m of the opinions z. Weights are made label by label: after j labels
opinion k in state m has probability (α0 f_k + m_k)/(α0 + j).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp

from ml.annotations import Annotations
from ml.distributions.families import DirichletMixtureCpe, PredictiveDistribution, members_of
from ml.util.arrays import FloatArray, IntArray, gini


def n_count_vectors(n_opinions: int, n_classes: int) -> int:
    """Number C(n + K − 1, n) of count vectors."""
    return comb(n_opinions + n_classes - 1, n_opinions)


@dataclass(frozen=True)
class CountVectors:
    """Count vectors (S, K), and the numbers of their followers."""

    counts: IntArray
    following: npt.NDArray[np.intp]


@lru_cache(maxsize=64)
def count_vectors(n_opinions: int, n_classes: int) -> CountVectors:
    """All count vectors of n opinions in K classes."""
    chosen = list(combinations_with_replacement(range(n_classes), n_opinions))
    number = {
        classes: row for row, classes in enumerate(combinations_with_replacement(range(n_classes), n_opinions + 1))
    }
    counts = np.zeros((len(chosen), n_classes), dtype=np.int64)
    following = np.zeros((len(chosen), n_classes), dtype=np.intp)
    for row, classes in enumerate(chosen):
        for k in classes:
            counts[row, k] += 1
        following[row] = [number[tuple(sorted((*classes, k)))] for k in range(n_classes)]
    return CountVectors(counts, following)


def top_k_weights(
    class_probs: FloatArray, log_concentration: FloatArray, likelihood: FloatArray, labels: IntArray, keep: int
) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
    """The heaviest count vectors, log-likelihoods and dropped mass."""
    by_case = [
        _top_k_of_case(*row, keep) for row in zip(class_probs, log_concentration, likelihood, labels, strict=True)
    ]
    widest = max((len(weights) for weights, *_ in by_case), default=0)
    n_classes = class_probs.shape[1]
    weights, counts = np.zeros((len(by_case), widest)), np.zeros((len(by_case), widest, n_classes), dtype=np.int64)
    for row, (some, states, _, _) in enumerate(by_case):
        weights[row, : len(some)], counts[row, : len(some)] = some, states
    rest = np.array([(log_likelihood, dropped) for _, _, log_likelihood, dropped in by_case]).reshape(-1, 2)
    return weights, counts, rest[:, 0], rest[:, 1]


def _top_k_of_case(
    class_probs: FloatArray, log_concentration: float, likelihood: FloatArray, labels: IntArray, keep: int
) -> tuple[FloatArray, IntArray, float, float]:
    n_classes = len(class_probs)
    states, weights = np.zeros((1, n_classes), dtype=np.int64), np.ones(1)
    # random 64-bit keys tell a million count vectors apart
    key_of_class = np.random.default_rng(0).integers(2**63, size=n_classes, dtype=np.uint64)
    keys = np.zeros(1, dtype=np.uint64)
    log_likelihood = dropped = 0.0
    for j, label in enumerate(labels):
        log_n = np.log(max(j, 1))
        prior = float(expit(log_concentration - log_n)) if j else 1.0
        opinion = prior * class_probs + (1 - prior) * states / max(j, 1)
        moved = weights[:, None] * opinion * likelihood[j]
        if not moved.sum() > 0:
            moved = weights[:, None] * (np.arange(n_classes) == label)
            log_likelihood = -np.inf
        row, k = np.nonzero(moved)
        _, first, number = np.unique(keys[row] + key_of_class[k], return_index=True, return_inverse=True)
        weights = np.bincount(number.ravel(), moved[row, k]).astype(np.float64)
        log_likelihood += np.log(weights.sum())
        weights /= weights.sum()
        kept = np.arange(len(weights))
        if len(weights) > keep:
            kept = np.sort(np.argpartition(-weights, keep)[:keep])
            dropped += 1 - weights[kept].sum()
            weights = weights[kept] / weights[kept].sum()
        # only what is kept is written out: followers may be a million
        from_row, added = row[first[kept]], k[first[kept]]
        states, keys = states[from_row], keys[from_row] + key_of_class[added]
        states[np.arange(len(added)), added] += 1
    return weights, states, log_likelihood, min(1.0, dropped)


#: Count vectors that are all kept; of more only the heaviest are.
MAX_STATES = 5000
# weights (cases × states) that are worked on at once
_BLOCK = 2_000_000


@dataclass(frozen=True)
class Opinions:
    """Prior of the shares of opinions: S weighted Dirichlets per case.

    Attributes:
        class_probs: (S, N, K).
        log_concentration: (S, N), infinite if labels teach nothing.
        log_weights: (S, N).
    """

    class_probs: FloatArray
    log_concentration: FloatArray
    log_weights: FloatArray

    @classmethod
    def of(cls, prior: PredictiveDistribution) -> "Opinions":
        """Members of any predictive distribution."""
        return cls(*members_of(prior))

    def adjusted(
        self, log_temperature: float, log_concentration_shift: float, class_bias: FloatArray | float = 0.0
    ) -> "Opinions":
        """Members with f^(1/T) exp(b), normalised, and a + shift; the bias b is (K,)."""
        if log_temperature == 0.0 and log_concentration_shift == 0.0 and not np.any(class_bias):
            return self
        with np.errstate(divide="ignore"):
            logs = np.log(self.class_probs) * np.exp(-log_temperature) + class_bias
        probs = np.exp(logs - logs.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
        return Opinions(probs, self.log_concentration + log_concentration_shift, self.log_weights)

    def rows(self, rows: npt.NDArray[np.intp]) -> "Opinions":
        """Some of the cases."""
        return Opinions(self.class_probs[:, rows], self.log_concentration[:, rows], self.log_weights[:, rows])


@dataclass(frozen=True)
class Batch:
    """Cases (B,) with n labels each."""

    cases: npt.NDArray[np.intp]
    likelihood: FloatArray
    labels: IntArray
    positions: npt.NDArray[np.intp]

    def without(self, label: int) -> "Batch":
        """The same cases with one label less."""
        kept = np.delete(np.arange(self.labels.shape[1]), label)
        return Batch(self.cases, self.likelihood[:, kept], self.labels[:, kept], self.positions[:, kept])


def batches(long: Annotations, confusions: FloatArray, n_members: int = 1) -> Iterator[Batch]:
    """Cases in batches with equally many labels, small enough for all members at once."""
    order = np.argsort(long.case, kind="stable")
    first = np.concatenate([[0], long.per_case.cumsum()])[:-1]
    for n in np.unique(long.per_case):
        cases = np.flatnonzero(long.per_case == n)
        states = n_count_vectors(int(n), long.n_classes)
        if states > MAX_STATES:
            states = MAX_STATES * long.n_classes  # each case has its own
        step = max(1, _BLOCK // (n_members * max(states, n * long.n_classes, long.n_classes**2)))
        for start in range(0, len(cases), step):
            some = cases[start : start + step]
            positions = order[first[some][:, None] + np.arange(n)]
            labels = long.label[positions]
            likelihood = confusions[long.annotator[positions], :, labels]
            yield Batch(some, likelihood, labels, positions)


@dataclass(frozen=True)
class Weights:
    """Weights (B, S) of count vectors (S, K) or (B, S, K)."""

    weights: FloatArray
    counts: IntArray
    log_likelihood: FloatArray
    dropped: FloatArray

    def mean_counts(self) -> FloatArray:
        """Mean (B, K) of the count vector."""
        if self.counts.ndim == 2:
            return np.asarray(self.weights @ self.counts)
        return np.asarray(np.einsum("bs,bsk->bk", self.weights, self.counts))

    def more_than(self, number: int) -> FloatArray:
        """Probability (B, K) that more opinions than a number are of a class."""
        return replace(self, counts=(self.counts > number).astype(np.int64)).mean_counts()

    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Mean (B, K) of the count vector, and mean (B, K, K) of its products."""
        if self.counts.ndim == 2:
            n_states, n_classes = self.counts.shape
            products = (self.counts[:, :, None] * self.counts[:, None, :]).reshape(n_states, -1)
            return self.mean_counts(), (self.weights @ products).reshape(-1, n_classes, n_classes)
        weighted = self.weights[..., None] * self.counts
        return self.mean_counts(), np.swapaxes(weighted, 1, 2) @ self.counts


def state_weights(class_probs: FloatArray, log_concentration: FloatArray, batch: Batch) -> Weights:
    """Weights w_m of count vectors, made label by label."""
    n_labels, n_classes = batch.likelihood.shape[1:]
    if n_count_vectors(n_labels, n_classes) > MAX_STATES:
        heaviest = top_k_weights(class_probs, log_concentration, batch.likelihood, batch.labels, MAX_STATES)
        return Weights(*heaviest)
    # states by rows: a step then adds whole rows
    weights, log_likelihood = np.ones((1, len(class_probs))), np.zeros(len(class_probs))
    for j in range(n_labels):
        states = count_vectors(j, n_classes)
        prior_share, label_share = shares(log_concentration, j)
        following = np.zeros((n_count_vectors(j + 1, n_classes), len(class_probs)))
        for k in range(n_classes):
            likelihood = batch.likelihood[:, j, k]
            from_prior, from_label = prior_share * class_probs[:, k] * likelihood, label_share * likelihood
            # of one class no two states have the same follower
            following[states.following[:, k]] += weights * (from_prior + states.counts[:, k, None] * from_label)
        weights, evidence = _normalised(following, weights, states.following, batch.labels[:, j])
        with np.errstate(divide="ignore"):
            log_likelihood += np.log(evidence)
    return Weights(weights.T, count_vectors(n_labels, n_classes).counts, log_likelihood, np.zeros(len(class_probs)))


def shares(log_concentration: FloatArray, n_before: int) -> tuple[FloatArray, FloatArray]:
    """α0/(α0 + j) and 1/(α0 + j), of ln α0 (B,) and j ≥ 0."""
    if n_before == 0:
        return np.ones(log_concentration.shape), np.zeros(log_concentration.shape)
    log_n = np.log(n_before)
    return expit(log_concentration - log_n), expit(log_n - log_concentration) / n_before


def _normalised(
    following: FloatArray, before: FloatArray, numbers: npt.NDArray[np.intp], label: IntArray
) -> tuple[FloatArray, FloatArray]:
    evidence = following.sum(axis=0)
    impossible = np.flatnonzero(~(evidence > 0))
    for case in impossible:
        following[numbers[:, label[case]], case] = before[:, case]
    total = np.where(evidence > 0, evidence, 1.0)
    return following / total, evidence


@dataclass(frozen=True)
class NamedPosterior:
    """Exact first two moments of the shares of opinions q.

    Attributes:
        opinion_probs: (N, K) E[q].
        opinion_products: (N, K, K) E[q_k q_l].
        log_likelihood: (N,) log p(y | x) of the label sequences.
        dropped: (N,) mass of the count vectors that were left out, zero but for many labels.
    """

    opinion_probs: FloatArray
    opinion_products: FloatArray
    log_likelihood: FloatArray
    dropped: FloatArray

    def answer_probs(self, confusions: FloatArray) -> FloatArray:
        """Answer probabilities E[q]ᵀ C (N, K)."""
        if confusions.ndim == 2:
            return self.opinion_probs @ confusions
        return np.asarray(np.einsum("nk,nkl->nl", self.opinion_probs, confusions))

    def disagreement_probs(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """Probability (N,) that two annotators differ.

        Args:
            first: (K, K) matrix of one of them.
            second: (K, K) of the other; the same matrix for two annotators drawn from one population.
        """
        same = np.einsum("nkj,kj->n", self.opinion_products, first @ second.T)
        return np.asarray(np.clip(1 - same, 0.0, 1.0))

    def worth(self, reader: FloatArray, population: FloatArray) -> FloatArray:
        """Expected fall (N,) of the squared error by one more label.

        ``Σ_y P(y) |E[C̄ᵀq | y] − E[C̄ᵀq]|²``, with ``E[q_k | y] P(y) = Σ_j E[q_k q_j] C_jy``.

        Args:
            reader: (K, K) matrix of who gives it.
            population: (K, K) C̄.
        """
        label_probs = self.answer_probs(reader)
        joint = np.einsum("kl,nkj,jy->nly", population, self.opinion_products, reader)
        moved = np.divide(joint, label_probs[:, None], out=np.zeros(joint.shape), where=label_probs[:, None] > 0)
        moved -= self.answer_probs(population)[..., None] * (label_probs[:, None] > 0)
        return np.asarray(np.einsum("ny,nly->n", label_probs, moved**2))


def named_posterior(opinions: Opinions, long: Annotations, confusions: FloatArray) -> NamedPosterior:
    """Posterior of N cases after labels by annotators with matrices (A, K, K).

    Raises:
        ValueError: cases, classes or annotators do not fit together.
    """
    n_cases, n_classes = opinions.class_probs.shape[1:]
    require_fit(opinions, long, confusions)
    mean, products = np.zeros((n_cases, n_classes)), np.zeros((n_cases, n_classes, n_classes))
    log_likelihood, dropped = np.zeros(n_cases), np.zeros(n_cases)
    for batch in batches(long, confusions, len(opinions.log_weights)):
        batch_result = _batch_posterior(opinions.rows(batch.cases), batch)
        mean[batch.cases], products[batch.cases] = batch_result.opinion_probs, batch_result.opinion_products
        log_likelihood[batch.cases], dropped[batch.cases] = batch_result.log_likelihood, batch_result.dropped
    return NamedPosterior(mean, products, log_likelihood, dropped)


def require_fit(opinions: Opinions, long: Annotations, confusions: FloatArray) -> None:
    """Refuse prior, labels and matrices of different shapes."""
    expected = (*opinions.class_probs.shape[1:], long.n_annotators)
    if (long.n_cases, long.n_classes, len(confusions)) != expected or confusions.shape[1:] != (expected[1],) * 2:
        raise ValueError(
            f"prior of {expected[0]} cases and {expected[1]} classes, labels of {long.n_cases} and {long.n_classes} "
            f"by {long.n_annotators} annotators, matrices {confusions.shape}"
        )


def _batch_posterior(opinions: Opinions, batch: Batch) -> NamedPosterior:
    weights, evidence = member_weights(opinions, batch)
    share, total = member_shares(opinions, evidence)
    n_members, n_cases, n_classes = opinions.class_probs.shape
    flat = opinions.class_probs.reshape(-1, n_classes), opinions.log_concentration.ravel()
    first, second = _opinion_moments(weights, *flat, batch.labels.shape[1])
    mean = np.einsum("sb,sbk->bk", share, first.reshape(n_members, n_cases, n_classes))
    products = np.einsum("sb,sbkl->bkl", share, second.reshape(n_members, n_cases, n_classes, n_classes))
    dropped = (share * weights.dropped.reshape(share.shape)).sum(axis=0)
    return NamedPosterior(np.asarray(mean), np.asarray(products), total, np.asarray(dropped))


def member_weights(opinions: Opinions, batch: Batch) -> tuple[Weights, FloatArray]:
    """Count-vector weights of members and cases (S · B rows), and log evidence (S, B) of members."""
    n_members, n_cases, n_classes = opinions.class_probs.shape
    # members as further cases: a loop over an ensemble takes longer than its arithmetic
    rows = Batch(
        np.tile(batch.cases, n_members),
        np.tile(batch.likelihood, (n_members, 1, 1)),
        np.tile(batch.labels, (n_members, 1)),
        np.tile(batch.positions, (n_members, 1)),
    )
    weights = state_weights(opinions.class_probs.reshape(-1, n_classes), opinions.log_concentration.ravel(), rows)
    return weights, opinions.log_weights + weights.log_likelihood.reshape(n_members, n_cases)


def member_shares(opinions: Opinions, evidence: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Members' weights (S, B), and log-likelihoods (B,)."""
    total = logsumexp(evidence, axis=0)
    # labels that no member allows leave the members' weights as they are
    logs = np.where(np.isneginf(total), opinions.log_weights, evidence - np.where(np.isfinite(total), total, 0))
    return np.exp(logs), total


def _opinion_moments(
    weights: Weights, class_probs: FloatArray, log_concentration: FloatArray, n_labels: int
) -> tuple[FloatArray, FloatArray]:
    prior, label = (s[:, None] for s in shares(log_concentration, n_labels))
    count, products = weights.moments()
    mean = prior * class_probs + label * count
    prior_part = prior * class_probs
    crossed = prior_part[:, :, None] * (label * count)[:, None, :]
    both = prior_part[:, :, None] * prior_part[:, None, :] + crossed + np.swapaxes(crossed, 1, 2)
    both += (label**2)[..., None] * products
    with np.errstate(divide="ignore"):
        a = np.logaddexp(log_concentration, np.log(float(n_labels)))[:, None, None]
    diagonal = mean[:, :, None] * np.eye(class_probs.shape[1])
    return mean, expit(a) * both + expit(-a) * diagonal


@dataclass(frozen=True)
class Component:
    """One of the models of a mixture, as it takes N cases and A annotators.

    Attributes:
        opinions: prior of the shares of opinions.
        confusions: (A, K, K) matrix of each annotator.
        population: (K, K) C̄.
        spread: (K, K) Σ_l Cov(C̄_kl, C̄_jl), since matrices are estimated.
        weight: of the model before any label.
    """

    opinions: Opinions
    confusions: FloatArray
    population: FloatArray
    spread: FloatArray
    weight: float = 1.0


def mixed_posterior(components: Sequence[Component], long: Annotations) -> NamedPosterior:
    """Posterior under a mixture of models, weighted by the evidence of the labels.

    An opinion is then a model and a class: moments are of (models · K) opinions, and the matrices that belong to them
    are those of the models one below the other (``np.concatenate`` on the axis of opinions).
    """
    parts = [named_posterior(part.opinions, long, part.confusions) for part in components]
    if len(parts) == 1:
        return parts[0]
    share, total = _component_shares(components, np.array([part.log_likelihood for part in parts]))
    n_classes = long.n_classes
    products = np.zeros((long.n_cases, *(len(parts) * n_classes,) * 2))
    for number, (part, weight) in enumerate(zip(parts, share, strict=True)):
        block = slice(number * n_classes, (number + 1) * n_classes)
        products[:, block, block] = weight[:, None, None] * part.opinion_products
    probs = np.concatenate([w[:, None] * part.opinion_probs for w, part in zip(share, parts, strict=True)], axis=1)
    dropped = (share * np.array([part.dropped for part in parts])).sum(axis=0)
    return NamedPosterior(probs, products, total, np.asarray(dropped))


def _component_shares(components: Sequence[Component], evidence: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Models' weights (C, N) after labels of this log evidence (C, N), and log-likelihoods (N,)."""
    logs = np.log([part.weight for part in components])[:, None]
    total = logsumexp(logs + evidence, axis=0)
    impossible = np.isneginf(total)
    after = np.where(impossible, logs, logs + evidence - np.where(impossible, 0.0, total))
    return np.exp(after), total


def answer_distribution(
    opinions: Opinions, long: Annotations, confusions: FloatArray, population: FloatArray, keep: float = 1e-9
) -> DirichletMixtureCpe:
    """Distribution of a population's answers as a mixture of Dirichlets.

    Its mean and its disagreement are exact; its shape is close if C̄
    (K, K) is near the identity. Count vectors lighter than ``keep`` are
    left out.

    Raises:
        ValueError: cases with different numbers of labels.
    """
    certain = np.zeros(population.shape)
    return mixed_answers([Component(opinions, confusions, population, certain)], long, keep)


def mixed_answers(components: Sequence[Component], long: Annotations, keep: float = 1e-9) -> DirichletMixtureCpe:
    """Answers of the population under a mixture of models, as ``answer_distribution``."""
    parts, evidence = [], []
    for component in components:
        require_fit(component.opinions, long, component.confusions)
        label_batches = list(batches(long, component.confusions))
        if len(label_batches) != 1:
            raise ValueError("the cases must have the same number of labels, and be few")
        members, total = _answer_members(component, label_batches[0], keep)
        parts.append(members)
        evidence.append(total)
    share, _ = _component_shares(components, np.array(evidence))
    with np.errstate(divide="ignore"):
        logs = np.concatenate([w + np.log(s) for (_, _, w), s in zip(parts, share, strict=True)])
    means, a = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    used = np.isfinite(logs).any(axis=1)
    return DirichletMixtureCpe(means[used], a[used], logs[used])


def _answer_members(
    component: Component, batch: Batch, keep: float
) -> tuple[tuple[FloatArray, FloatArray, FloatArray], FloatArray]:
    """Dirichlets of answers (means, a, log weights, by member and count vector), and log-likelihoods (B,)."""
    opinions, n_labels = component.opinions, batch.labels.shape[1]
    n_members, n_cases, n_classes = opinions.class_probs.shape
    weights, evidence = member_weights(opinions, batch)
    of_member, total = member_shares(opinions, evidence)
    prior, label = (s.reshape(-1, 1, 1) for s in shares(opinions.log_concentration, n_labels))
    counts = np.broadcast_to(weights.counts, (*weights.weights.shape, n_classes))
    means = prior * opinions.class_probs.reshape(-1, 1, n_classes) + label * counts
    with np.errstate(divide="ignore"):
        logs = np.where(weights.weights > keep, np.log(weights.weights), -np.inf) + np.log(of_member).reshape(-1, 1)
        after = np.logaddexp(opinions.log_concentration, np.log(float(n_labels))).reshape(-1, 1)
    a = np.broadcast_to(after, logs.shape)

    def by_case(values: FloatArray) -> FloatArray:
        apart = np.moveaxis(values.reshape(n_members, n_cases, *values.shape[1:]), 1, 2)
        return apart.reshape(-1, n_cases, *values.shape[2:])

    members = by_case(means), by_case(a)
    return (*_seen_through(*members, component), by_case(logs)), total


def _seen_through(means: FloatArray, a: FloatArray, component: Component) -> tuple[FloatArray, FloatArray]:
    """Means and log concentrations of opinions as those of answers."""
    population, spread = component.population, component.spread
    # rounding must not lift a probability above one
    answers = np.minimum(means @ population, 1.0)
    squares = np.einsum("snl,snl->sn", answers, answers)
    # Σ_l E[(qᵀC̄)_l²] = σ(a) Σ_l (gᵀC̄)_l² + σ(−a) Σ_k g_k Σ_l C̄_kl², and the same of what C̄ may differ by
    same = expit(a) * squares + expit(-a) * (means @ (population**2).sum(axis=1))
    same += expit(a) * ((means @ spread) * means).sum(axis=-1) + expit(-a) * (means @ np.diag(spread))
    between = gini(answers)
    left = between - (1 - same)
    with np.errstate(divide="ignore", invalid="ignore"):
        matched = np.log(np.maximum(1 - same, 1e-300)) - np.log(np.maximum(left, 0.0))
    # for the identity the concentration is what it was, to the last bit
    exact = bool((population == np.eye(len(population))).all()) and not spread.any()
    return answers, a if exact else np.where(left > 1e-15, matched, np.inf)
