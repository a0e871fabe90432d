"""The audit as one page: no script, nothing from outside, by day, by night and on paper."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ml.agreement import AgreementReport
from ml.agreement.tables import AgreementOptions, agreement_of
from ml.audit.answers import Answer
from ml.audit.drawing import svg_of
from ml.audit.ends import Ends, end_bins
from ml.audit.record import Record
from ml.audit.sentences import compared, summary
from ml.audit.words import LARGER_IS_BETTER, MEANING, by_order, symbol
from ml.charts.ends import ends_chart
from ml.charts.reliability import reliability_by_class, reliability_diagram
from ml.metrics.evaluation import ClassEvaluation
from ml.shown_numbers import change, count, interval, new_interval, probability, share

_TEMPLATES = Path(__file__).parent / "templates"
#: Classes that are drawn and listed; of more, those whose calibration loss is largest.
MAX_CLASSES = 12
#: Annotators and pairs that are listed.
MAX_ROWS = 50
#: Metrics of the table that stands above several findings, where they are there.
OVERVIEW = ("agreement", "L", "skill", "CE", "skill_D", "CE_D", "skill_RPS")


@dataclass(frozen=True)
class Section:
    """What the page says about one finding.

    Attributes:
        name: of the finding; None where the tables have none.
        anchor: identifier on the page.
        answer: the numbers.
        agreement: between annotators.
        ends: reliability of the smallest and largest probabilities.
        sentences: the summary.
        comparison: sentences on the other predictions.
        classes: those that are drawn and listed.
        charts: SVG by name.
        warnings: of evaluation and agreement.
    """

    name: str | None
    anchor: str
    answer: Answer
    agreement: AgreementReport
    ends: Ends
    sentences: list[str]
    comparison: list[str]
    classes: list[ClassEvaluation]
    charts: dict[str, Markup]
    warnings: list[str]


def section_of(answer: Answer, number: int) -> Section:
    """Everything that the page says about one finding."""
    options = AgreementOptions(cluster=answer.options.cluster, level=answer.options.level)
    agreement = agreement_of(answer.cases.labels, answer.cases.place, options)
    ends, classes, anchor = end_bins(answer.cases), _shown_classes(answer), f"finding-{number}"
    return Section(
        name=answer.cases.finding,
        anchor=anchor,
        answer=answer,
        agreement=agreement,
        ends=ends,
        sentences=summary(answer, agreement, ends),
        comparison=[] if answer.comparison is None else compared(answer.comparison),
        classes=classes,
        charts=_charts(answer, ends, classes, anchor),
        warnings=list(dict.fromkeys((*answer.evaluation.warnings, *agreement.warnings))),
    )


def _shown_classes(answer: Answer) -> list[ClassEvaluation]:
    classes = list(answer.evaluation.classes)
    if len(classes) <= MAX_CLASSES:
        return classes
    worst = sorted(classes, key=lambda row: -(row.calibration_loss or 0.0))[:MAX_CLASSES]
    return [row for row in classes if row in worst]


def _charts(answer: Answer, ends: Ends, classes: Sequence[ClassEvaluation], anchor: str) -> dict[str, Markup]:
    found = answer.evaluation
    charts = {}
    if any(row.n for row in found.class_bins):
        charts["classes"] = reliability_diagram(found.class_bins, title="All classes", what="probability")
        charts["each-class"] = reliability_by_class({row.name: row.bins for row in classes})
    if ends.classes:
        charts["classes-ends"] = ends_chart(ends.classes, what="probability")
    if any(row.n for row in found.disagreement_bins):
        charts["disagreement"] = reliability_diagram(
            found.disagreement_bins, title="Disagreement of two annotators", what="disagreement"
        )
    if ends.disagreement:
        charts["disagreement-ends"] = ends_chart(ends.disagreement, what="disagreement")
    return {name: svg_of(chart, f"{anchor}-{name}") for name, chart in charts.items()}


def finite(value: float | None) -> float | None:
    """None where a value is not a number.

    >>> finite(float("nan")), finite(0.5)
    (None, 0.5)
    """
    return None if value is None or not isfinite(value) else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=select_autoescape(), undefined=StrictUndefined
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters.update(
        {
            "finite": finite,
            "probability": probability,
            "change": change,
            "interval": interval,
            "new_interval": new_interval,
            "count": count,
            "share": share,
            "symbol": symbol,
            "by_order": by_order,
        }
    )
    return environment


def page(answers: Sequence[Answer], record: Record) -> str:
    """The audit as HTML, in one file that opens offline.

    Args:
        answers: one per finding.
        record: which files, programs and options it rests on.
    """
    style = (_TEMPLATES / "audit.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    values = {
        # a file of this package, and the policy below allows it by its digest
        "style": Markup(style),  # noqa: S704
        "policy": f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        "sections": [section_of(answer, number) for number, answer in enumerate(answers, start=1)],
        "record": record,
        "options": answers[0].options,
        "meaning": MEANING,
        "larger": LARGER_IS_BETTER,
        "overview": [name for name in OVERVIEW if name in answers[0].evaluation.metrics],
        "max_rows": MAX_ROWS,
    }
    return _environment().get_template("audit.html").render(values)


def write_page(answers: Sequence[Answer], record: Record, path: Path) -> str:
    """Write the page and return the SHA-256 of its bytes.

    Raises:
        OSError: it cannot be written.
    """
    content = page(answers, record).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()
