"""Evaluation results as sentences with intervals, and the glossary of metrics."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from ml.agreement import AgreementReport
from ml.audit.evaluate_findings import FindingAudit, TailBins
from ml.metrics.binned import ReliabilityBin
from ml.metrics.homogeneity_test import differ
from ml.metrics.jackknife import Estimate
from ml.tables.comparison import Comparison
from ml.util.number_format import change, count, probability, share

#: By the metric's name in the JSON document, in the order of the page.
MEANING = {
    "agreement": "expected accuracy: share of annotators who name the most probable class",
    "accuracy": "share of cases with three labels whose most probable class is the annotators' most frequent one",
    "L": "expected loss: squared error of the class probabilities for one annotator's label (0 best, 2 worst)",
    "skill": "by how much L is smaller than that of always stating the class frequencies (1 perfect, 0 no better)",
    "EL": "epistemic loss: the part of L that better probabilities could avoid",
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


def summary_sentences(answer: FindingAudit, agreement: AgreementReport, ends: TailBins) -> list[str]:
    """The page's summary of one finding."""
    metrics = answer.evaluation.metrics
    return [
        _sample_size_sentence(answer, agreement),
        *_agreement_sentences(metrics),
        *_skill_sentences(metrics.get("skill"), "the class probabilities", "always stating the class frequencies"),
        *_calibration_sentences(
            metrics["CL"], metrics["CE"], "class probabilities", "the share of annotators who name the class"
        ),
        *_tail_sentences(ends.classes, "a class", "annotators named it"),
        *_skill_sentences(
            metrics.get("skill_RPS"), "by rank, the class probabilities", "always stating the class frequencies"
        ),
        *_skill_sentences(metrics.get("skill_D"), "the disagreement probability", "always stating the same rate"),
        *_calibration_sentences(
            metrics["CL_D"], metrics["CE_D"], "disagreement probability", "how often two annotators differ"
        ),
        *_tail_sentences(ends.disagreement, "disagreement", "two annotators differed"),
        *_annotator_sentences(agreement),
    ]


def _sample_size_sentence(answer: FindingAudit, agreement: AgreementReport) -> str:
    evaluation, per_case = answer.evaluation, answer.cases.counts.sum(axis=1)
    labelled, twice = int((per_case >= 1).sum()), int((per_case >= 2).sum())
    who = "annotators who are not named"
    if agreement.n_annotators is not None:
        who = f"{count(agreement.n_annotators)} annotator{'' if agreement.n_annotators == 1 else 's'}"
    text = (
        f"{count(evaluation.n_cases)} cases were predicted, into {count(evaluation.n_classes)} classes; "
        f"{count(labelled)} of them have a label and {count(twice)} have two or more, "
        f"{count(evaluation.n_labels)} labels in all, by {who}."
    )
    if answer.cases.cluster is None:
        return text + " No column names the patient: intervals take the cases for independent of each other."
    patients = len(np.unique(answer.cases.cluster[per_case >= 1]))
    return text + f" The labelled cases are of {count(patients)} patients, which the intervals account for."


def _agreement_sentences(metrics: dict[str, Estimate]) -> list[str]:
    estimate = metrics.get("agreement")
    if estimate is None or not np.isfinite(estimate.value):
        return []
    text = share(estimate.value)
    if estimate.low is not None and estimate.high is not None:
        text += f" ({share(estimate.low)} to {share(estimate.high)})"
    text += " of annotators name the class that the predictions call the most probable"
    if estimate.low_new is not None and estimate.high_new is not None:
        text += f"; for new annotators like these {share(estimate.low_new)} to {share(estimate.high_new)}"
    return [f"{text}."]


def _skill_sentences(estimate: Estimate | None, what: str, constant: str) -> list[str]:
    if estimate is None or not np.isfinite(estimate.value):
        return []
    be = "are" if what.endswith("probabilities") else "is"
    interval_text = _between(estimate)
    if estimate.low is None or estimate.high is None:
        verdict = f"cannot be compared with {constant}: there are too few cases for an interval"
    elif estimate.low > 0:
        ends = f"{share(estimate.low)} to {share(estimate.high)}"
        verdict = f"{be} better than {constant}: the error is {share(estimate.value)} smaller (95 % interval {ends})"
        verdict += _new_annotators_clause(estimate)
    elif estimate.high < 0:
        ends = f"{share(-estimate.high)} to {share(-estimate.low)}"
        verdict = f"{be} worse than {constant}: the error is {share(-estimate.value)} larger (95 % interval {ends})"
        verdict += _new_annotators_clause(estimate)
    else:
        verdict = (
            f"{be} not shown to be better than {constant}: the skill is {probability(estimate.value)} ({interval_text})"
        )
    return [f"{what[0].upper()}{what[1:]} {verdict}."]


