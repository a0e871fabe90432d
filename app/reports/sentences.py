"""Opening sentences of a report, each with the laboratory's own target."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app.http.languages import gettext, gettext_noop, localize_decimal, ngettext
from app.http.models import MetricOut
from app.reports.schemas import DurationOut, ReportBody, SaidOut
from app.reports.targets import TargetsOut

State = Literal["met", "met-so-far", "missed-so-far", "missed", "unknown"]
#: A verdict in words, with a sign of its own: nobody has to tell colours apart.
VERDICTS: dict[State, str] = {
    "met": gettext_noop("✓ Target met"),
    "met-so-far": gettext_noop("(✓) Met so far"),
    "missed-so-far": gettext_noop("(✗) Missed so far"),
    "missed": gettext_noop("✗ Target missed"),
    "unknown": gettext_noop("– Not available yet"),
}
_DAYS_FROM, _WHOLE_DAYS_FROM = 72, 240


@dataclass(frozen=True)
class ReportSentence:
    """An opening sentence of a report, with its target."""

    # of the chart that it opens to
    name: str
    text: str
    # what the laboratory wants, in words
    target: str
    # whether that is so
    state: State
    # what is missing where there is no answer yet; empty otherwise
    wanted: str = ""

    @property
    def verdict(self) -> str:
        """The state in words."""
        return gettext(VERDICTS[self.state])


class _ValueInterval(NamedTuple):
    value: float
    low: float | None
    high: float | None


def write_report_sentences(body: ReportBody, targets: TargetsOut) -> list[ReportSentence]:
    """The five sentences of a report."""
    return list(_iter_sentences(body, targets))


def _iter_sentences(body: ReportBody, targets: TargetsOut) -> Iterator[ReportSentence]:
    findings = body.findings
    yield _calibration_sentence(
        "disagreement",
        findings.disagreement,
        targets.disagreement_gap,
        gettext_noop("Predicted disagreement between two annotators: %(said)s; observed: %(seen)s, %(verdict)s."),
        gettext("Predicted and observed disagreement"),
    )
    yield _calibration_sentence(
        "classes",
        findings.leading,
        targets.leading_gap,
        gettext_noop("When the model is confident (mean %(said)s), %(seen)s of annotators agree: %(verdict)s."),
        gettext("Agreement with confident predictions"),
    )
    target_text = gettext("at least %(share)s", share=format_percent(targets.caught))
    if findings.caught is None:
        missing = gettext("a disagreement between two annotators")
        yield ReportSentence("triage", gettext("Disagreements caught by second reads"), target_text, "unknown", missing)
    else:
        text = gettext(
            "Second reads of %(share)s of the cells catch %(caught)s of the disagreements; "
            "random second reads would catch %(share)s.",
            share=format_percent(findings.caught.share),
            caught=_percent_with_interval(findings.caught.caught),
        )
        yield ReportSentence(
            "triage",
            text,
            target_text,
            _compare_with_target(_interval_of_metric(findings.caught.caught), targets.caught, 1.0),
        )
    target_text = gettext("at least %(share)s", share=format_percent(targets.agreement))
    if findings.agreement is None:
        yield ReportSentence("pairs", gettext("Inter-rater agreement"), target_text, "unknown", gettext(_TWICE))
    else:
        text = gettext(
            "Two annotators agree on %(share)s of the cells.", share=_percent_with_interval(findings.agreement)
        )
        yield ReportSentence(
            "pairs",
            text,
            target_text,
            _compare_with_target(_interval_of_metric(findings.agreement), targets.agreement, 1.0),
        )
    yield _turnaround_sentence(body.workload.answering, targets.hours)


_TWICE = gettext_noop("more cells with two labels")


def _calibration_sentence(name: str, found: SaidOut | None, gap: float, words: str, topic: str) -> ReportSentence:
    target = gettext("within %(gap)s points", gap=localize_decimal(f"{100 * gap:g}"))
    if found is None or found.seen.value is None:
        missing = gettext(_TWICE) if name == "disagreement" else gettext("labels of such cells")
        return ReportSentence(name, topic, target, "unknown", missing)
    seen = _interval_of_metric(found.seen)
    off = _ValueInterval(*(None if end is None else end - found.said for end in seen))  # type: ignore[arg-type]
    text = gettext(
        words,
        said=format_percent(found.said),
        seen=_percent_with_interval(found.seen),
        verdict=_describe_direction(off, gap),
    )
    return ReportSentence(name, text, target, _compare_with_target(off, -gap, gap))


def _describe_direction(off: _ValueInterval, gap: float) -> str:
    """Describe whether predictions are too low or too high; «perhaps» if the interval contains zero."""
    if off.low is not None and off.high is not None and (off.low > 0 or off.high < 0):
        if abs(off.value) <= gap:
            return gettext("too low, within the target") if off.value > 0 else gettext("too high, within the target")
        return gettext("too low") if off.value > 0 else gettext("too high")
    if abs(off.value) <= gap:
        return gettext("on target")
    return gettext("possibly too low") if off.value > 0 else gettext("possibly too high")


def _turnaround_sentence(found: DurationOut, limit: float) -> ReportSentence:
    target = gettext("within %(time)s", time=format_hours(limit))
    if found.n == 0 or found.nine_tenths is None:
        missing = gettext("planned reads") if found.n == 0 else gettext("answers to 90%% of planned reads")
        return ReportSentence("weeks", gettext("Time to answer planned reads"), target, "unknown", missing)
    ends = "" if found.low is None else f" ({_format_hours_range(found)})"
    text = gettext(
        "90%% of planned reads are answered within %(time)s%(ends)s.",
        time=format_hours(found.nine_tenths),
        ends=ends,
    )
    return ReportSentence(
        "weeks",
        text,
        target,
        _compare_with_target(_ValueInterval(found.nine_tenths, found.low, found.high), 0.0, limit),
    )


def _format_hours_range(found: DurationOut) -> str:
    low = format_hours(found.low)
    if found.high is None:
        return gettext("%(low)s or more", low=low)
    return gettext("%(low)s to %(high)s", low=low, high=format_hours(found.high))


def _compare_with_target(found: _ValueInterval, low: float, high: float) -> State:
    inside = low <= found.value <= high
    if found.low is None:
        return "met-so-far" if inside else "missed-so-far"
    top = float("inf") if found.high is None else found.high
    if inside:
        return "met" if low <= found.low and top <= high else "met-so-far"
    return "missed" if top < low or found.low > high else "missed-so-far"


def _interval_of_metric(found: MetricOut) -> _ValueInterval:
    return _ValueInterval(found.value or 0.0, found.low, found.high)


def format_percent(value: float | None) -> str:
    """A share in whole per cent.

    >>> format_percent(0.514), format_percent(None)
    ('51%', '–')
    """
    return "–" if value is None else localize_decimal(f"{value:.0%}")


def format_rate(value: float | None) -> str:
    """A share that somebody set, with its decimals in per cent.

    >>> format_rate(0.1), format_rate(0.025), format_rate(None)
    ('10%', '2.5%', '–')
    """
    return "–" if value is None else localize_decimal(f"{100 * value:.3g}%")


def _percent_with_interval(found: MetricOut) -> str:
    return format_percent(found.value) + format_share_interval(found)


def format_percent_range(low: float | None, high: float | None) -> str:
    """An interval in whole per cent.

    >>> format_percent_range(0.114, 0.2), format_percent_range(None, None)
    ('11 to 20%', '–')
    """
    if low is None or high is None:
        return "–"
    return gettext("%(low)s to %(high)s", low=f"{100 * low:.0f}", high=localize_decimal(f"{high:.0%}"))


def format_share_interval(found: MetricOut) -> str:
    """The interval of a share in whole per cent, in brackets, after it; nothing where there is none."""
    if found.low is None or found.high is None:
        return ""
    return " (" + gettext("%(low)s to %(high)s", low=f"{100 * found.low:.0f}", high=f"{100 * found.high:.0f}") + ")"


def format_hours(value: float | None) -> str:
    """A time in hours, in days where it is long.

    >>> format_hours(0.001), format_hours(0.5), format_hours(26.2), format_hours(100), format_hours(None)
    ('less than a minute', '30 minutes', '26 hours', '4.2 days', '–')
    """
    if value is None:
        return "–"
    if 60 * value < 1:
        return gettext("less than a minute")
    if value >= _DAYS_FROM:
        return gettext("%(n)s days", n=localize_decimal(f"{value / 24:.{0 if value >= _WHOLE_DAYS_FROM else 1}f}"))
    if value >= 1:
        return ngettext("%(n)s hour", "%(n)s hours", round(value))
    return ngettext("%(n)s minute", "%(n)s minutes", round(60 * value))
