"""What standard shifts cost a release, and how many of the shifted images it flags."""

from collections.abc import Sequence

import altair as alt
from altair.typing import ChartType

from ml.charts.reliability import GREY, styled
from ml.charts.rows import ShiftPoint

_PANELS = ("agreement with experts", "share of images flagged")
_SHAPES = {"none": "circle", "mild": "circle", "standard": "diamond"}
_COLOURS = {"none": GREY, "mild": "#56b4e9", "standard": "#d55e00"}


def shift_chart(rows: Sequence[ShiftPoint]) -> ChartType:
    """Agreement (left) and share flagged (right) by kind of shift; grey is what they are without any.

    Args:
        rows: of a release's card, the first of them without a shift.
    """
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    strengths = [word for word in _COLOURS if any(row["strength"] == word for row in rows)]
    panels = []
    for title, field in zip(_PANELS, ("agreement", "flagged"), strict=True):
        values = [{"kind": row["kind"], "strength": row["strength"], "value": row[field]} for row in rows]  # type: ignore[literal-required]
        known = [row for row in values if row["value"] is not None]
        points = (
            alt.Chart(alt.Data(values=known))
            .mark_point(filled=True, size=80, opacity=1)
            .encode(
                x=alt.X("value:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
                y=alt.Y("kind:N", sort=kinds, title=None),
                color=alt.Color(
                    "strength:N",
                    title=None,
                    sort=strengths,
                    scale=alt.Scale(domain=strengths, range=[_COLOURS[word] for word in strengths]),
                ),
                shape=alt.Shape(
                    "strength:N",
                    title=None,
                    sort=strengths,
                    scale=alt.Scale(domain=strengths, range=[_SHAPES[word] for word in strengths]),
                ),
            )
        )
        rule = (
            alt.Chart().mark_rule(color=GREY, strokeDash=[3, 3]).encode(x=alt.datum(known[0]["value"] if known else 0))
        )
        panels.append(alt.layer(rule, points).properties(width=260, height=22 * len(kinds)))
    return styled(alt.hconcat(*panels, spacing=24))
