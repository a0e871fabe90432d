"""Geometry of the small charts drawn inside pages; colours and fonts are in the style sheet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from app.http.languages import gettext, localize_decimal
from app.http.models import DistributionOut
from app.metrics.service import ReaderWeekOut


@dataclass(frozen=True)
class BarRow:
    """One class: its name, prior and posterior probability with their 95% intervals, and its number of labels."""

    name: str
    prior: float
    posterior: float
    prior_interval: tuple[float, float] | None
    posterior_interval: tuple[float, float] | None
    count: int


def posterior_bars(
    names: dict[str, str], prior: DistributionOut, posterior: DistributionOut, counts: dict[str, int]
) -> list[BarRow]:
    """Prior and posterior class probabilities, class by class."""
    return [
        BarRow(
            name=name,
            prior=prior.class_probs[code],
            posterior=posterior.class_probs[code],
            prior_interval=None if prior.class_intervals is None else prior.class_intervals[code],
            posterior_interval=None if posterior.class_intervals is None else posterior.class_intervals[code],
            count=counts[code],
        )
        for code, name in names.items()
    ]


WEEKS, _PLOT_HEIGHT, _PLOT_LEFT, _STEP_WIDTH = 26, 120, 52, 22


@dataclass(frozen=True)
class WeekMark:
    """A week's mean and band, in px from the top left."""

    x: int
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True)
class WeekChart:
    """Means of the last weeks with their bands, beside the line of zero."""

    marks: list[WeekMark]
    # of the vertical axis, value and y
    ticks: list[tuple[float, float]]
    zero: float
    # Monday of the first week that is shown
    first: date
    # Monday of the last one
    last: date
    width: int
    height: int = _PLOT_HEIGHT + 24
    left: int = _PLOT_LEFT


def week_chart(weeks: Sequence[ReaderWeekOut]) -> WeekChart:
    """Lay out the last weeks, of which there is at least one."""
    recent_weeks = weeks[-WEEKS:]
    top = max(*(row.high for row in recent_weeks), 0.5)
    bottom = min(*(row.low for row in recent_weeks), -0.5)
    scale = _PLOT_HEIGHT / (top - bottom)

    def down(value: float) -> float:
        return 6 + (top - value) * scale

    marks = [
        WeekMark(
            x=_PLOT_LEFT + _STEP_WIDTH * ((row.week - recent_weeks[0].week).days // 7) + _STEP_WIDTH // 2,
            y=down(row.excess_loss),
            low=down(row.low),
            high=down(row.high),
            title=gettext(
                "week of %(week)s: %(value)s (%(low)s to %(high)s)",
                week=row.week,
                value=localize_decimal(f"{row.excess_loss:+.2f}"),
                low=localize_decimal(f"{row.low:+.2f}"),
                high=localize_decimal(f"{row.high:+.2f}"),
            ),
        )
        for row in recent_weeks
    ]
    step = 0.5 if top - bottom < 3 else 1.0
    ticks = [(value, down(value)) for value in step * np.arange(np.ceil(bottom / step), np.floor(top / step) + 1)]
    return WeekChart(
        marks, ticks, down(0.0), recent_weeks[0].week, recent_weeks[-1].week, width=marks[-1].x + _STEP_WIDTH
    )
