"""Charts of an evaluation's results.

Drawn like those of ``ml.charts.reliability``, from plain rows: the JSON of a report contains all that its figures show.
"""

from collections.abc import Sequence
from dataclasses import asdict

import altair as alt
import numpy as np
from altair.typing import ChartType

from ml.charts.reliability import GREY, apply_chart_style
from ml.charts.rows import (
    CoverageRow,
    MethodLosses,
    ShiftPoint,
    TemperaturePoint,
    ThinningRow,
    TriagePoint,
)

#: Told apart by the colour-blind, most different first.
SERIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"]
_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross"]
_PANELS = ("agreement with experts", "share of images flagged")
_SHIFT_SHAPES = {"none": "circle", "mild": "circle", "standard": "diamond"}
_COLOURS = {"none": GREY, "mild": "#56b4e9", "standard": "#d55e00"}


def series_colour(field: str, names: list[str], colours: Sequence[str] = SERIES) -> alt.Color:
    """Colour of each name in a field, with its legend."""
    scale = alt.Scale(domain=names, range=colours[: len(names)])
    return alt.Color(f"{field}:N", title=None, sort=names, scale=scale)


def _shape(field: str, names: list[str], shapes: Sequence[str] = _SHAPES) -> alt.Shape:
    scale = alt.Scale(domain=names, range=shapes[: len(names)])
    return alt.Shape(f"{field}:N", title=None, sort=names, scale=scale)


def shift_chart(rows: Sequence[ShiftPoint]) -> ChartType:
    """Agreement and share flagged by kind of shift."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    strengths = [word for word in _COLOURS if any(row["strength"] == word for row in rows)]
    panels = []
    for title, field in zip(_PANELS, ("agreement", "flagged"), strict=True):
        values = [{"kind": row["kind"], "strength": row["strength"], "value": row[field]} for row in rows]  # type: ignore[literal-required]
        present_rows = [row for row in values if row["value"] is not None]
        points = (
            alt.Chart(alt.Data(values=present_rows))
            .mark_point(filled=True, size=80, opacity=1)
            .encode(
                x=alt.X("value:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
                y=alt.Y("kind:N", sort=kinds, title=None),
                color=series_colour("strength", strengths, [_COLOURS[word] for word in strengths]),
                shape=_shape("strength", strengths, [_SHIFT_SHAPES[word] for word in strengths]),
            )
        )
        rule = (
            alt.Chart()
            .mark_rule(color=GREY, strokeDash=[3, 3])
            .encode(x=alt.datum(present_rows[0]["value"] if present_rows else 0))
        )
        panels.append(alt.layer(rule, points).properties(width=260, height=22 * len(kinds)))
    return apply_chart_style(alt.hconcat(*panels, spacing=24))


def calibration_dispersion_map(rows: Sequence[MethodLosses]) -> ChartType:
    """Calibration against dispersion loss of methods."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    sums = [row["CL"] + row["DL"] for row in rows]
    xs, ys = [row["DL"] for row in rows], [max(row["CL"], 0.0) for row in rows]
    margin = max(0.15 * (max(xs) - min(xs)), 0.02 * max(xs))
    left, right, top = min(xs) - margin, max(xs) + 3 * margin, max(ys) * 1.15
    if len(rows) == 1:  # nothing to compare with: both losses from zero, on one scale
        left, right, top = 0.0, 1.4 * max(*xs, *ys, 1e-3), 1.4 * max(*xs, *ys, 1e-3)
    levels = np.linspace(min(sums), max(sums), 4).tolist() if max(sums) > min(sums) else sums[:1]
    lines = [{"EL": level, "DL": x, "CL": level - x} for level in levels for x in (left, right)]
    x = alt.X("DL:Q", title="dispersion loss DL", scale=alt.Scale(domain=[left, right]))
    y = alt.Y("CL:Q", title="calibration loss CL", scale=alt.Scale(domain=[0, top]))
    iso = alt.Chart(alt.Data(values=lines)).mark_line(color=GREY, strokeDash=[3, 3], clip=True)
    iso = iso.encode(x=x, y=y, detail="EL:N")
    points = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
    marks = points.mark_point(filled=True, size=90).encode(
        color=series_colour("family", families),
        shape=_shape("family", families),
    )
    names = points.mark_text(align="left", dx=7, fontSize=10).encode(text="method:N")
    return apply_chart_style((iso + marks + names).properties(width=440, height=320))


