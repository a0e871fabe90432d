"""Glossary of the metrics for readers who do not compute them."""

import re

#: By the metric's name in the JSON document, in the order of the page.
MEANING = {
    "agreement": "share of annotators who name the most probable class",
    "accuracy": "share of cases with three labels whose most probable class is the annotators' most frequent one",
    "L": "squared error of the class probabilities for one annotator's label (0 best, 2 worst)",
    "skill": "by how much L is smaller than that of always stating the class frequencies (1 perfect, 0 no better)",
    "EL": "the part of L that better probabilities could avoid",
    "CL": "the part of EL that recalibration could avoid",
    "CL_paired": "CL on the cases with two labels, from which DL follows",
    "CE": "calibration error of the class probabilities, the root of CL",
    "DL": "the part of EL that takes a better model, not recalibration",
    "L_D": "squared error of the disagreement probability for two annotators",
    "skill_D": "by how much L_φ is smaller than that of always stating one rate (1 perfect, 0 no better)",
    "L_D_minus_max": "L_φ less that of the simple rule 'one minus the largest probability'; negative is better",
    "L_D_minus_gini": "L_φ less that of the simple rule 'as if the probabilities were the truth'; negative is better",
    "CL_D": "the part of L_φ that recalibration could avoid",
    "CE_D": "calibration error of the disagreement probability, the root of CL_φ",
    "RPS": "ranked probability score for one annotator's label: errors weigh more the more grades apart (0 best)",
    "skill_RPS": "by how much RPS is smaller than that of the class frequencies (1 perfect, 0 no better)",
    "RPS_epistemic": "the part of RPS that better probabilities could avoid",
    "weighted_kappa": "agreement of the most probable grade with an annotator beyond chance, quadratic weights",
    "krippendorff_alpha": "agreement of the annotators with each other beyond chance, on the ordinal scale",
    "EL_plugin": "EL without the correction for few labels",
    "CL_plugin": "CL without the correction for few cases",
    "CL_D_plugin": "CL_φ without the correction for few cases",
    "DL_plugin": "DL without corrections",
}
#: Metrics of which more is better; of all others less is.
LARGER_IS_BETTER = {"agreement", "accuracy", "skill", "skill_D", "skill_RPS", "weighted_kappa", "krippendorff_alpha"}


def symbol(name: str) -> str:
    """A metric's name as formulas write it.

    >>> symbol("CE_D"), symbol("CL_D_plugin"), symbol("weighted_kappa")
    ('CE_φ', 'CL_φ plugin', 'weighted kappa')
    """
    return re.sub("_(?!φ)", " ", re.sub("_D(?=_|$)", "_φ", name))


def by_order(names: list[str]) -> list[str]:
    """Metrics in the order of the page, those without words last."""
    order = list(MEANING)
    return sorted(names, key=lambda name: order.index(name) if name in MEANING else len(order))
