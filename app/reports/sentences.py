"""The first sentences of a report, each beside the laboratory's own target."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app.http.languages import decimal, gettext, ngettext, noted
from app.http.models import MetricOut
from app.reports.schemas import DurationOut, ReportBody, SaidOut
from app.reports.targets import TargetsOut

State = Literal["met", "met-so-far", "missed-so-far", "missed", "unknown"]
#: A verdict in words, with a sign of its own: nobody has to tell colours apart.
VERDICTS: dict[State, str] = {
    "met": noted("✓ Target met"),
    "met-so-far": noted("(✓) Met so far"),
    "missed-so-far": noted("(✗) Missed so far"),
    "missed": noted("✗ Target missed"),
    "unknown": noted("– No answer yet"),
}
_DAYS_FROM, _WHOLE_DAYS_FROM = 72, 240


@dataclass(frozen=True)
class Sentence:
    """What a report says first.

    Attributes:
        name: of the chart that it opens to.
        text: the sentence.
        target: what the laboratory wants, in words.
        state: whether that is so.
        wanted: what is missing where there is no answer yet; empty otherwise.
    """

    name: str
    text: str
    target: str
    state: State
    wanted: str = ""

    @property
    def verdict(self) -> str:
        """The state in words."""
        return gettext(VERDICTS[self.state])


class _Interval(NamedTuple):
    value: float
    low: float | None
    high: float | None


def sentences(body: ReportBody, targets: TargetsOut) -> list[Sentence]:
    """The five sentences of a report."""
    return list(_sentences(body, targets))


def _sentences(body: ReportBody, targets: TargetsOut) -> Iterator[Sentence]:
    found = body.findings
    yield _said(
        "disagreement",
        found.disagreement,
        targets.disagreement_gap,
        noted("When it says %(said)s of annotators would differ, %(seen)s did: %(verdict)s."),
        gettext("How often annotators differ as predicted"),
    )
    yield _said(
        "classes",
        found.leading,
        targets.leading_gap,
        noted(
            "Where it is surest of a class, %(said)s on average, %(seen)s of annotators name that class: %(verdict)s."
        ),
        gettext("How often annotators name the class that it is surest of"),
    )
    wanted = gettext("at least %(share)s", share=percent(targets.caught))
    if found.caught is None:
        missing = gettext("two annotators who differ about a case")
        yield Sentence("triage", gettext("What second reads catch"), wanted, "unknown", missing)
    else:
        text = gettext(
            "Reading %(share)s of the cases twice catches %(caught)s of the disagreements.",
            share=percent(found.caught.share),
            caught=_of(found.caught.caught),
        )
        yield Sentence("triage", text, wanted, _judged(_interval(found.caught.caught), targets.caught, 1.0))
    wanted = gettext("at least %(share)s", share=percent(targets.agreement))
    if found.agreement is None:
        yield Sentence("pairs", gettext("How often two annotators agree"), wanted, "unknown", gettext(_TWICE))
    else:
        text = gettext("Two annotators agree on %(share)s of the cases.", share=_of(found.agreement))
        yield Sentence("pairs", text, wanted, _judged(_interval(found.agreement), targets.agreement, 1.0))
    yield _turnaround(body.workload.answering, targets.hours)


_TWICE = noted("more cases with two labels")


def _said(name: str, found: SaidOut | None, gap: float, words: str, topic: str) -> Sentence:
    target = gettext("within %(gap)s points", gap=decimal(f"{100 * gap:g}"))
    if found is None or found.seen.value is None:
        missing = gettext(_TWICE) if name == "disagreement" else gettext("labels of such cases")
        return Sentence(name, topic, target, "unknown", missing)
    seen = _interval(found.seen)
    off = _Interval(*(None if end is None else end - found.said for end in seen))  # type: ignore[arg-type]
    text = gettext(words, said=percent(found.said), seen=_of(found.seen), verdict=_direction(off, gap))
    return Sentence(name, text, target, _judged(off, -gap, gap))


def _direction(off: _Interval, gap: float) -> str:
    """Whether what was said is too low or too high; «perhaps» where the interval has zero in it."""
    if off.low is not None and off.high is not None and (off.low > 0 or off.high < 0):
        if abs(off.value) <= gap:
            return gettext("too low, within the target") if off.value > 0 else gettext("too high, within the target")
        return gettext("too low") if off.value > 0 else gettext("too high")
    if abs(off.value) <= gap:
        return gettext("about right")
    return gettext("perhaps too low") if off.value > 0 else gettext("perhaps too high")


def _turnaround(found: DurationOut, limit: float) -> Sentence:
    target = gettext("within %(time)s", time=hours(limit))
    if found.n == 0 or found.nine_tenths is None:
        missing = gettext("planned reads") if found.n == 0 else gettext("nine of ten planned reads answered")
        return Sentence("weeks", gettext("How soon planned reads are answered"), target, "unknown", missing)
    ends = "" if found.low is None else f" ({_range(found)})"
    text = gettext(
        "Nine of ten planned reads are answered within %(time)s%(ends)s.", time=hours(found.nine_tenths), ends=ends
    )
    return Sentence("weeks", text, target, _judged(_Interval(found.nine_tenths, found.low, found.high), 0.0, limit))


def _range(found: DurationOut) -> str:
    low = hours(found.low)
    if found.high is None:
        return gettext("%(low)s or more", low=low)
    return gettext("%(low)s to %(high)s", low=low, high=hours(found.high))


def _judged(found: _Interval, low: float, high: float) -> State:
    """Whether a value is between two ends, and whether its whole interval is so too."""
    inside = low <= found.value <= high
    if found.low is None:
        return "met-so-far" if inside else "missed-so-far"
    top = float("inf") if found.high is None else found.high
    if inside:
        return "met" if low <= found.low and top <= high else "met-so-far"
    return "missed" if top < low or found.low > high else "missed-so-far"


def _interval(found: MetricOut) -> _Interval:
    return _Interval(found.value or 0.0, found.low, found.high)


def percent(value: float | None) -> str:
    """A share in whole per cent.

    >>> percent(0.514), percent(None)
    ('51 %', '–')
    """
    return "–" if value is None else f"{100 * value:.0f} %"


def _of(found: MetricOut) -> str:
    return percent(found.value) + ends(found)


def ends(found: MetricOut) -> str:
    """The interval of a share in whole per cent, in brackets, after it; nothing where there is none."""
    if found.low is None or found.high is None:
        return ""
    both = gettext("%(low)s to %(high)s", low=f"{100 * found.low:.0f}", high=f"{100 * found.high:.0f}")
    return f" ({both})"


def hours(value: float | None) -> str:
    """A time in hours, in days where it is long.

    >>> hours(0.001), hours(0.5), hours(26.2), hours(100), hours(None)
    ('less than a minute', '30 minutes', '26 hours', '4.2 days', '–')
    """
    if value is None:
        return "–"
    if 60 * value < 1:
        return gettext("less than a minute")
    if value >= _DAYS_FROM:
        return gettext("%(n)s days", n=decimal(f"{value / 24:.{0 if value >= _WHOLE_DAYS_FROM else 1}f}"))
    if value >= 1:
        return ngettext("%(n)s hour", "%(n)s hours", round(value))
    return ngettext("%(n)s minute", "%(n)s minutes", round(60 * value))
