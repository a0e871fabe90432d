"""Chart specifications drawn without browser or network access.

Colour-blind people can tell the colours apart, and every series also differs in shape or dash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import altair as alt
from altair.typing import ChartType

from ml.charts.rows import EpochMetrics, ZeroMeanRow
from ml.metrics.binned import ReliabilityBin

#: Colour of axes, of diagonals and of what is no data.
_INK, GREY, _PAIR = "#1b1f24", "#8b949e", ["#0072b2", "#d55e00"]
#: Series colours that colour-blind people can tell apart.
FIVE = ["#0072b2", "#56b4e9", "#d55e00", "#cc79a7", "#009e73"]


def apply_chart_style(chart: ChartType) -> ChartType:
    """Apply the house's colours and fonts."""
    configured: ChartType = (
        chart.configure_view(stroke=None)
        .configure_axis(labelColor=_INK, titleColor=_INK, gridColor="#e3e6ea", domainColor=GREY)
        .configure(font="sans-serif", background="#ffffff")
    )
    return configured


def write_chart(chart: ChartType, path: Path) -> None:
    """Write a chart as SVG, PNG or JSON, by extension."""
    if path.suffix not in {".svg", ".png", ".json"}:
        raise ValueError(f"{path}: the extension must be .svg, .png or .json")
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.save(str(path), scale_factor=2 if path.suffix == ".png" else 1)


def learning_curves(history: Sequence[EpochMetrics]) -> ChartType:
    """Losses and validation agreement over epochs."""
    losses = [
        {"epoch": row["epoch"] + 1, "loss": loss, "part": part}
        for row in history
        for loss, part in ((row["train_loss"], "training"), (row["valid_loss"], "validation"))
    ]
    colour = alt.Color("part:N", scale=alt.Scale(range=_PAIR), legend=alt.Legend(title=None, orient="top"))
    curves = (
        alt.Chart(alt.Data(values=losses), width=320, height=220)
        .mark_line(point=True)
        .encode(
            x=alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("loss:Q", title="loss, nats per label", scale=alt.Scale(zero=False)),
            color=colour,
            strokeDash=alt.StrokeDash("part:N", legend=None),
        )
    )
    agreement = (
        alt.Chart(alt.Data(values=[row | {"epoch": row["epoch"] + 1} for row in history]), width=320, height=220)
        .mark_line(point=True, color=_INK)
        .encode(
            x=alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("valid_agreement:Q", title="validation agreement", scale=alt.Scale(zero=False)),
        )
    )
    return apply_chart_style(curves | agreement)


def reliability_diagram(bins: Sequence[ReliabilityBin], *, title: str, what: str) -> ChartType:
    """Observed against predicted frequency, over a histogram."""
    filled = [row.to_dict() for row in bins if row.n > 0]
    ends = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
    diagonal = alt.Chart(alt.Data(values=ends)).mark_line(color=GREY, strokeDash=[4, 4]).encode(x="x:Q", y="y:Q")
    unit = alt.Scale(domain=[0, 1])
    base = alt.Chart(alt.Data(values=filled)).encode(
        x=alt.X("mean_prob:Q", title=f"predicted {what}", scale=unit),
    )
    observed = alt.Y("mean_freq:Q", title=f"observed {what}", scale=unit)
    with_interval = alt.Chart(alt.Data(values=[row for row in filled if row["freq_low"] is not None]))
    intervals = with_interval.mark_rule(color=_PAIR[0]).encode(x="mean_prob:Q", y="freq_low:Q", y2="freq_high:Q")
    runs = [row.to_dict() | {"run": run} for row, run in _runs(bins) if row.n > 1]
    lines = alt.Chart(alt.Data(values=runs)).mark_line(color=_PAIR[0])
    lines = lines.encode(x=alt.X("mean_prob:Q", scale=unit), y=observed, detail="run:N")
    points = base.mark_circle(color=_PAIR[0], size=50).encode(y=observed)
    curve = (diagonal + intervals + lines + points).properties(width=300, height=300, title=title)
    bars = alt.Chart(alt.Data(values=[row.to_dict() for row in bins])).mark_bar(color=GREY, binSpacing=1)
    counts = bars.encode(
        x=alt.X("low:Q", bin="binned", title=None, scale=unit), x2="high:Q", y=alt.Y("n:Q", title="cases")
    ).properties(width=300, height=60)
    return apply_chart_style(alt.vconcat(curve, counts, spacing=6))


def _runs(bins: Sequence[ReliabilityBin]) -> list[tuple[ReliabilityBin, int]]:
    """Bins with cases, and each one's run; one case ends a run."""
    return [(row, sum(other.n == 1 and other.low < row.low for other in bins)) for row in bins if row.n > 0]


