"""Label-histogram metrics of class and disagreement probabilities."""

from ml.metrics.accumulator import Accumulator
from ml.metrics.binned import ReliabilityBin
from ml.metrics.evaluation import ClassEvaluation, Evaluation, evaluate
from ml.metrics.jackknife import Estimate
from ml.metrics.losses import (
    calibration_loss,
    class_skill,
    disagreement_calibration_loss,
    disagreement_loss,
    disagreement_skill,
    dispersion_loss,
    epistemic_loss,
    exact_metrics,
    expected_squared_loss,
)
from ml.metrics.ordinal import (
    epistemic_ranked_probability_score,
    ranked_probability_score,
    ranked_probability_skill,
    weighted_kappa,
)
from ml.metrics.paired_difference import Change, paired_change, paired_changes
from ml.metrics.posterior_gain import (
    exact_posterior_epistemic_loss,
    posterior_epistemic_loss,
    posterior_gain,
    posterior_gain_terms,
)
from ml.metrics.reader_variance import Readings
from ml.metrics.triage_curves import net_benefit, net_benefit_difference, triage_recall, uncertainty_scores

__all__ = [
    "Accumulator",
    "Change",
    "ClassEvaluation",
    "Estimate",
    "Evaluation",
    "Readings",
    "ReliabilityBin",
    "calibration_loss",
    "class_skill",
    "disagreement_calibration_loss",
    "disagreement_loss",
    "disagreement_skill",
    "dispersion_loss",
    "epistemic_loss",
    "epistemic_ranked_probability_score",
    "evaluate",
    "exact_metrics",
    "exact_posterior_epistemic_loss",
    "expected_squared_loss",
    "net_benefit",
    "net_benefit_difference",
    "paired_change",
    "paired_changes",
    "posterior_epistemic_loss",
    "posterior_gain",
    "posterior_gain_terms",
    "ranked_probability_score",
    "ranked_probability_skill",
    "triage_recall",
    "uncertainty_scores",
    "weighted_kappa",
]
