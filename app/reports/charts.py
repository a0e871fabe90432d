"""Charts of the report, and its annex for studies with several readers and many cases (MRMC)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import accumulate, dropwhile, pairwise
from typing import NamedTuple

from markupsafe import Markup

from app.http.languages import gettext, gettext_noop, localize_decimal
from app.http.models import MetricOut
from app.metrics.service import AgreementOut, AnnotatorAgreementOut, BinOut, EvaluationIn, MetricsBody, ScoreMonitorOut
from app.reports.report import COLOURS, STYLE, headline_metrics, load_report_templates
from app.reports.schemas import ReportBody, SecondReadsOut, TrendOut, WeekOut, WhatIfOut
from app.reports.sentences import (
    ReportSentence,
    format_ends,
    format_percent,
    format_share_interval,
    write_report_sentences,
)
from app.reports.targets import TargetsOut
from ml.messages import Message
from ml.util.number_format import count

#: As many annotators as it takes to say where others like them would be.
ENOUGH = 3


@dataclass(frozen=True)
class ReadersAnnex:
    """The annex."""

    # cases with a label
    n_cases: int
    # blind planned labels of them, one for each annotator and case
    n_labels: int
    # annotators with their labels, and how often another one of the same case says the same
    readers: list[AnnotatorAgreementOut]
    # name and estimate of each metric that has an interval
    metrics: list[tuple[str, MetricOut]]

    @property
    def for_new_ones(self) -> bool:
        """Whether any interval is for new annotators."""
        return any(metric.low_new is not None for _, metric in self.metrics)

    @property
    def sentences(self) -> list[str]:
        """Sentences of the annex."""
        return list(self._sentences())

    def _sentences(self) -> Iterator[str]:
        n = len(self.readers)
        if not n:
            yield Message("There are no labels yet.")
            return
        each = (
            Message("{n_cases:.1f} labels per cell", n_cases=self.n_labels / self.n_cases)
            if self.n_cases
            else Message("no cell")
        )
        named = Message("{n} annotator", n=n) if n == 1 else Message("{n} annotators", n=count(n))
        yield Message(
            "{named} gave {n_labels} labels for {n_cases} cells ({each} on average).",
            named=named,
            n_labels=count(self.n_labels),
            n_cases=count(self.n_cases),
            each=each,
        )
        if self.n_labels < n * self.n_cases:
            yield Message("Not every annotator read every cell.")
        if self.for_new_ones:
            yield Message("The first interval applies to these annotators, the second to new annotators like them.")
        elif n < ENOUGH:
            only = Message("is only one annotator") if n == 1 else Message("are only two annotators")
            yield Message("There {only}: intervals for new annotators need three and are omitted.", only=only)
        else:
            yield Message(
                "Intervals for new annotators are omitted: they need three annotators with cells "
                "from two patients each."
            )


def build_readers_annex(document: MetricsBody, agreement: AgreementOut) -> ReadersAnnex:
    """The annex of a report."""
    metrics = [(name, metric) for name, _, metric in headline_metrics(document) if metric.low is not None]
    return ReadersAnnex(agreement.n_cases, agreement.n_labels, agreement.annotators, metrics)


class AxisTick(NamedTuple):
    """Place of a label on an axis."""

    at: float
    text: str


class LineSegment(NamedTuple):
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class PlotMark:
    """A point with its interval; ``said`` marks a predicted value, drawn as a diamond; ``kind`` is its style."""

    x: float
    y: float
    low: float | None
    high: float | None
    title: str
    said: bool = False
    kind: str = ""


class PlotBar(NamedTuple):
    """A bar from the bottom; ``kind`` tells which series."""

    x: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True)
class ReportPlot:
    """A chart."""

    x_title: str
    y_title: str
    x_ticks: list[AxisTick]
    y_ticks: list[AxisTick]
    marks: list[PlotMark] = field(default_factory=list)
    segments: list[LineSegment] = field(default_factory=list)
    bars: list[PlotBar] = field(default_factory=list)
    #: corners of a band, «x,y x,y …»
    band: str = ""
    diagonal: bool = False
    #: a line from top to bottom with what it means
    rule: AxisTick | None = None
    #: lines from side to side with their styles
    levels: list[AxisTick] = field(default_factory=list)

    @property
    def is_worth_drawing(self) -> bool:
        """Whether there are enough points."""
        return len({mark.x for mark in self.marks}) + len({bar.x for bar in self.bars}) // 2 >= LEAST_POINTS


#: Short names of months.
_MONTHS = (
    *(
        gettext_noop("Jan"),
        gettext_noop("Feb"),
        gettext_noop("Mar"),
        gettext_noop("Apr"),
        gettext_noop("May"),
        gettext_noop("Jun"),
    ),
    *(
        gettext_noop("Jul"),
        gettext_noop("Aug"),
        gettext_noop("Sep"),
        gettext_noop("Oct"),
        gettext_noop("Nov"),
        gettext_noop("Dec"),
    ),
)
#: Cells that a point stands for at least, and points that make a chart; with fewer the table is enough.
LEAST_CELLS, LEAST_POINTS = 5, 3
#: Ends of an axis of shares, with the number of its steps.
_TOPS = {0.1: 5, 0.2: 4, 0.3: 3, 0.4: 4, 0.6: 3, 0.8: 4, 1.0: 4}


def _axis_top(values: Iterable[float]) -> float:
    """The first end of an axis that all values are below.

    >>> _axis_top([0.28, 0.02]), _axis_top([])
    (0.3, 0.1)
    """
    largest = max(values, default=0.0)
    return next((top for top in _TOPS if largest <= top), 1.0)


def _share_ticks(top: float, *, down: bool) -> list[AxisTick]:
    places = [(100 * step / _TOPS[top], format_percent(top * step / _TOPS[top])) for step in range(_TOPS[top] + 1)]
    return [AxisTick(100 - at if down else at, text) for at, text in places]


def draw_reliability(bins: Sequence[BinOut], what: str) -> ReportPlot:
    """Observed shares against predicted ones, on axes as long as the points need."""
    points = [
        (row, row.mean_prob, row.mean_freq)
        for row in bins
        if row.n >= LEAST_CELLS and row.mean_prob is not None and row.mean_freq is not None
    ]
    top = _axis_top(value for _, *pair in points for value in pair)
    marks = [
        PlotMark(
            x=100 * said / top,
            y=_percent_from_top(seen, top),
            low=None if row.freq_low is None else _percent_from_top(row.freq_low, top),
            high=None if row.freq_high is None else _percent_from_top(row.freq_high, top),
            title=gettext(
                "predicted %(said)s, observed %(seen)s, n = %(n)s",
                said=format_percent(said),
                seen=format_percent(seen) + format_ends(row.freq_low, row.freq_high),
                n=localize_decimal(f"{row.n:,}"),
            ),
        )
        for row, said, seen in points
    ]
    return ReportPlot(
        x_title=gettext("predicted disagreement") if what == "disagreement" else gettext("predicted probability"),
        y_title=gettext("observed disagreement") if what == "disagreement" else gettext("observed probability"),
        x_ticks=_share_ticks(top, down=False),
        y_ticks=_share_ticks(top, down=True),
        marks=marks,
        segments=connect_neighbours(marks),
        diagonal=True,
    )


def connect_neighbours(marks: Sequence[PlotMark]) -> list[LineSegment]:
    """Lines between neighbours."""
    return [LineSegment(one.x, one.y, two.x, two.y) for one, two in pairwise(marks)]


def _percent_from_top(value: float | None, top: float = 1.0) -> float:
    """Distance from the top in per cent; values beyond the end of the axis are at its end."""
    return 100 * (1 - min(value or 0.0, top) / top)


def draw_operating_curve(rows: Sequence[WhatIfOut], today: SecondReadsOut | None) -> ReportPlot:
    """Disagreements caught against the share of cases read twice, with what the policy in force reads twice."""
    marks = [
        PlotMark(
            x=100 * row.share,
            y=_percent_from_top(row.caught.value),
            low=None,
            high=None,
            title=gettext(
                "%(share)s read twice: %(caught)s caught",
                share=format_percent(row.share),
                caught=format_percent(row.caught.value) + format_share_interval(row.caught),
            ),
        )
        for row in rows
    ]
    start, end = ([PlotMark(at, 100.0 - at, None, None, "")] if marks else [] for at in (0.0, 100.0))
    at_present, rule = _mark_today(today) if marks else ([], None)
    path = sorted([*start, *marks, *at_present, *end], key=lambda mark: mark.x)
    if any(after.y > before.y for before, after in pairwise(path)):  # of graded reads it is off the curve
        path = [*start, *marks, *end]
    return ReportPlot(
        x_title=gettext("cells read twice"),
        y_title=gettext("disagreements caught"),
        x_ticks=_share_ticks(1.0, down=False),
        y_ticks=_share_ticks(1.0, down=True),
        marks=[*marks, *at_present],
        segments=connect_neighbours(path),
        band=_rising_band(rows),
        diagonal=True,
        rule=rule,
    )


def _mark_today(today: SecondReadsOut | None) -> tuple[list[PlotMark], AxisTick | None]:
    if today is None or today.share is None or today.caught is None:
        return [], None
    words = {"share": format_percent(today.share)}
    caught = format_percent(today.caught.value) + format_share_interval(today.caught)
    title = gettext("today %(share)s read twice: %(caught)s caught", caught=caught, **words)
    mark = PlotMark(100 * today.share, _percent_from_top(today.caught.value), None, None, title, said=True)
    return [mark], AxisTick(100 * today.share, gettext("today %(share)s", **words))


def _rising_band(rows: Sequence[WhatIfOut]) -> str:
    """Corners of the band; what more reads catch is at least what fewer do, so neither end ever falls."""
    ends = [(row.share, row.caught.low, row.caught.high) for row in rows]
    shares = [share for share, low, high in ends if low is not None and high is not None]
    lows = accumulate((low for _, low, high in ends if low is not None and high is not None), max)
    highs = list(accumulate((high for _, low, high in reversed(ends) if low is not None and high is not None), min))
    upper = [f"{100 * x:.2f},{_percent_from_top(y):.2f}" for x, y in zip(shares, reversed(highs), strict=True)]
    lower = [f"{100 * x:.2f},{_percent_from_top(y):.2f}" for x, y in zip(shares, lows, strict=True)]
    return " ".join(["0,100", *upper, "100,0", *reversed(lower)]) if len(shares) >= LEAST_POINTS else ""


def draw_weekly_workload(weeks: Sequence[WeekOut]) -> ReportPlot:
    """Cases received and reads given, week by week, since the first week with any."""
    weeks = list(dropwhile(lambda row: not (row.received or row.answered), weeks))
    top = _round_up(max((max(row.received, row.answered) for row in weeks), default=0))
    step = 100 / max(len(weeks), 1)
    bars = []
    for place, row in enumerate(weeks):
        for offset, kind, value in ((0.12, "received", row.received), (0.5, "answered", row.answered)):
            words = {"week": format_day(row.week), "n": localize_decimal(f"{value:,}")}
            if kind == "received":
                title = gettext("week of %(week)s: %(n)s cells received", **words)
            else:
                title = gettext("week of %(week)s: %(n)s reads given", **words)
            bars.append(PlotBar((place + offset) * step, 0.36 * step, 100 * value / top, kind, title))
    ticks = [AxisTick((place + 0.5) * step, format_day(row.week)) for place, row in enumerate(weeks) if place % 4 == 0]
    heights = [AxisTick(100 - at, localize_decimal(f"{top * at / 100:,g}")) for at in (0, 50, 100)]
    return ReportPlot(
        x_title=gettext("week from Monday"),
        y_title=gettext("per week"),
        x_ticks=ticks,
        y_ticks=heights,
        bars=bars,
    )


def format_day(day: date) -> str:
    """Day and month, short."""
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


def draw_disagreement_trend(rows: Sequence[TrendOut], title: str, *, in_time: bool) -> ReportPlot:
    """Draw predicted (diamonds) and observed (circles) disagreement, group by group."""
    step = 100 / max(len(rows), 1)
    predicted_marks, observed_marks = [], []
    top = _axis_top(
        share
        for row in rows
        if row.said is not None and row.differed is not None
        for share in (row.said, row.differed.value or 0.0)
    )
    for place, row in enumerate(rows):
        x, name = (place + 0.5) * step, row.group or gettext("not recorded")
        if row.said is None or row.differed is None:
            continue
        predicted_marks.append(
            PlotMark(
                x,
                _percent_from_top(row.said, top),
                None,
                None,
                gettext("%(name)s: predicted %(share)s", name=name, share=format_percent(row.said)),
                said=True,
            )
        )
        ends = (row.differed.low, row.differed.high)
        low, high = (None if end is None else _percent_from_top(end, top) for end in ends)
        share = format_percent(row.differed.value) + format_share_interval(row.differed)
        text = gettext("%(name)s: %(share)s disagreed", name=name, share=share)
        observed_marks.append(PlotMark(x, _percent_from_top(row.differed.value, top), low, high, text))
    ticks = [
        AxisTick((place + 0.5) * step, _shorten_name(row.group or gettext("not recorded")))
        for place, row in enumerate(rows)
    ]
    lines = connect_neighbours(observed_marks) if in_time else []
    marks = [*predicted_marks, *observed_marks]
    return ReportPlot(
        title,
        gettext("annotators in disagreement"),
        ticks[:: 1 + len(ticks) // 7],
        _share_ticks(top, down=True),
        marks,
        lines,
    )


def _shorten_name(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"


def draw_score_alarm(monitors: Sequence[ScoreMonitorOut]) -> ReportPlot:
    """Draw the capital of the bets against the champion, day by day, and the alarm threshold."""
    days = sorted({step.day for monitor in monitors for step in monitor.steps})
    threshold = monitors[0].log10_threshold if monitors else 1.0
    worth = [step.log10_capital for monitor in monitors for step in monitor.steps]
    high, low = max([threshold * 1.1, *worth]), min([-0.5, *worth])
    first, length = days[0] if days else date.min, max((days[-1] - days[0]).days, 1) if days else 1

    def up(value: float) -> float:
        return 100 * (high - value) / (high - low)

    marks, lines = [], [LineSegment(0, up(threshold), 100, up(threshold))]
    for monitor in monitors:
        of_site = [
            PlotMark(
                x=100 * (step.day - first).days / length,
                y=up(step.log10_capital),
                low=None,
                high=None,
                title=f"{monitor.site or gettext('all')}, {format_day(step.day)}: "
                f"{localize_decimal(f'{step.log10_capital:+.2f}')}",
            )
            for step in monitor.steps
        ]
        marks += of_site
        lines += connect_neighbours(of_site)
    ends_of_time = [AxisTick(0, format_day(days[0])), AxisTick(100, format_day(days[-1]))] if len(days) > 1 else []
    heights = [
        AxisTick(up(threshold), gettext("alarm %(value)s", value=localize_decimal(f"{threshold:+.1f}"))),
        AxisTick(up(0.0), "0"),
    ]
    return ReportPlot(gettext("day"), gettext("log₁₀ of the alarm statistic"), ends_of_time, heights, marks, lines)


@dataclass(frozen=True)
class DrawnReport:
    """A report as its page shows it, with its plots by name."""

    # ``names`` of the classes by their codes

    body: ReportBody
    sentences: list[ReportSentence]
    headline: list[tuple[str, str, MetricOut]]
    plots: dict[str, ReportPlot]
    classes: dict[str, ReportPlot]
    names: Mapping[str, str]

    @property
    def readers(self) -> ReadersAnnex:
        """The annex about several annotators."""
        return build_readers_annex(self.body.document, self.body.agreement)

    @property
    def cautions(self) -> list[str]:
        """Warnings, without the alarms, which stand above everything."""
        document = self.body.document
        alarms = {text for monitor in document.score_monitor for text in monitor.warnings}
        return [text for text in document.warnings if text not in alarms]


def draw_report(body: ReportBody, targets: TargetsOut, names: Mapping[str, str]) -> DrawnReport:
    """A report with its sentences and plots."""
    document = body.document
    plots = {
        "disagreement": draw_reliability(document.disagreement_bins, "disagreement"),
        "classes": draw_reliability(document.class_bins, "probability"),
        "triage": draw_operating_curve(body.what_if, body.findings.second_reads),
        "weeks": draw_weekly_workload(body.workload.weeks),
        "sites": draw_disagreement_trend(body.by_site, gettext("site"), in_time=False),
        "months": draw_disagreement_trend(body.by_month, gettext("month"), in_time=True),
        "alarm": draw_score_alarm(document.score_monitor),
    }
    classes = {row.name: draw_reliability(row.bins, "probability") for row in document.classes}
    return DrawnReport(
        body=body,
        sentences=write_report_sentences(body, targets),
        headline=headline_metrics(document),
        plots=plots,
        classes=classes,
        names=names,
    )


def html_report(report: DrawnReport, asked: EvaluationIn, evaluation_id: str, at: datetime, head: str) -> str:
    """A report as one page that opens offline: the sentences, charts and tables of the report's page."""
    template = load_report_templates().get_template("frozen_report.html")
    colours, style = (Markup(file.read_text(encoding="utf-8")) for file in (COLOURS, STYLE))  # noqa: S704  # our own
    return template.render(r=report, asked=asked, id=evaluation_id, at=at, head=head, colours=colours, style=style)