def temperature_chart(rows: Sequence[TemperaturePoint], fitted: float) -> ChartType:
    """Probabilities by temperature (paper App. E.2)."""
    names = list(dict.fromkeys(row["measure"] for row in rows))
    base = alt.Chart().encode(
        x=alt.X("temperature:Q", title="temperature", scale=alt.Scale(type="log", nice=False)),
        y=alt.Y("value:Q", title=None),
    )
    lines = base.mark_line().encode(
        color=series_colour("measure", names), strokeDash=alt.StrokeDash("measure:N", sort=names, legend=None)
    )
    rule = alt.Chart().mark_rule(color=GREY, strokeDash=[4, 4]).encode(x=alt.datum(fitted))
    panel = alt.layer(rule, lines).properties(width=280, height=220)
    chart = panel.facet(column=alt.Column("panel:N", title=None, sort=None), data=alt.Data(values=rows))
    return apply_chart_style(chart.resolve_scale(y="independent"))


def triage_chart(rows: Sequence[TriagePoint]) -> ChartType:
    """Share of disagreements caught by share of cases sent."""
    names = list(dict.fromkeys(row["score"] for row in rows))
    percent = alt.Axis(format="%", labelOverlap="parity", labelSeparation=8)
    x = alt.X("capacity:Q", title="cases sent for a second read", axis=percent)
    colour = series_colour("score", names).legend(orient="bottom")
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=colour)
    band = base.mark_area(opacity=0.18, clip=True).encode(y="low:Q", y2="high:Q")
    lines = base.mark_line().encode(
        y=alt.Y("value:Q", title="disagreements caught", axis=percent, scale=alt.Scale(domain=[0, 1])),
        strokeDash=alt.StrokeDash("score:N", sort=names, legend=None),
    )
    chance = alt.Chart(alt.Data(values=[{"x": 0, "y": 0}, {"x": 1, "y": 1}]))
    line = chance.mark_line(color=GREY, strokeDash=[4, 4]).encode(x="x:Q", y="y:Q")
    return apply_chart_style((line + band + lines).properties(width=380, height=320))


def thinning_chart(rows: Sequence[ThinningRow]) -> ChartType:
    """Estimates from few labels per case against the answer from all of them."""
    names = list(dict.fromkeys(row["estimator"] for row in rows))
    base = alt.Chart().encode(x=alt.X("labels:O", title="labels kept per case"))
    offset = alt.XOffset("estimator:N", sort=names)
    points = base.mark_point(filled=True, size=60).encode(
        y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
        color=series_colour("estimator", names),
        shape=_shape("estimator", names),
        xOffset=offset,
    )
    bars = base.mark_rule().encode(y="low:Q", y2="high:Q", color=series_colour("estimator", names), xOffset=offset)
    full = alt.Chart().mark_rule(color=GREY, strokeDash=[4, 4]).encode(y="full:Q")
    panel = alt.layer(full, bars, points).properties(width=180, height=220)
    chart = panel.facet(column=alt.Column("metric:N", title=None, sort=None), data=alt.Data(values=rows))
    return apply_chart_style(chart.resolve_scale(y="independent"))


def coverage_chart(rows: Sequence[CoverageRow]) -> ChartType:
    """Coverage of 95 % intervals by estimator."""
    runs = min(row.runs for row in rows)
    half = 1.96 * float(np.sqrt(0.95 * 0.05 / runs))
    values = [asdict(row) | {"size": f"{row.n_cases:,} cases"} for row in rows]
    names = list(dict.fromkeys(row.estimator for row in rows))
    sizes = list(dict.fromkeys(row["size"] for row in values))
    base = alt.Chart().encode(y=alt.Y("estimator:N", sort=names, title=None))
    scale = alt.Scale(domain=[min(0.88, *(row.coverage for row in rows)), 1.0], zero=False, nice=False)
    ends = {"x": alt.XDatum(0.95 - half, scale=scale), "x2": alt.X2Datum(0.95 + half)}
    band = base.mark_rect(opacity=0.12, color=GREY).encode(**ends)
    points = base.mark_point(filled=True, size=60).encode(
        x=alt.X("coverage:Q", title="coverage of 95 % intervals", scale=scale, axis=alt.Axis(format="%")),
        color=series_colour("size", sizes),
        shape=_shape("size", sizes),
    )
    panel = alt.layer(band, points).properties(width=260, height=20 * len(names))
    return apply_chart_style(
        panel.facet(column=alt.Column("panel:N", title=None, sort=None), data=alt.Data(values=values))
    )
