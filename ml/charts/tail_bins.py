"""Charts of predicted and observed frequencies in the ranges of smallest and largest probabilities."""

from collections.abc import Sequence

import altair as alt
from altair.typing import ChartType

from ml.charts.reliability import GREY, apply_chart_style
from ml.metrics.binned import ReliabilityBin

_SEEN = "#0072b2"


def ends_chart(bins: Sequence[ReliabilityBin], *, what: str) -> ChartType:
    """Predicted (diamonds) and observed (circles with 95 % intervals) frequencies in both tails.

    Args:
        bins: ranges with cases, from small to large.
        what: what the probability is of, for the axis title.
    """
    halves = ([row for row in bins if row.high <= 0.5], [row for row in bins if row.low >= 0.5])
    panels = [_panel(rows, what) for rows in halves]
    return apply_chart_style(alt.hconcat(*[panel for panel in panels if panel is not None], spacing=24))


def _panel(bins: Sequence[ReliabilityBin], what: str) -> ChartType | None:
    if not bins:
        return None
    values = [row.to_dict() | {"range": f"{100 * row.low:g} to {100 * row.high:g} %"} for row in bins]
    order = [str(row["range"]) for row in values]
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("range:N", sort=order, title=f"predicted {what}", axis=alt.Axis(labelAngle=0, labelAlign="center"))
    )
    scale = alt.Scale(zero=False, nice=True)
    with_interval = alt.Chart(alt.Data(values=[row for row in values if row["freq_low"] is not None]))
    intervals = with_interval.mark_rule(color=_SEEN, strokeWidth=2).encode(
        x=alt.X("range:N", sort=order), y=alt.Y("freq_low:Q", scale=scale), y2="freq_high:Q"
    )
    seen = base.mark_point(color=_SEEN, filled=True, size=70, opacity=1).encode(
        y=alt.Y("mean_freq:Q", title=f"observed {what}", scale=scale)
    )
    predicted = base.mark_point(shape="diamond", color=GREY, filled=False, size=90, strokeWidth=2).encode(
        y=alt.Y("mean_prob:Q", scale=scale)
    )
    panel: ChartType = (intervals + predicted + seen).properties(width=78 * len(values), height=220)
    return panel