def reliability_by_class(classes: Mapping[str, Sequence[ReliabilityBin]], *, columns: int = 4) -> ChartType:
    """Small reliability diagrams, one panel per class, on the same axes."""
    names = [name.replace("_", " ") for name in classes]
    values = [
        row.to_dict() | {"class": name, "run": run}
        for name, bins in zip(names, classes.values(), strict=True)
        for row, run in _runs(bins)
        if row.mean_freq is not None
    ]
    unit = alt.Scale(domain=[0, 1])
    axis = alt.Axis(values=[0, 0.5, 1])
    x = alt.X("mean_prob:Q", title="predicted", scale=unit, axis=axis)
    base = alt.Chart().encode(x=x)
    ends = alt.Data(values=[{"x": 0, "y": 0}, {"x": 1, "y": 1}])
    diagonal = alt.Chart(ends).mark_line(color=GREY, strokeDash=[4, 4]).encode(x="x:Q", y="y:Q")
    intervals = base.mark_rule(color=_PAIR[0]).encode(y="freq_low:Q", y2="freq_high:Q")
    observed = alt.Y("mean_freq:Q", title="observed", scale=unit, axis=axis)
    line = base.transform_filter("datum.n > 1").mark_line(color=_PAIR[0]).encode(y=observed, detail="run:N")
    # the area of a point shows how many cases it stands for
    points = base.mark_circle(color=_PAIR[0], opacity=1).encode(
        y=observed, size=alt.Size("n:Q", title="cases", scale=alt.Scale(range=[8, 120]))
    )
    panel = alt.layer(diagonal, intervals, line, points).properties(width=150, height=150)
    facet = alt.Facet("class:N", title=None, sort=names)
    return apply_chart_style(panel.facet(facet, columns=columns, data=alt.Data(values=values)))


def debias_figure(rows: Sequence[ZeroMeanRow]) -> ChartType:
    """Means of zero-mean estimators by the number of cases."""
    values = [asdict(row) | {"low": row.mean - 2 * row.se, "high": row.mean + 2 * row.se} for row in rows]
    names = list(dict.fromkeys(row.estimator for row in rows))
    base = alt.Chart().encode(
        x=alt.X("n_cases:Q", title="cases", scale=alt.Scale(type="log"), axis=alt.Axis(values=[100, 1_000, 10_000]))
    )
    colour = alt.Color("estimator:N", title=None, sort=names, scale=alt.Scale(range=FIVE))
    lines = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", title="mean estimate (truth 0)"),
        color=colour,
        strokeDash=alt.StrokeDash("estimator:N", sort=names, legend=None),
    )
    bars = base.mark_rule().encode(y="low:Q", y2="high:Q", color=colour)
    zero = alt.Chart().mark_rule(color=GREY).encode(y=alt.datum(0))
    panel = alt.layer(zero, bars, lines).properties(width=300, height=260)
    return apply_chart_style(
        panel.facet(column=alt.Column("n_labels:O", title="labels per case"), data=alt.Data(values=values))
    )


def ends_chart(bins: Sequence[ReliabilityBin], *, what: str) -> ChartType:
    """Predicted and observed frequencies in both tails."""
    halves = ([row for row in bins if row.high <= 0.5], [row for row in bins if row.low >= 0.5])
    panels = [_tail_panel(rows, what) for rows in halves]
    return apply_chart_style(alt.hconcat(*[panel for panel in panels if panel is not None], spacing=24))


def _tail_panel(bins: Sequence[ReliabilityBin], what: str) -> ChartType | None:
    if not bins:
        return None
    values = [row.to_dict() | {"range": f"{100 * row.low:g} to {100 * row.high:g} %"} for row in bins]
    order = [str(row["range"]) for row in values]
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("range:N", sort=order, title=f"predicted {what}", axis=alt.Axis(labelAngle=0, labelAlign="center"))
    )
    scale = alt.Scale(zero=False, nice=True)
    with_interval = alt.Chart(alt.Data(values=[row for row in values if row["freq_low"] is not None]))
    intervals = with_interval.mark_rule(color=_PAIR[0], strokeWidth=2).encode(
        x=alt.X("range:N", sort=order), y=alt.Y("freq_low:Q", scale=scale), y2="freq_high:Q"
    )
    seen = base.mark_point(color=_PAIR[0], filled=True, size=70, opacity=1).encode(
        y=alt.Y("mean_freq:Q", title=f"observed {what}", scale=scale)
    )
    predicted = base.mark_point(shape="diamond", color=GREY, filled=False, size=90, strokeWidth=2).encode(
        y=alt.Y("mean_prob:Q", scale=scale)
    )
    panel: ChartType = (intervals + predicted + seen).properties(width=78 * len(values), height=220)
    return panel