def _calibration_sentences(loss: Estimate, error: Estimate, what: str, against: str) -> list[str]:
    if not np.isfinite(loss.value):
        return []
    text = f"Calibration: the {what} and {against} are {probability(error.value)} apart ({_between(error)})"
    if loss.low is None:
        return [text + "."]
    if loss.low <= 0:
        return [text + ", which cannot be told from perfect calibration with these cases."]
    return [text + ", which is more than chance explains."]


def _tail_sentences(bins: Sequence[ReliabilityBin], said: str, seen: str) -> list[str]:
    """Tail bins whose mean probability is outside the observed interval."""
    texts = []
    for row in bins:
        if row.mean_prob is None or row.mean_freq is None or row.freq_low is None or row.freq_high is None:
            continue
        if row.freq_low <= row.mean_prob <= row.freq_high:
            continue
        verdict = "more often" if row.mean_freq > row.mean_prob else "less often"
        texts.append(
            f"Where {said} was given {share(row.low)} to {share(row.high)} ({share(row.mean_prob)} on average, "
            f"n = {count(row.n)}), {seen} {verdict} than said: {share(row.mean_freq)} "
            f"({share(row.freq_low)} to {share(row.freq_high)})."
        )
    if not texts and bins:
        return [f"At both ends (below 10 % and above 90 %) {seen} as often as said, as far as these cases can tell."]
    return texts


def _annotator_sentences(agreement: AgreementReport) -> list[str]:
    alpha = agreement.krippendorff_alpha
    if not np.isfinite(alpha.value):
        return ["How well annotators agree with each other cannot be told from these labels."]
    scale = " on the ordinal scale" if agreement.level == "ordinal" else ""
    text = (
        f"Annotators agree with each other at Krippendorff's α{scale} = {probability(alpha.value)} ({_between(alpha)})"
    )
    texts = [f"{text}; 1 is full agreement, 0 is what chance would give."]
    test = agreement.rater_marginals
    if test is not None and differ(test.p_value):
        texts.append(
            f"Annotators use the classes differently (p = {test.p_value:.3f}): other annotators might give other "
            "numbers, for which the table of metrics has intervals of their own where three or more are named."
        )
    return texts


def comparison_sentences(comparison: Comparison) -> list[str]:
    """Sentences on the comparison of two predictions."""
    texts = [
        f"Both were judged by the same labels of the same {count(comparison.first.n_cases)} cases; a change is the "
        "second less the first, case by case, so it is known better than either value."
    ]
    for name, estimate in comparison.changes.items():
        if not np.isfinite(estimate.value) or estimate.low is None or estimate.high is None:
            continue
        better = estimate.low > 0 if name in LARGER_IS_BETTER else estimate.high < 0
        worse = estimate.high < 0 if name in LARGER_IS_BETTER else estimate.low > 0
        verdict = "better" if better else "worse" if worse else "not shown to differ"
        interval_text = f"{change(estimate.low, 4)} to {change(estimate.high, 4)}"
        second = "The second is" if better or worse else "The two are"
        alone = _new_annotators_clause(estimate, lambda end: change(end, 4)) if better or worse else ""
        texts.append(f"{second} {verdict} in {symbol(name)}: {change(estimate.value, 4)} ({interval_text}){alone}.")
    return texts


def _new_annotators_clause(estimate: Estimate, shown: Callable[[float], str] = share) -> str:
    low, high = estimate.low_new, estimate.high_new
    if low is None or high is None or not low <= 0 <= high:
        return ""
    return f", by these annotators; for new annotators like these {shown(low)} to {shown(high)}, which decides nothing"


def _between(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"95 % interval {probability(estimate.low)} to {probability(estimate.high)}"
