"""The first sentences of a report, each beside the laboratory's own target."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app.evaluations.report_schemas import DurationOut, ReportBody, SaidOut
from app.evaluations.targets import TargetsOut
from app.platform.values import MetricOut

State = Literal["met", "met-so-far", "missed-so-far", "missed", "unknown"]
#: A verdict in words, with a sign of its own: nobody has to tell colours apart.
VERDICTS: dict[State, str] = {
    "met": "✓ Target met",
    "met-so-far": "(✓) Met so far",
    "missed-so-far": "(✗) Missed so far",
    "missed": "✗ Target missed",
    "unknown": "– No answer yet",
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
        return VERDICTS[self.state]


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
        "When it says {said} of annotators would differ, {seen} did",
        "How often annotators differ as predicted",
    )
    yield _said(
        "classes",
        found.leading,
        targets.leading_gap,
        "Where it is surest of a class, {said} on average, {seen} of annotators name that class",
        "How often annotators name the class that it is surest of",
    )
    wanted = f"at least {percent(targets.caught)}"
    if found.caught is None:
        yield Sentence("triage", "What second reads catch", wanted, "unknown", "two annotators who differ about a case")
    else:
        text = f"Reading {percent(found.caught.share)} of the cases twice catches {_of(found.caught.caught)} of the "
        state = _judged(_interval(found.caught.caught), targets.caught, 1.0)
        yield Sentence("triage", text + "disagreements.", wanted, state)
    wanted = f"at least {percent(targets.agreement)}"
    if found.agreement is None:
        yield Sentence("pairs", "How often two annotators agree", wanted, "unknown", _TWICE)
    else:
        text = f"Two annotators agree on {_of(found.agreement)} of the cases."
        yield Sentence("pairs", text, wanted, _judged(_interval(found.agreement), targets.agreement, 1.0))
    yield _turnaround(body.workload.answering, targets.hours)


_TWICE = "more cases with two labels"


def _said(name: str, found: SaidOut | None, gap: float, words: str, topic: str) -> Sentence:
    target = f"within {100 * gap:g} points"
    if found is None or found.seen.value is None:
        return Sentence(name, topic, target, "unknown", _TWICE if name == "disagreement" else "labels of such cases")
    seen = _interval(found.seen)
    off = _Interval(*(None if end is None else end - found.said for end in seen))  # type: ignore[arg-type]
    text = words.format(said=percent(found.said), seen=_of(found.seen))
    return Sentence(name, f"{text}: {_direction(off, gap)}.", target, _judged(off, -gap, gap))


def _direction(off: _Interval, gap: float) -> str:
    """Whether what was said is too low or too high; «perhaps» where the interval has zero in it."""
    if off.low is not None and off.high is not None and (off.low > 0 or off.high < 0):
        within = ", within the target" if abs(off.value) <= gap else ""
        return ("too low" if off.value > 0 else "too high") + within
    if abs(off.value) <= gap:
        return "about right"
    return "perhaps too low" if off.value > 0 else "perhaps too high"


def _turnaround(found: DurationOut, limit: float) -> Sentence:
    target = f"within {hours(limit)}"
    if found.n == 0 or found.nine_tenths is None:
        missing = "planned reads" if found.n == 0 else "nine of ten planned reads answered"
        return Sentence("weeks", "How soon planned reads are answered", target, "unknown", missing)
    ends = "" if found.low is None else f" ({_range(found)})"
    text = f"Nine of ten planned reads are answered within {hours(found.nine_tenths)}{ends}."
    return Sentence("weeks", text, target, _judged(_Interval(found.nine_tenths, found.low, found.high), 0.0, limit))


def _range(found: DurationOut) -> str:
    return f"{hours(found.low)} to {hours(found.high)}" if found.high is not None else f"{hours(found.low)} or more"


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
    return f" ({100 * found.low:.0f} to {100 * found.high:.0f})"


def hours(value: float | None) -> str:
    """A time in hours, in days where it is long.

    >>> hours(0.001), hours(0.5), hours(26.2), hours(100), hours(None)
    ('less than a minute', '30 minutes', '26 hours', '4.2 days', '–')
    """
    if value is None:
        return "–"
    if 60 * value < 1:
        return "less than a minute"
    if value >= _DAYS_FROM:
        return f"{value / 24:.{0 if value >= _WHOLE_DAYS_FROM else 1}f} days"
    if value >= 1:
        return f"{value:.0f} hour{'' if round(value) == 1 else 's'}"
    return f"{60 * value:.0f} minute{'' if round(60 * value) == 1 else 's'}"
