"""Agreement between annotators, and what speaks against their independence."""

from ml.agreement.coefficients import (
    DependenceTest,
    as_label_matrix,
    cohen_kappa,
    count_matrix,
    excess_disagreement_test,
    fleiss_kappa,
    krippendorff_alpha,
    rater_marginal_test,
)
from ml.agreement.dawid_skene import DawidSkene, dawid_skene

__all__ = [
    "DawidSkene",
    "DependenceTest",
    "as_label_matrix",
    "cohen_kappa",
    "count_matrix",
    "dawid_skene",
    "excess_disagreement_test",
    "fleiss_kappa",
    "krippendorff_alpha",
    "rater_marginal_test",
]
