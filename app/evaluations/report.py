"""An evaluation for people: one self-contained HTML page with the numbers of every chart, and a CSV."""

import csv
import io
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from app.evaluations.schemas import BinOut, CapacityOut, FrozenDocument, MetricsBody
from app.platform.formats import FILTERS
from app.platform.values import MetricOut

#: Templates of reports; pages use their sections.
TEMPLATES = Path(__file__).parent / "templates"

#: What each headline metric says, in words.
WORDS = {
    "accuracy": "share of cells whose most probable class is the annotators' most frequent one",
    "L": "squared error of the class probabilities for one annotator's label (0 best, 2 worst)",
    "EL": "the part of L that better probabilities could avoid",
    "CL": "the part of EL that recalibration could avoid",
    "CE": "calibration error of the class probabilities, the root of CL",
    "DL": "the part of EL that needs a better network",
    "L_D": "squared error of the disagreement probability",
    "CL_D": "the part of it that recalibration could avoid",
    "CE_D": "calibration error of the disagreement probability",
}
#: What each chart shows, for those who cannot see it, in the order of the report.
CHARTS = {
    "classes": "Reliability of the class probabilities: observed frequency against predicted probability",
    "disagreement": "Reliability of the disagreement probability",
    "map": "Calibration-dispersion map: what recalibration and what a better network could fix",
    "triage": "Disagreements caught against the share of cases sent for a second read",
    "each-class": "Reliability of each class's probability",
}


@cache
def _environment() -> Environment:
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape())
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters.update(FILTERS)
    return environment


#: Stands where a chart would, on a server without the extra [charts].
_NO_CHARTS = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="440" height="40"><text x="4" y="24" font-family="sans-serif" '
    'font-size="13">No charts: the extra [charts] is not installed here. The tables list the numbers.</text></svg>'
)


def _svg(chart: Any) -> str:
    import json

    import vl_convert

    return str(vl_convert.vegalite_to_svg(json.dumps(chart.to_dict())))


def chart_rows(document: MetricsBody, name: str) -> list[dict[str, Any]]:
    """The numbers that a chart shows; none where there is nothing to draw.

    Args:
        document: of an evaluation.
        name: one of ``CHARTS``.
    """
    if name == "classes":
        return _bin_rows(document.class_bins)
    if name == "disagreement":
        return _bin_rows(document.disagreement_bins)
    if name == "each-class":
        labelled = any(row.n for row in document.class_bins)
        return [{"class": c.name, **row.model_dump()} for c in document.classes for row in c.bins] if labelled else []
    if name == "map":
        names = {"CL": "CL_paired", "DL": "DL", "EL": "EL"}
        losses = {part: document.metrics[metric].value for part, metric in names.items()}
        return [] if None in losses.values() else [losses]
    return triage_rows(document.triage_curve)


def _bin_rows(bins: list[BinOut]) -> list[dict[str, Any]]:
    return [row.model_dump() for row in bins] if any(row.n for row in bins) else []


def triage_rows(curve: list[CapacityOut]) -> list[dict[str, Any]]:
    """The numbers of the chart ``triage``, for those who have the curve alone."""
    return [row.model_dump() for row in curve]


def draw_chart(rows: list[dict[str, Any]], name: str) -> str:
    """A chart as SVG; a line of text on a server that cannot draw.

    Args:
        rows: of ``chart_rows``, at least one.
        name: one of ``CHARTS``.
    """
    try:
        return _drawn(rows, name)
    except ModuleNotFoundError:
        return _NO_CHARTS


def _drawn(rows: list[dict[str, Any]], name: str) -> str:
    from ml.charts.reliability import reliability_by_class, reliability_diagram
    from ml.charts.results import calibration_dispersion_map, triage_chart

    if name == "classes":
        return _svg(reliability_diagram(rows, title="All classes", what="probability"))
    if name == "disagreement":
        return _svg(reliability_diagram(rows, title="Disagreement", what="disagreement"))
    if name == "each-class":
        bins: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            bins.setdefault(row["class"], []).append(row)
        return _svg(reliability_by_class([{"class": code, "bins": inside} for code, inside in bins.items()]))
    if name == "map":
        parts = {"EL": rows[0]["EL"]} | {part: max(rows[0][part], 0.0) for part in ("CL", "DL")}
        return _svg(calibration_dispersion_map([{"method": "this release", "family": "this release", **parts}]))
    return _svg(triage_chart([{"score": "by disagreement probability", **row} for row in rows]))


def chart_csv(rows: list[dict[str, Any]]) -> str:
    """The numbers that a chart shows, as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def headline(document: MetricsBody) -> list[tuple[str, str, MetricOut]]:
    """Name, meaning and estimate of each headline metric."""
    return [(name, meaning, document.metrics[name]) for name, meaning in WORDS.items()]


def html_report(document: FrozenDocument, evaluation_id: str) -> str:
    """The report as one page that opens offline."""
    template = _environment().get_template("frozen_report.html")
    rows = {name: chart_rows(document, name) for name in CHARTS}
    # they contain numbers and class names that vega has escaped
    charts = {name: Markup(draw_chart(shown, name)) for name, shown in rows.items() if shown}  # noqa: S704
    values = {"id": evaluation_id, "headline": headline(document), "charts": charts, "titles": CHARTS}
    return template.render(document=document, **values)


def csv_report(document: MetricsBody) -> str:
    """Every metric, one row each."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    columns = ("value", "se", "low", "high", "n", "dropped", "ess", "horvitz_thompson", "largest_weight")
    writer.writerow(["metric", *columns])
    for name, estimate in document.metrics.items():
        writer.writerow([name, *(getattr(estimate, column) for column in columns)])
    return stream.getvalue()
