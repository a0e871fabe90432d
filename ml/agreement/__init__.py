"""Agreement between annotators, and evidence against their independence.

What reads tables is loaded when it is first used: a service needs the rest all the time, and tables rarely.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ml.agreement.coefficients import (
    as_label_matrix,
    cohen_kappa,
    count_matrix,
    excess_disagreement_test,
    fleiss_kappa,
    krippendorff_alpha,
)
from ml.agreement.latent_class import DawidSkene
from ml.agreement.report import AgreementReport, AnnotatorAgreement, ClassAgreement, PairAgreement, SiteAgreement
from ml.metrics.homogeneity_test import DependenceTest, marginal_homogeneity_test

if TYPE_CHECKING:
    from ml.agreement.tables import AgreementOptions, agreement_by_finding, dawid_skene, measure_agreement

__all__ = [
    "AgreementOptions",
    "AgreementReport",
    "AnnotatorAgreement",
    "ClassAgreement",
    "DawidSkene",
    "DependenceTest",
    "PairAgreement",
    "SiteAgreement",
    "agreement_by_finding",
    "as_label_matrix",
    "cohen_kappa",
    "count_matrix",
    "dawid_skene",
    "excess_disagreement_test",
    "fleiss_kappa",
    "krippendorff_alpha",
    "marginal_homogeneity_test",
    "measure_agreement",
]


def __getattr__(name: str) -> Any:
    """Load what reads tables.

    Raises:
        AttributeError: there is nothing of that name.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ml.agreement.tables"), name)
