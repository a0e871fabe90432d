"""Audit page: evaluation, agreement, skill and warnings as HTML."""

import base64
import hashlib
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from ml.agreement import AgreementReport
from ml.agreement.tables import AgreementOptions, agreement_of
from ml.audit.evaluate_findings import FindingAudit, TailBins, compute_tail_bins
from ml.audit.sentences import LARGER_IS_BETTER, MEANING, by_order, comparison_sentences, summary_sentences, symbol
from ml.charts.reliability import ends_chart, reliability_by_class, reliability_diagram
from ml.metrics.evaluation import ClassEvaluation
from ml.util.files import file_sha256
from ml.util.number_format import change, count, finite, interval, new_interval, probability, share
from secondread import __version__

if TYPE_CHECKING:
    from altair.typing import ChartType

#: What has the colour of the text, whichever that is.
_INK = {"labelColor": "currentColor", "titleColor": "currentColor"}
_CONFIG = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "title": {"color": "currentColor"},
    "axis": _INK | {"gridColor": "currentColor", "gridOpacity": 0.15, "domainColor": "currentColor"},
    "header": _INK,
    "legend": _INK,
}


def svg_of(chart: "ChartType", name: str) -> Markup:
    """Draw a chart."""
    import vl_convert

    specification = chart.to_dict()
    specification["config"] = _CONFIG
    drawn = str(vl_convert.vegalite_to_svg(json.dumps(specification)))
    # parts that others refer to have the same names in every chart
    drawn = re.sub(r'\bid="', f'id="{name}-', drawn)
    drawn = re.sub(r"url\(#", f"url(#{name}-", drawn)
    # the page's policy allows no style but its own; vega escapes class names
    return Markup(re.sub(r' style="[^"]*"', "", drawn))  # noqa: S704


_TEMPLATES = Path(__file__).parent / "templates"
#: Classes that are drawn and listed; of more, those whose calibration loss is largest.
MAX_CLASSES = 12
#: Annotators and pairs that are listed.
MAX_ROWS = 50
#: Metrics of the table that stands above several findings, where they are there.
OVERVIEW = ("agreement", "L", "skill", "CE", "skill_D", "CE_D", "skill_RPS")


#: Packages whose arithmetic the numbers rest on.
_PACKAGES = ("numpy", "scipy", "pyarrow")


@dataclass(frozen=True)
class FileRecord:
    """A table as it was read."""

    role: str
    path: str
    size: int
    sha256: str

    @classmethod
    def of(cls, role: str, path: Path) -> "FileRecord":
        """Read a file once for its digest; a folder of classes has its labels in the names of its files."""
        if path.is_dir():
            names = sorted(each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
            content = "\n".join(names).encode()
            return cls(role, str(path), len(content), hashlib.sha256(content).hexdigest())
        return cls(role, str(path), path.stat().st_size, file_sha256(path))


@dataclass(frozen=True)
class ProvenanceRecord:
    """Provenance of a page: files, versions and options."""

    files: tuple[FileRecord, ...]
    command: str
    made_at: datetime
    versions: dict[str, str]

    @classmethod
    def now(cls, files: Sequence[FileRecord], command: str) -> "ProvenanceRecord":
        """Record this moment and this installation."""
        versions = {"secondread": __version__, "Python": platform.python_version()}
        versions |= {name: version(name) for name in _PACKAGES}
        return cls(tuple(files), command, datetime.now(UTC), versions)


@dataclass(frozen=True)
class Section:
    """Section of the page on one finding."""

    name: str | None
    anchor: str
    answer: FindingAudit
    agreement: AgreementReport
    ends: TailBins
    sentences: list[str]
    comparison: list[str]
    classes: list[ClassEvaluation]
    charts: dict[str, Markup]
    warnings: list[str]


def section_of(answer: FindingAudit, number: int) -> Section:
    """Everything that the page says about one finding."""
    options = AgreementOptions(cluster=answer.options.cluster, level=answer.options.level)
    agreement = agreement_of(answer.cases.labels, answer.cases.place, options)
    ends, classes, anchor = compute_tail_bins(answer.cases), _shown_classes(answer), f"finding-{number}"
    return Section(
        name=answer.cases.finding,
        anchor=anchor,
        answer=answer,
        agreement=agreement,
        ends=ends,
        sentences=summary_sentences(answer, agreement, ends),
        comparison=[] if answer.comparison is None else comparison_sentences(answer.comparison),
        classes=classes,
        charts=_charts(answer, ends, classes, anchor),
        warnings=list(dict.fromkeys((*answer.evaluation.warnings, *agreement.warnings))),
    )


def _shown_classes(answer: FindingAudit) -> list[ClassEvaluation]:
    classes = list(answer.evaluation.classes)
    if len(classes) <= MAX_CLASSES:
        return classes
    worst = sorted(classes, key=lambda row: -(row.calibration_loss or 0.0))[:MAX_CLASSES]
    return [row for row in classes if row in worst]


def _charts(answer: FindingAudit, ends: TailBins, classes: Sequence[ClassEvaluation], anchor: str) -> dict[str, Markup]:
    evaluation = answer.evaluation
    charts = {}
    if any(row.n for row in evaluation.class_bins):
        charts["classes"] = reliability_diagram(evaluation.class_bins, title="All classes", what="probability")
        charts["each-class"] = reliability_by_class({row.name: row.bins for row in classes})
    if ends.classes:
        charts["classes-ends"] = ends_chart(ends.classes, what="probability")
    if any(row.n for row in evaluation.disagreement_bins):
        charts["disagreement"] = reliability_diagram(
            evaluation.disagreement_bins, title="Disagreement of two annotators", what="disagreement"
        )
    if ends.disagreement:
        charts["disagreement-ends"] = ends_chart(ends.disagreement, what="disagreement")
    return {name: svg_of(chart, f"{anchor}-{name}") for name, chart in charts.items()}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=select_autoescape(), undefined=StrictUndefined
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    filters = (finite, probability, change, interval, new_interval, count, share, symbol, by_order)
    environment.filters.update({function.__name__: function for function in filters})
    return environment


def render_audit_page(answers: Sequence[FindingAudit], record: ProvenanceRecord) -> str:
    """The audit as HTML, in one file that opens offline."""
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


def write_page(answers: Sequence[FindingAudit], record: ProvenanceRecord, path: Path) -> str:
    """Write the page and return the SHA-256 of its bytes."""
    content = render_audit_page(answers, record).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()
