"""Predictive distributions and decisions that follow."""

from ml.distributions.decisions import (
    class_intervals,
    consensus_probs,
    expected_gain,
    further_labels_expected,
    majority_prob,
)
from ml.distributions.families import (
    DirichletCpe,
    DirichletMixtureCpe,
    EnsembleCpe,
    PointCpe,
    PredictiveDistribution,
    gini,
    has_concentration,
    moment_matched,
    softmax_probs,
)
from ml.distributions.likelihood import dirichlet_multinomial_nll

__all__ = [
    "DirichletCpe",
    "DirichletMixtureCpe",
    "EnsembleCpe",
    "PointCpe",
    "PredictiveDistribution",
    "class_intervals",
    "consensus_probs",
    "dirichlet_multinomial_nll",
    "expected_gain",
    "further_labels_expected",
    "gini",
    "has_concentration",
    "majority_prob",
    "moment_matched",
    "softmax_probs",
]
