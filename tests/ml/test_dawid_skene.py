"""Dawid–Skene finds the annotators' habits."""

import itertools

import numpy as np
import pytest
from scipy.special import logsumexp

from ml.agreement import dawid_skene


def simulated(n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three annotators, one of whom mixes up classes 1 and 2, and a tenth of the labels missing."""
    rng = np.random.default_rng(seed)
    good = np.full((3, 3), 0.05) + 0.85 * np.eye(3)
    mixing = np.array([[0.9, 0.05, 0.05], [0.05, 0.45, 0.5], [0.05, 0.5, 0.45]])
    confusion = np.stack([good, good, mixing])
    truth = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    labels = np.stack([[rng.choice(3, p=c[t]) for t in truth] for c in confusion], axis=1)
    labels[rng.random(labels.shape) < 0.1] = -1
    return labels, truth, confusion


def test_it_recovers_habits_and_truth() -> None:
    labels, truth, confusion = simulated()
    found = dawid_skene(labels, 3)
    np.testing.assert_allclose(found.confusion, confusion, atol=0.06)
    np.testing.assert_allclose(found.class_shares, [0.5, 0.3, 0.2], atol=0.04)
    votes = (labels[..., None] == np.arange(3)).sum(axis=1).argmax(axis=1)
    assert (found.class_probs.argmax(1) == truth).mean() > (votes == truth).mean() + 0.02
    np.testing.assert_allclose(found.class_probs.sum(1), 1, atol=1e-12)


def test_the_likelihood_is_that_of_enumerated_truths() -> None:
    labels, _, _ = simulated(5)
    found = dawid_skene(labels, 3)
    total = []
    for truths in itertools.product(range(3), repeat=5):
        value = 0.0
        for row, t in enumerate(truths):
            value += np.log(found.class_shares[t])
            value += sum(np.log(found.confusion[a, t, c]) for a, c in enumerate(labels[row]) if c >= 0)
        total.append(value)
    counts = np.array([np.bincount(row[row >= 0], minlength=3) for row in labels])
    start = (counts + 1 / 3) / (counts + 1 / 3).sum(axis=1, keepdims=True)
    pooled = start.T @ counts + 1 / 3
    pseudo = pooled / pooled.sum(axis=1, keepdims=True)
    prior = (pseudo * np.log(found.confusion)).sum() + np.log(found.class_shares).sum() / 3
    assert found.log_likelihood == pytest.approx(logsumexp(total) + prior, abs=1e-10)


def test_an_annotator_with_few_labels_is_described_like_the_others() -> None:
    labels, _, _ = simulated(800)
    labels[1:, 2] = -1
    found = dawid_skene(labels, 3)
    assert np.abs(found.confusion[2] - found.confusion[:2].mean(axis=0)).max() < 0.5
    assert found.confusion.min() > 0


def test_permuting_classes_permutes_the_answer() -> None:
    labels, _, _ = simulated(600)
    order = np.array([2, 0, 1])
    moved = np.where(labels >= 0, order[labels], -1)
    first, second = dawid_skene(labels, 3), dawid_skene(moved, 3)
    np.testing.assert_allclose(second.class_probs[:, order], first.class_probs, atol=1e-9)


def test_no_label_is_refused() -> None:
    with pytest.raises(ValueError, match="no label"):
        dawid_skene(np.full((3, 2), -1), 3)
