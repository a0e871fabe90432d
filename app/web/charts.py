"""Geometry of the small charts drawn inside pages; colours and fonts are in the style sheet."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from app.database.tables import PolicyRow
from app.http.languages import gettext, localize_decimal, ngettext
from app.http.models import ConsensusOut, DistributionOut, PosteriorOut
from app.metrics.service import ReaderWeekOut


def ten_dots(probs: Sequence[float]) -> list[int]:
    """Ten dots shared out by probabilities that sum to one; what is left goes to the largest remainders.

    >>> ten_dots([0.58, 0.27, 0.15])
    [6, 3, 1]
    """
    tenths = 10 * np.asarray(probs)
    dots = np.floor(tenths + 1e-9).astype(int)
    dots[np.argsort(dots - tenths, kind="stable")[: 10 - dots.sum()]] += 1
    return [int(n) for n in dots]


@dataclass(frozen=True)
class ClassRow:
    """One class: its dots of ten, its probability before labels and with them, its interval and number of labels."""

    name: str
    dots: int
    before: float
    now: float
    interval: tuple[float, float] | None
    count: int


def class_rows(
    names: dict[str, str], prior: DistributionOut, posterior: DistributionOut, counts: dict[str, int]
) -> list[ClassRow]:
    """Classes by their probability with all labels, the most probable first."""
    codes = sorted(names, key=lambda code: -posterior.class_probs[code])
    intervals = posterior.class_intervals or {}
    return [
        ClassRow(
            name=names[code],
            dots=dots,
            before=prior.class_probs[code],
            now=posterior.class_probs[code],
            interval=intervals.get(code),
            count=counts[code],
        )
        for code, dots in zip(codes, ten_dots([posterior.class_probs[code] for code in codes]), strict=True)
    ]


@dataclass(frozen=True)
class Mass:
    """How probable it is that further annotators agree on a class; on none of them without a name."""

    name: str | None
    prob: float


def three_masses(names: dict[str, str], consensus: ConsensusOut, of: int) -> list[Mass]:
    """Consensus on the two classes where it is likeliest, on another one where that shows, and a split."""
    probs = consensus.pair_probs if of == 2 else consensus.class_probs
    codes = sorted(names, key=lambda code: -probs[code])
    others = sum(probs[code] for code in codes[2:])
    masses = [Mass(names[code], probs[code]) for code in codes[:2]]
    masses += [Mass(gettext("another class"), others)] if others >= 0.005 else []
    return [*masses, Mass(None, max(0.0, 1 - sum(mass.prob for mass in masses)))]


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


def describe_label_need(policy: PolicyRow, after: PosteriorOut | None) -> str:
    """Whether a cell needs more labels, in a sentence; empty if that is not known."""
    if after is None or after.further_labels_expected is None or after.majority_prob is None:
        return ""
    error = localize_decimal(f"{policy.target_error:g}")
    if after.further_labels_expected == 0:
        return gettext(
            "Consensus reached.",
            error=error,
        )
    if policy.adjudicate_below is not None and after.majority_prob >= policy.adjudicate_below:
        return gettext("The leading class is certain enough; the other probabilities are not.")
    if after.n_labels + after.further_labels_expected > policy.max_labels:
        return gettext(
            "Experts are split. The %(n)s labels that the policy allows would not settle this cell.",
            n=policy.max_labels,
        )
    return ngettext(
        "Consensus not reached: about %(n)s more label needed.",
        "Consensus not reached: about %(n)s more labels needed.",
        after.further_labels_expected,
        error=error,
    )
