"""Results as text tables, for people."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ml.util.number_format import probability
from ml.util.result_tables import comparison_table, metrics_table

if TYPE_CHECKING:
    from ml.agreement import AgreementReport
    from ml.audit.evaluate_findings import AnswerDocument
    from ml.metrics.jackknife import Estimate

#: Annotators, pairs and classes that are listed; JSON has all.
MAX_LINES = 40
#: Columns of the table with one row per finding, where they are there.
_OVERVIEW = ("agreement", "L", "skill", "CE", "EL", "L_D", "skill_D", "CE_D", "RPS")


def _interval(estimate: "Estimate") -> str:
    row = estimate.to_dict()
    if row["value"] is None:
        return "–"
    between = "" if row["low"] is None else f"  ({row['low']:.3f} to {row['high']:.3f})"
    return f"{row['value']:.3f}{between}"


def agreement_table(report: "AgreementReport") -> str:
    """Text table of agreement, for people."""
    who = "annotators not named" if report.n_annotators is None else f"{report.n_annotators:,} annotators"
    lines = [f"{report.n_cases:,} cases, {report.n_labels:,} labels, {who}"]
    ordinal = report.level == "ordinal"
    alpha, kappa = (
        ("Krippendorff alpha, ordinal", "weighted kappa ") if ordinal else ("Krippendorff alpha", "Cohen kappa ")
    )
    lines.append(f"{alpha:<44}{_interval(report.krippendorff_alpha)}")
    lines += _shortened([f"{'  class ' + row.name:<44}{_interval(row.krippendorff_alpha)}" for row in report.classes])
    lines += _shortened([f"{'  site ' + str(row.site):<44}{_interval(row.krippendorff_alpha)}" for row in report.sites])
    pairs = [f"{kappa + ' and '.join(pair.annotators):<44}{_interval(pair.cohen_kappa)}" for pair in report.pairs]
    lines += _shortened(pairs)
    lines += _shortened(
        [
            f"{row.annotator + ' agrees with others':<44}{_interval(row.agreement_with_others)}"
            for row in report.annotators
        ]
    )
    if report.rater_marginals is not None:
        lines.append(f"{'annotators use classes alike: p':<44}{report.rater_marginals.p_value:.3f}")
    return "\n".join(lines + [f"warning: {text}" for text in report.warnings])


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[:MAX_LINES], f"  … and {len(lines) - MAX_LINES:,} more, all with --json"]


def answer_table(document: "AnswerDocument") -> str:
    """The same, with the comparison where there is one."""
    text = metrics_table(document)
    return text if "against" not in document else f"{text}\n\n{comparison_table(document['against'])}"


def findings_table(documents: "Mapping[str, AnswerDocument]") -> str:
    """Text table with one row per finding; all metrics are in the JSON document."""
    first = next(iter(documents.values()))
    names = [name for name in _OVERVIEW if name in first["metrics"]]
    width = 2 + max(len(name) for name in (*documents, "finding"))
    lines = [f"{'finding':<{width}}{'cases':>8}{'labels':>9}" + "".join(f"{name:>11}" for name in names)]
    for finding, document in documents.items():
        values = "".join(f"{probability(document['metrics'][name]['value'], 4):>11}" for name in names)
        lines.append(f"{finding:<{width}}{document['n_cases']:>8,}{document['n_labels']:>9,}{values}")
    for finding, document in documents.items():
        if "against" in document:
            lines += ["", f"{finding}: {comparison_table(document['against'])}"]
    warned = [f"warning: {finding}: {text}" for finding, row in documents.items() for text in row["warnings"]]
    return "\n".join(lines + warned)
