"""An evaluation for people: one self-contained HTML page with every chart's numbers beside it, and a CSV."""

import csv
import io
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from app.platform.formats import FILTERS

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
    "map": "Calibration-dispersion map: what recalibration and what a better network could mend",
    "triage": "Disagreements caught against the share of cases sent for a second read",
    "each-class": "Reliability of each class's probability",
}


@cache
def _environment() -> Environment:
    found = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape())
    found.trim_blocks = found.lstrip_blocks = True
    found.filters.update(FILTERS)
    return found


def _svg(chart: Any) -> str:
    import json

    import vl_convert

    return str(vl_convert.vegalite_to_svg(json.dumps(chart.to_dict())))


def charts_of(document: dict[str, Any]) -> dict[str, str]:
    """Charts of a report as SVG, by the names of ``CHARTS``, those for which there are numbers."""
    from ml.charts.reliability import reliability_by_class, reliability_diagram
    from ml.charts.results import calibration_dispersion_map, triage_chart

    charts = {}
    if any(row["n"] for row in document["class_bins"]):
        charts["classes"] = _svg(reliability_diagram(document["class_bins"], title="All classes", what="probability"))
        charts["each-class"] = _svg(reliability_by_class(document["classes"]))
    if any(row["n"] for row in document["disagreement_bins"]):
        charts["disagreement"] = _svg(
            reliability_diagram(document["disagreement_bins"], title="Disagreement", what="disagreement")
        )
    parts = _losses(document)
    if all(value is not None for value in parts.values()):
        row = {"method": "this release", "family": "this release", "EL": parts["EL"]}
        row |= {name: max(parts[name], 0.0) for name in ("CL", "DL")}
        charts["map"] = _svg(calibration_dispersion_map([row]))
    if document["triage_curve"]:
        rows = [{"score": "by disagreement probability", **row} for row in document["triage_curve"]]
        charts["triage"] = _svg(triage_chart(rows))
    return {name: charts[name] for name in CHARTS if name in charts}


def _losses(document: dict[str, Any]) -> dict[str, Any]:
    """What the calibration-dispersion map shows: EL and its two parts."""
    names = {"CL": "CL_paired", "DL": "DL", "EL": "EL"}
    return {name: document["metrics"][key]["value"] for name, key in names.items()}


def chart_csv(document: dict[str, Any], name: str) -> str:
    """The numbers that a chart shows, as CSV.

    Args:
        document: of ``metrics_document``.
        name: one of ``CHARTS``.
    """
    rows: list[dict[str, Any]] = {
        "classes": document["class_bins"],
        "each-class": [{"class": row["class"], **one} for row in document["classes"] for one in row["bins"]],
        "disagreement": document["disagreement_bins"],
        "map": [_losses(document)],
        "triage": document["triage_curve"],
    }[name]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def html_report(document: dict[str, Any], evaluation_id: str) -> str:
    """The report as one page that opens offline.

    Args:
        document: of ``metrics_document``, with ``release``, ``question`` and ``agreement``.
        evaluation_id: whose report it is.
    """
    template = _environment().get_template("frozen_report.html")
    # they hold numbers and class names that vega has escaped
    charts = {name: Markup(svg) for name, svg in charts_of(document).items()}  # noqa: S704
    headline = [(name, meaning, document["metrics"][name]) for name, meaning in WORDS.items()]
    return template.render(document=document, id=evaluation_id, headline=headline, charts=charts, titles=CHARTS)


def csv_report(document: dict[str, Any]) -> str:
    """Every metric, one row each."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    columns = ("value", "se", "low", "high", "n", "dropped", "ess", "horvitz_thompson", "largest_weight")
    writer.writerow(["metric", *columns])
    for name, row in document["metrics"].items():
        writer.writerow([name, *(row.get(column) for column in columns)])
    return stream.getvalue()
