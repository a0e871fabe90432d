"""Geometry of a report's charts in per cent of their width and height: as wide as their card, with colours of the page.

Points of one case stand alone: a line joins neighbouring bins only where both are of more than one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from typing import NamedTuple

from app.evaluations.report_schemas import TrendOut, WeekOut, WhatIfOut
from app.evaluations.report_sentences import ends, percent
from app.evaluations.schemas import BinOut, ScoreMonitorOut
from app.http.languages import decimal, gettext, noted


class Tick(NamedTuple):
    """Place of a label on an axis."""

    at: float
    text: str


class Segment(NamedTuple):
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Mark:
    """A point with its interval; ``said``: of what was predicted, drawn as a diamond."""

    x: float
    y: float
    low: float | None
    high: float | None
    title: str
    said: bool = False
    single: bool = False


class Bar(NamedTuple):
    """A bar from the bottom; ``kind`` tells which series."""

    x: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True)
class Plot:
    """A chart."""

    x_title: str
    y_title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    marks: list[Mark] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    #: corners of a band, «x,y x,y …»
    band: str = ""
    diagonal: bool = False
    #: a line from top to bottom with what it means
    rule: Tick | None = None


#: Short names of months.
_MONTHS = (
    *(noted("Jan"), noted("Feb"), noted("Mar"), noted("Apr"), noted("May"), noted("Jun")),
    *(noted("Jul"), noted("Aug"), noted("Sep"), noted("Oct"), noted("Nov"), noted("Dec")),
)
_QUARTERS = [Tick(at, f"{at:g} %") for at in (0, 25, 50, 75, 100)]
_FROM_BELOW = [Tick(100 - tick.at, tick.text) for tick in _QUARTERS]


def reliability(bins: Sequence[BinOut], what: str) -> Plot:
    """Observed shares against predicted ones."""
    filled = [row for row in bins if row.n and row.mean_prob is not None and row.mean_freq is not None]
    marks = [
        Mark(
            x=100 * (row.mean_prob or 0.0),
            y=_down(row.mean_freq),
            low=None if row.freq_low is None else _down(row.freq_low),
            high=None if row.freq_high is None else _down(row.freq_high),
            title=gettext(
                "predicted %(said)s, observed %(seen)s, n = %(n)s",
                said=percent(row.mean_prob),
                seen=percent(row.mean_freq),
                n=decimal(f"{row.n:,}"),
            ),
            single=row.n == 1,
        )
        for row in filled
    ]
    return Plot(
        x_title=gettext("predicted disagreement") if what == "disagreement" else gettext("predicted probability"),
        y_title=gettext("observed disagreement") if what == "disagreement" else gettext("observed probability"),
        x_ticks=_QUARTERS,
        y_ticks=_FROM_BELOW,
        marks=marks,
        segments=joined(marks),
        diagonal=True,
    )


def joined(marks: Sequence[Mark]) -> list[Segment]:
    """Lines between neighbours that are both of more than one case."""
    pairs = pairwise(marks)
    return [Segment(one.x, one.y, two.x, two.y) for one, two in pairs if not one.single and not two.single]


def _down(value: float | None) -> float:
    """Distance from the top in per cent; values beyond 0 and 1 leave the frame."""
    return 100 * (1 - (value or 0.0))


def operating_curve(rows: Sequence[WhatIfOut], now: float | None) -> Plot:
    """Disagreements caught against the share of cases read twice, with what is read twice today."""
    known = [row for row in rows if row.caught.low is not None and row.caught.high is not None]
    upper = [f"{100 * row.share:.2f},{_down(row.caught.high):.2f}" for row in known]
    lower = [f"{100 * row.share:.2f},{_down(row.caught.low):.2f}" for row in reversed(known)]
    marks = [
        Mark(
            x=100 * row.share,
            y=_down(row.caught.value),
            low=None,
            high=None,
            title=gettext(
                "%(share)s read twice: %(caught)s caught",
                share=percent(row.share),
                caught=percent(row.caught.value) + ends(row.caught),
            ),
        )
        for row in rows
    ]
    start, end = ([Mark(at, 100.0 - at, None, None, "")] if marks else [] for at in (0.0, 100.0))
    return Plot(
        x_title=gettext("cases read twice"),
        y_title=gettext("disagreements caught"),
        x_ticks=_QUARTERS,
        y_ticks=_FROM_BELOW,
        marks=marks,
        segments=joined([*start, *marks, *end]),
        band=" ".join(["0,100", *upper, "100,0", *lower]) if known else "",
        diagonal=True,
        rule=None if now is None else Tick(100 * now, gettext("today %(share)s", share=percent(now))),
    )


def weekly(weeks: Sequence[WeekOut]) -> Plot:
    """Cases received and reads given, week by week."""
    top = _round_up(max((max(row.received, row.answered) for row in weeks), default=0))
    step = 100 / max(len(weeks), 1)
    bars = []
    for place, row in enumerate(weeks):
        for offset, kind, value in ((0.12, "received", row.received), (0.5, "answered", row.answered)):
            words = {"week": _day(row.week), "n": decimal(f"{value:,}")}
            if kind == "received":
                title = gettext("week of %(week)s: %(n)s cases received", **words)
            else:
                title = gettext("week of %(week)s: %(n)s reads given", **words)
            bars.append(Bar((place + offset) * step, 0.36 * step, 100 * value / top, kind, title))
    ticks = [Tick((place + 0.5) * step, _day(row.week)) for place, row in enumerate(weeks) if place % 4 == 0]
    heights = [Tick(100, "0"), Tick(50, f"{top / 2:,g}"), Tick(0, f"{top:,}")]
    return Plot(
        x_title=gettext("week from Monday"),
        y_title=gettext("per week"),
        x_ticks=ticks,
        y_ticks=heights,
        bars=bars,
    )


def _day(day: date) -> str:
    return gettext("%(day)s %(month)s", day=day.day, month=gettext(_MONTHS[day.month - 1]))


def _round_up(value: int) -> int:
    """The next of 2, 4, 10, 20, 40, 100 …, no less than the value.

    >>> [_round_up(value) for value in (0, 3, 10, 11, 365)]
    [2, 4, 10, 20, 400]
    """
    power = 1
    while True:
        for first in (2, 4, 10):
            if first * power >= value:
                return first * power
        power *= 10


def trend(rows: Sequence[TrendOut], title: str, *, in_time: bool) -> Plot:
    """What was said of disagreement (diamonds) and what was seen (circles), group by group."""
    step = 100 / max(len(rows), 1)
    said, seen = [], []
    for place, row in enumerate(rows):
        x, name = (place + 0.5) * step, row.group or gettext("not recorded")
        if row.said is None or row.differed is None:
            continue
        said.append(
            Mark(
                x,
                _down(row.said),
                None,
                None,
                gettext("%(name)s: predicted %(share)s", name=name, share=percent(row.said)),
                said=True,
            )
        )
        single = row.differed.n < 2
        low, high = (None if end is None else _down(end) for end in (row.differed.low, row.differed.high))
        share = percent(row.differed.value) + ends(row.differed)
        text = gettext("%(name)s: %(share)s differed", name=name, share=share)
        seen.append(Mark(x, _down(row.differed.value), low, high, text, single=single))
    ticks = [Tick((place + 0.5) * step, _short(row.group or gettext("not recorded"))) for place, row in enumerate(rows)]
    lines = joined(seen) if in_time else []
    marks = [*said, *seen]
    return Plot(title, gettext("annotators who differ"), ticks[:: 1 + len(ticks) // 7], _FROM_BELOW, marks, lines)


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"


def alarm(monitors: Sequence[ScoreMonitorOut]) -> Plot:
    """What the bets against the champion are worth, day by day, and where the alarm is."""
    days = sorted({step.day for monitor in monitors for step in monitor.steps})
    threshold = monitors[0].log10_threshold if monitors else 1.0
    worth = [step.log10_capital for monitor in monitors for step in monitor.steps]
    high, low = max([threshold * 1.1, *worth]), min([-0.5, *worth])
    first, length = days[0] if days else date.min, max((days[-1] - days[0]).days, 1) if days else 1

    def up(value: float) -> float:
        return 100 * (high - value) / (high - low)

    marks, lines = [], [Segment(0, up(threshold), 100, up(threshold))]
    for monitor in monitors:
        of_site = [
            Mark(
                x=100 * (step.day - first).days / length,
                y=up(step.log10_capital),
                low=None,
                high=None,
                title=f"{monitor.site or gettext('all')}, {_day(step.day)}: {decimal(f'{step.log10_capital:+.2f}')}",
            )
            for step in monitor.steps
        ]
        marks += of_site
        lines += joined(of_site)
    ends_of_time = [Tick(0, _day(days[0])), Tick(100, _day(days[-1]))] if len(days) > 1 else []
    heights = [Tick(up(threshold), gettext("alarm %(value)s", value=decimal(f"{threshold:+.1f}"))), Tick(up(0.0), "0")]
    return Plot(gettext("day"), gettext("log₁₀ of the bets' worth"), ends_of_time, heights, marks, lines)
