"""An evaluation for people: one self-contained HTML page with every chart's numbers beside it, and a CSV."""

import csv
import io
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

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


@cache
def _environment() -> Environment:
    folder = Path(__file__).parent / "templates"
    found = Environment(loader=FileSystemLoader(folder), autoescape=select_autoescape())
    found.trim_blocks = found.lstrip_blocks = True
    return found


def _svg(chart: Any) -> str:
    import json

    import vl_convert

    return str(vl_convert.vegalite_to_svg(json.dumps(chart.to_dict())))


def charts_of(document: dict[str, Any]) -> dict[str, str]:
    """Charts of a report as SVG, by name."""
    from ml.plots import reliability_diagram
    from ml.result_plots import calibration_dispersion_map, triage_chart

    charts = {}
    if any(row["n"] for row in document["class_bins"]):
        charts["classes"] = _svg(reliability_diagram(document["class_bins"], title="All classes", what="probability"))
    if any(row["n"] for row in document["disagreement_bins"]):
        charts["disagreement"] = _svg(
            reliability_diagram(document["disagreement_bins"], title="Disagreement", what="disagreement")
        )
    metrics = document["metrics"]
    parts = [metrics[name]["value"] for name in ("CL_paired", "DL", "EL")]
    if all(value is not None for value in parts):
        row = {
            "method": "this release",
            "family": "this release",
            "CL": max(parts[0], 0.0),
            "DL": max(parts[1], 0.0),
            "EL": parts[2],
        }
        charts["map"] = _svg(calibration_dispersion_map([row]))
    if document["triage_curve"]:
        rows = [{"score": "DPE", **row} for row in document["triage_curve"]]
        charts["triage"] = _svg(triage_chart(rows))
    return charts


def html_report(document: dict[str, Any], evaluation_id: str) -> str:
    """The report as one page that opens offline.

    Args:
        document: of ``metrics_document``, with ``release`` and ``question``.
        evaluation_id: whose report it is.
    """
    template = _environment().get_template("report.html")
    # they hold numbers and class names that vega has escaped
    charts = {name: Markup(svg) for name, svg in charts_of(document).items()}  # noqa: S704
    headline = [(name, meaning, document["metrics"][name]) for name, meaning in WORDS.items()]
    return template.render(document=document, id=evaluation_id, headline=headline, charts=charts)


def csv_report(document: dict[str, Any]) -> str:
    """Every metric, one row each."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    columns = ("value", "se", "low", "high", "n", "dropped", "ess", "horvitz_thompson", "largest_weight")
    writer.writerow(["metric", *columns])
    for name, row in document["metrics"].items():
        writer.writerow([name, *(row.get(column) for column in columns)])
    return stream.getvalue()
