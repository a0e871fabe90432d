"""Geometry of the small charts drawn inside pages; colours and fonts are in the style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from app.http.languages import gettext, localize_decimal
from app.http.models import DistributionOut
from app.metrics.service import ReaderWeekOut

ROW, LABEL, WIDTH = 34, 200, 380
#: Of a letter of a class's name, and how many letters are shown at most; the table below has the whole name.
LETTER, LETTERS = 7.8, 36
# behind the name: the number of labels
_COUNT = " · 00"


@dataclass(frozen=True)
class BarRow:
    """One class: a bar for the prior, one for the posterior, each with its 95% interval, in px."""

    name: str
    shown: str
    y: int
    prior: float
    posterior: float
    prior_interval: tuple[float, float] | None
    posterior_interval: tuple[float, float] | None
    prior_prob: float
    posterior_prob: float
    count: int


@dataclass(frozen=True)
class PosteriorChart:
    """Prior and posterior of a case as bars."""

    rows: list[BarRow]
    height: int
    left: int = LABEL
    scale: int = WIDTH

    @property
    def width(self) -> int:
        """Width of names, bars and numbers together."""
        return self.left + self.scale + 90


def posterior_bars(
    names: dict[str, str], prior: DistributionOut, posterior: DistributionOut, counts: dict[str, int]
) -> PosteriorChart:
    """Lay out prior and posterior class probabilities, class by class, beside names that fit."""
    short_names = {code: name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…" for code, name in names.items()}
    longest = max((len(name) for name in short_names.values()), default=0) + len(_COUNT)
    left = max(LABEL, math.ceil(LETTER * longest) + 10)

    def interval(distribution: DistributionOut, code: str) -> tuple[float, float] | None:
        if distribution.class_intervals is None:
            return None
        low, high = distribution.class_intervals[code]
        return left + WIDTH * low, left + WIDTH * high

    rows = [
        BarRow(
            name=name,
            shown=short_names[code],
            y=index * ROW,
            prior=WIDTH * prior.class_probs[code],
            posterior=WIDTH * posterior.class_probs[code],
            prior_interval=interval(prior, code),
            posterior_interval=interval(posterior, code),
            prior_prob=prior.class_probs[code],
            posterior_prob=posterior.class_probs[code],
            count=counts[code],
        )
        for index, (code, name) in enumerate(names.items())
    ]
    return PosteriorChart(rows, ROW * len(rows) + 22, left)


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
