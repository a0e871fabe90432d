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
from ml.agreement.report import (
    AgreementReport,
    AnnotatorAgreement,
    ClassAgreement,
    PairAgreement,
    SiteAgreement,
)
from ml.agreement.tables import AgreementOptions, agreement_by_finding, measure_agreement

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
    "measure_agreement",
    "rater_marginal_test",
]
