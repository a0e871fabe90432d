"""Results as text tables, for people; free of NumPy, so that a command starts fast."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ml.util.number_format import change, probability

if TYPE_CHECKING:
    from ml.agreement import AgreementReport
    from ml.audit.evaluate_findings import AnswerDocument
    from ml.metrics.evaluation import MetricsDocument
    from ml.metrics.jackknife import Estimate, EstimateDocument
    from ml.tables.comparison import ComparisonDocument

#: Annotators, pairs and classes that are listed; JSON has all.
MAX_LINES = 40
#: Columns of the table with one row per finding, where they are there.
_OVERVIEW = ("agreement", "L", "skill", "CE", "EL", "L_D", "skill_D", "CE_D", "RPS")


def metrics_table(document: "MetricsDocument") -> str:
    """Text table of an evaluation, with intervals, for people."""
    lines = [f"{document['n_cases']:,} cases, {document['n_labels']:,} labels, {document['n_classes']} classes"]
    width = max(12, 1 + max(map(len, document["metrics"]), default=0))
    others = any(row["low_new"] is not None for row in document["metrics"].values())
    head = f"{'for new annotators':>22}" if others else ""
    lines.append(f"{'metric':<{width}}{'value':>10}{'95 % interval':>22}{head}{'cases':>9}{'dropped':>9}")
    for name, row in document["metrics"].items():
        new = "–" if row["low_new"] is None else f"{row['low_new']:.4f} to {row['high_new']:.4f}"
        also = f"{new:>22}" if others else ""
        lines.append(
            f"{name:<{width}}{number_cell(row['value']):>10}{interval_cell(row):>22}{also}{row['n']:>9,}{row['dropped']:>9,}"
        )
    return "\n".join(lines + [f"warning: {text}" for text in document["warnings"]])


def number_cell(value: float | None) -> str:
    """Write a number with four digits, or a dash."""
    return "–" if value is None else f"{value:.4f}"


def interval_cell(row: "EstimateDocument") -> str:
    """Write the 95 % interval, or a dash."""
    return "–" if row["low"] is None else f"{row['low']:.4f} to {row['high']:.4f}"


def comparison_table(document: "ComparisonDocument") -> str:
    """Text table of two predictions of the same cases."""
    lines = [f"compared on {document['n_cases']:,} cases that both predict; change: second less first"]
    others = any(row["low_new"] is not None for row in document["changes"].values())
    head = f"{'for new annotators':>24}" if others else ""
    lines.append(f"{'metric':<12}{'first':>10}{'second':>10}{'change':>10}{'95 % interval':>24}{head}{'cases':>9}")
    for name, row in document["changes"].items():
        values = [document[side].get(name, row)["value"] for side in ("first", "second")]
        between = "–" if row["low"] is None else f"{change(row['low'], 4)} to {change(row['high'], 4)}"
        new = "–" if row["low_new"] is None else f"{change(row['low_new'], 4)} to {change(row['high_new'], 4)}"
        also = f"{new:>24}" if others else ""
        value_cells = "".join(f"{probability(value, 4):>10}" for value in values)
        lines.append(f"{name:<12}{value_cells}{change(row['value'], 4):>10}{between:>24}{also}{row['n']:>9,}")
    if document["left_out"]:
        lines.append(f"warning: {len(document['left_out']):,} labelled cases are not predicted by the second")
    return "\n".join(lines)


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
