"""An evaluation for people: one self-contained HTML page with the numbers of every chart, and a CSV."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment
from markupsafe import Markup

from app.evaluations.schemas import BinOut, CapacityOut, FrozenDocument, MetricsBody, ScoreMonitorOut
from app.platform.formats import templates_in
from app.platform.values import MetricOut
from ml.charts.rows import CapitalPoint, MethodLosses, TriagePoint
from ml.metrics.evaluation import ReliabilityBin

if TYPE_CHECKING:
    from altair.typing import ChartType

#: Templates of reports; pages use their sections.
TEMPLATES = Path(__file__).parent / "templates"

#: Digits of the headline metrics.
SHOWN_DIGITS = 4
#: What each headline metric says, in words.
WORDS = {
    "agreement": "share of the annotators who name the most probable class",
    "accuracy": "share of cells with three labels whose most probable class is the annotators' most frequent one",
    "L": "squared error of the class probabilities for one annotator's label (0 best, 2 worst)",
    "skill": "by how much L is smaller than that of the class frequencies (1 best, 0 no better)",
    "EL": "the part of L that better probabilities could avoid",
    "CL_paired": "the part of EL that recalibration could avoid",
    "DL": "the part of EL that needs a better network: EL = CL + DL, all three on the cases with two labels",
    "CL": "CL over every case with a label, which is no part of the EL above",
    "CE": "calibration error of the class probabilities, the root of CL₁",
    "L_D": "squared error of the disagreement probability",
    "skill_D": "by how much it is smaller than that of one constant for all cells (1 best, 0 no better)",
    "L_D_minus_max": "L_D less that of 1 − max f taken for φ (below 0: better)",
    "L_D_minus_gini": "L_D less that of 1 − Σf² taken for φ (below 0: better)",
    "CL_D": "the part of it that recalibration could avoid",
    "CE_D": "calibration error of the disagreement probability",
}
#: What each chart shows, for those who cannot see it, in the order of the report.
CHARTS = {
    "classes": "Reliability of the class probabilities: observed frequency against predicted probability",
    "disagreement": "Reliability of the disagreement probability",
    "map": "Calibration-dispersion map: what recalibration and what a better network could fix",
    "triage": "Disagreements caught against the share of cases sent for a second read",
    "monitor": "Alarm on the log score: what bets on a score that has become worse are worth",
    "each-class": "Reliability of each class's probability",
}


@cache
def environment() -> Environment:
    """Templates of reports."""
    return templates_in(TEMPLATES)


#: Stands where a chart would, on a server without the extra [charts].
_NO_CHARTS = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="440" height="40"><text x="4" y="24" font-family="sans-serif" '
    'font-size="13">No charts: the extra [charts] is not installed here. The tables list the numbers.</text></svg>'
)


@dataclass(frozen=True)
class ChartData:
    """A chart before it is drawn.

    Attributes:
        rows: the numbers that it shows, at least one row, with the same names in each.
        draw: makes it, with the extra [charts].
    """

    rows: Sequence[Mapping[str, object]]
    draw: Callable[[], "ChartType"]


def chart_data(document: MetricsBody, name: str) -> ChartData | None:
    """What a chart shows; None where there is nothing to draw.

    Args:
        document: of an evaluation.
        name: one of ``CHARTS``.
    """
    if name == "classes":
        return _reliability(document.class_bins, "All classes", "probability")
    if name == "disagreement":
        return _reliability(document.disagreement_bins, "Disagreement", "disagreement")
    if name == "each-class":
        return _each_class(document) if any(row.n for row in document.class_bins) else None
    if name == "map":
        return _map(document)
    if name == "monitor":
        return _monitor(document.score_monitor)
    return triage_data(document.triage_curve)


def _bins(bins: list[BinOut]) -> list[ReliabilityBin]:
    return [
        ReliabilityBin(row.low, row.high, row.n, row.mean_prob, row.mean_freq, row.freq_low, row.freq_high)
        for row in bins
    ]


def _reliability(bins: list[BinOut], title: str, what: str) -> ChartData | None:
    if not any(row.n for row in bins):
        return None

    def draw() -> "ChartType":
        from ml.charts.reliability import reliability_diagram

        return reliability_diagram(_bins(bins), title=title, what=what)

    return ChartData([row.model_dump() for row in bins], draw)


def _each_class(document: MetricsBody) -> ChartData:
    def draw() -> "ChartType":
        from ml.charts.reliability import reliability_by_class

        return reliability_by_class({row.name: _bins(row.bins) for row in document.classes})

    return ChartData([{"class": c.name, **row.model_dump()} for c in document.classes for row in c.bins], draw)


def _map(document: MetricsBody) -> ChartData | None:
    calibration, dispersion, epistemic = (document.metrics[name].value for name in ("CL_paired", "DL", "EL"))
    if calibration is None or dispersion is None or epistemic is None:
        return None
    below = [name for name, value in (("CL", calibration), ("DL", dispersion)) if value < 0]
    losses: MethodLosses = {
        "method": "this release" + (f" ({' and '.join(below)} below 0, drawn at 0)" if below else ""),
        "family": "this release",
        "CL": max(calibration, 0.0),
        "DL": max(dispersion, 0.0),
    }

    def draw() -> "ChartType":
        from ml.charts.results import calibration_dispersion_map

        return calibration_dispersion_map([losses])

    return ChartData([{"CL": calibration, "DL": dispersion, "EL": epistemic}], draw)


def _monitor(monitors: list[ScoreMonitorOut]) -> ChartData | None:
    points: list[CapitalPoint] = [
        {"series": monitor.site or "all", "n_units": step.n_units, "log10_capital": step.log10_capital}
        for monitor in monitors
        for step in monitor.steps
    ]
    if not points:
        return None

    def draw() -> "ChartType":
        from ml.charts.results import capital_chart

        return capital_chart(points, log10_threshold=monitors[0].log10_threshold)

    return ChartData(points, draw)


def triage_data(curve: list[CapacityOut]) -> ChartData | None:
    """What the chart ``triage`` shows, for those who have the curve alone."""
    if not curve:
        return None

    def draw() -> "ChartType":
        from ml.charts.results import triage_chart

        return triage_chart([_triage_point(row) for row in curve])

    return ChartData([row.model_dump() for row in curve], draw)


def _triage_point(row: CapacityOut) -> TriagePoint:
    score = "by disagreement probability"
    return {"score": score, "capacity": row.capacity, "value": row.value, "low": row.low, "high": row.high}


def draw_chart(chart: ChartData) -> str:
    """A chart as SVG; a line of text on a server that cannot draw."""
    try:
        import vl_convert

        return str(vl_convert.vegalite_to_svg(json.dumps(chart.draw().to_dict())))
    except ModuleNotFoundError:
        return _NO_CHARTS


def chart_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """The numbers that a chart shows, as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def headline(document: MetricsBody) -> list[tuple[str, str, MetricOut]]:
    """Name, meaning and estimate of each headline metric that could be measured when the document was made.

    DL is shown as the shown EL less the shown CL, so that the parts add up to the whole on paper too.
    """
    shown = document.metrics | adding_up(document)
    known = [(name, meaning, shown[name]) for name, meaning in WORDS.items() if name in shown]
    return [row for row in known if row[0] != "accuracy" or row[2].n > 0]


