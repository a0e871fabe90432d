"""Charts of the report.

The numbers are those of the report; nothing is computed here. The annex is for studies with several readers and many
cases (MRMC).

Points of one case stand alone: a line joins neighbouring bins only where both are of more than one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup
from sqlalchemy.orm import Session

from app.http.languages import decimal, gettext, noted
from app.http.models import MetricOut
from app.metrics.schemas import AgreementOut, AnnotatorAgreementOut, BinOut, EvaluationIn, MetricsBody, ScoreMonitorOut
from app.reports.report import COLOURS, STYLE, environment, headline
from app.reports.schemas import ReportBody, ReportParts, TrendOut, WeekOut, WhatIfOut
from app.reports.sentences import Sentence, ends, percent, sentences
from app.reports.targets import TargetsOut
from app.triage.queries import current_policy
from ml.messages import Message
from ml.util.number_format import count

#: As many annotators as it takes to say where others like them would be.
ENOUGH = 3


@dataclass(frozen=True)
class ReadersAnnex:
    """The annex.

    Attributes:
        n_cases: cases with a label.
        n_labels: blind planned labels of them, one for each annotator and case.
        readers: annotators with their labels, and how often another one of the same case says the same.
        metrics: name and estimate of each metric that has an interval.
    """

    n_cases: int
    n_labels: int
    readers: list[AnnotatorAgreementOut]
    metrics: list[tuple[str, MetricOut]]

    @property
    def for_new_ones(self) -> bool:
        """Whether any interval is for new annotators."""
        return any(found.low_new is not None for _, found in self.metrics)

    @property
    def sentences(self) -> list[str]:
        """What the annex says in words."""
        return list(self._sentences())

    def _sentences(self) -> Iterator[str]:
        n = len(self.readers)
        if not n:
            yield Message("There are no labels yet.")
            return
        each = (
            Message("{n_cases:.1f} labels a case", n_cases=self.n_labels / self.n_cases)
            if self.n_cases
            else Message("no case")
        )
        named = Message("{n} annotator", n=n) if n == 1 else Message("{n} annotators", n=count(n))
        yield Message(
            "{named} gave {n_labels} labels of {n_cases} cases, {each} on average.",
            named=named,
            n_labels=count(self.n_labels),
            n_cases=count(self.n_cases),
            each=each,
        )
        if self.n_labels < n * self.n_cases:
            yield Message("Not everybody read every case.")
        if self.for_new_ones:
            yield (
                Message(
                    "The first interval is for these annotators, the second for new ones like them: it takes the "
                    "annotators as a sample too, and contains the first."
                )
            )
        elif n < ENOUGH:
            only = Message("is one annotator") if n == 1 else Message("are two annotators")
            yield Message("There {only} only: intervals for new annotators need three, and are left out.", only=only)
        else:
            yield Message(
                "Fewer than three annotators read cases of two patients: intervals for new annotators are left out."
            )


def annex_of(document: MetricsBody, agreement: AgreementOut) -> ReadersAnnex:
    """The annex of a report.

    Args:
        document: its metrics.
        agreement: between its annotators.
    """
    metrics = [(name, found) for name, _, found in headline(document) if found.low is not None]
    return ReadersAnnex(agreement.n_cases, agreement.n_labels, agreement.annotators, metrics)


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


@dataclass(frozen=True)
class Report:
    """A report as its page shows it, with its plots by name.

    ``now`` is the share of the cases that is read twice today; ``targets`` are those in force.
    """

    body: ReportBody
    sentences: list[Sentence]
    headline: list[tuple[str, str, MetricOut]]
    plots: dict[str, Plot]
    classes: dict[str, Plot]
    now: float | None

    @property
    def readers(self) -> ReadersAnnex:
        """The annex about several annotators."""
        return annex_of(self.body.document, self.body.agreement)

    @property
    def cautions(self) -> list[str]:
        """Warnings, without the alarms, which stand above everything."""
        document = self.body.document
        alarms = {text for monitor in document.score_monitor for text in monitor.warnings}
        return [text for text in document.warnings if text not in alarms]


def drawn_report(body: ReportBody, targets: TargetsOut, now: float | None) -> Report:
    """A report with its sentences and plots.

    Args:
        body: what it says.
        targets: of the laboratory.
        now: share of the cases that is read twice today, as ``share_today`` says.
    """
    document = body.document
    plots = {
        "disagreement": reliability(document.disagreement_bins, "disagreement"),
        "classes": reliability(document.class_bins, "probability"),
        "triage": operating_curve(body.what_if, now),
        "weeks": weekly(body.workload.weeks),
        "sites": trend(body.by_site, gettext("site"), in_time=False),
        "months": trend(body.by_month, gettext("month"), in_time=True),
        "alarm": alarm(document.score_monitor),
    }
    classes = {row.name: reliability(row.bins, "probability") for row in document.classes}
    return Report(
        body=body,
        sentences=sentences(body, targets),
        headline=headline(document),
        plots=plots,
        classes=classes,
        now=now,
    )


def share_today(session: Session, parts: ReportParts) -> float | None:
    """Share of the cases that today's policy reads twice for their disagreement, None without a case.

    Of a threshold of the disagreement probability by the cases of the report; of other rules as they were planned.
    """
    policy = current_policy(session)
    if policy.rule == "disagreement" and policy.threshold is not None and parts.quantiles:
        return sum(value > policy.threshold for value in parts.quantiles) / len(parts.quantiles)
    return None if parts.findings.caught is None else parts.findings.caught.share


def html_report(report: Report, asked: EvaluationIn, evaluation_id: str, at: datetime) -> str:
    """A report as one page that opens offline: the sentences, charts and tables of the report's page.

    Args:
        report: what it shows.
        asked: the question that was frozen.
        evaluation_id: of the frozen evaluation.
        at: when it was frozen.
    """
    template = environment().get_template("frozen_report.html")
    colours, style = (Markup(file.read_text(encoding="utf-8")) for file in (COLOURS, STYLE))  # noqa: S704  # our own
    return template.render(r=report, asked=asked, id=evaluation_id, at=at, colours=colours, style=style)