def adding_up(document: MetricsBody) -> dict[str, MetricOut]:
    """EL, the CL of the same cases and DL, rounded as they are shown, such that EL = CL + DL; nothing without them."""
    found = [document.metrics.get(name) for name in ("EL", "CL_paired", "DL")]
    if any(one is None or one.value is None for one in found):
        return {}
    whole, calibration, dispersion = (one for one in found if one is not None)
    rounded = [round(one.value or 0.0, SHOWN_DIGITS) for one in (whole, calibration)]
    rest = round(rounded[0] - rounded[1], SHOWN_DIGITS)
    values = zip((whole, calibration, dispersion), (*rounded, rest), strict=True)
    return dict(zip(("EL", "CL_paired", "DL"), (one.model_copy(update={"value": v}) for one, v in values), strict=True))


def html_report(document: FrozenDocument, evaluation_id: str, at: datetime) -> str:
    """The report as one page that opens offline, with the time at which it was frozen."""
    template = environment().get_template("frozen_report.html")
    shown = {name: chart for name in CHARTS if (chart := chart_data(document, name)) is not None}
    # they contain numbers and class names that vega has escaped
    charts = {name: Markup(draw_chart(chart)) for name, chart in shown.items()}  # noqa: S704
    values = {"id": evaluation_id, "headline": headline(document), "charts": charts, "titles": CHARTS, "at": at}
    return template.render(document=document, **values)


def csv_report(document: MetricsBody) -> str:
    """Every metric, one row each."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    ends = ("low", "high", "low_new", "high_new")
    columns = ("value", "se", *ends, "n", "dropped", "ess", "horvitz_thompson", "largest_weight")
    assisted = ("value", "se", "low", "high")
    writer.writerow(["metric", *columns, *(f"model_assisted_{column}" for column in assisted)])
    for name, estimate in document.metrics.items():
        also = [getattr(estimate.model_assisted, column, None) for column in assisted]
        writer.writerow([name, *(getattr(estimate, column) for column in columns), *also])
    return stream.getvalue()
