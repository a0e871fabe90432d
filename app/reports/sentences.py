"""Opening sentences of a report, each with the laboratory's own target."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app.http.languages import gettext, gettext_noop, localize_decimal, ngettext
from app.http.models import MetricOut
from app.metrics.service import MetricsBody
from app.reports.schemas import DurationOut, FindingsOut, ReportBody, SaidOut
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

    # of the chart that belongs to it
    name: str
    question: str
    # the answer, or why there is none yet
    text: str
    # what the laboratory wants, in words
    target: str
    # whether that is so
    state: State

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
    findings = body.findings
    answers = {
        "disagreement": _calibration_answer(
            findings.disagreement,
            targets.disagreement_gap,
            gettext_noop("Predicted disagreement between two annotators %(said)s; observed %(seen)s. %(verdict)s."),
            _DISAGREEMENT_WORDS,
        )
        or _unknown(_TWICE),
        "classes": _calibration_answer(
            findings.leading,
            targets.leading_gap,
            gettext_noop("When the model is confident (mean %(said)s), %(seen)s of annotators agree. %(verdict)s."),
            _CONFIDENCE_WORDS,
        )
        or _unknown(gettext_noop("too few cells with a confident prediction have a label")),
        "triage": _second_reads_answer(findings, targets.caught),
        "pairs": _agreement_answer(findings.agreement, targets.agreement),
        "weeks": _turnaround_answer(findings.answering, targets.hours),
    }
    if doubt := doubt_triage(body.document):
        text, state = answers["triage"]
        answers["triage"] = f"{text} {doubt}", state
    points, share = gettext_noop("within %(gap)s points"), gettext_noop("at least %(share)s")
    better = gettext_noop("at least %(share)s, and more than at random")
    hours = localize_decimal(f"{targets.hours:g}")
    wanted = {
        "disagreement": gettext(points, gap=localize_decimal(f"{100 * targets.disagreement_gap:g}")),
        "classes": gettext(points, gap=localize_decimal(f"{100 * targets.leading_gap:g}")),
        "triage": gettext(better, share=format_rate(targets.caught)),
        "pairs": gettext(share, share=format_rate(targets.agreement)),
        "weeks": gettext(
            "within %(time)s", time=ngettext("%(n)s hour", "%(n)s hours", math.ceil(targets.hours), n=hours)
        ),
    }
    return [
        ReportSentence(name, gettext(QUESTIONS[name]), text, wanted[name], state)
        for name, (text, state) in answers.items()
    ]


#: What each sentence answers.
QUESTIONS = {
    "disagreement": gettext_noop("Does predicted disagreement match observed disagreement?"),
    "classes": gettext_noop("Do annotators agree when the model is confident?"),
    "triage": gettext_noop("Do second reads catch the disagreements?"),
    "pairs": gettext_noop("Do two annotators agree?"),
    "weeks": gettext_noop("How soon are planned reads answered?"),
}
_TWICE = gettext_noop("fewer than two cells have two labels")
# of predictions below and above what is observed: beyond doubt, possibly, and within the target
_DISAGREEMENT_WORDS = (
    (gettext_noop("Too low"), gettext_noop("Possibly too low"), gettext_noop("Too low, within the target")),
    (gettext_noop("Too high"), gettext_noop("Possibly too high"), gettext_noop("Too high, within the target")),
)
_CONFIDENCE_WORDS = (
    (
        gettext_noop("Underconfident"),
        gettext_noop("Possibly underconfident"),
        gettext_noop("Underconfident, within the target"),
    ),
    (
        gettext_noop("Overconfident"),
        gettext_noop("Possibly overconfident"),
        gettext_noop("Overconfident, within the target"),
    ),
)
_Answer = tuple[str, State]


def _unknown(why: str) -> _Answer:
    return gettext("Not yet available: %(why)s.", why=gettext(why)), "unknown"


def _calibration_answer(
    found: SaidOut | None, gap: float, words: str, directions: tuple[tuple[str, ...], ...]
) -> _Answer | None:
    if found is None or found.seen.value is None:
        return None
    seen = _interval_of_metric(found.seen)
    off = _ValueInterval(*(None if end is None else end - found.said for end in seen))  # type: ignore[arg-type]
    clear, possible, inside = directions[off.value <= 0]
    if off.low is not None and off.high is not None and (off.low > 0 or off.high < 0):
        verdict = inside if abs(off.value) <= gap else clear
    else:
        verdict = gettext_noop("On target") if abs(off.value) <= gap else possible
    values = {"said": format_percent(found.said), "seen": _percent_with_interval(found.seen)}
    return gettext(words, verdict=gettext(verdict), **values), _compare_with_target(off, -gap, gap)


def _second_reads_answer(findings: FindingsOut, target: float) -> _Answer:
    found = findings.second_reads
    if found.by == "specimen_value":
        return gettext("The policy chooses cells of each specimen by the value of a second read."), "unknown"
    if found.share is None and findings.n_cases:
        return _unknown(gettext_noop("too few earlier cells for a threshold"))
    if found.share is None or found.caught is None or found.caught.value is None:
        return _unknown(gettext_noop("no two annotators have disagreed yet"))
    text = gettext(
        "Second reads of %(share)s of the cells catch %(caught)s of the disagreements; "
        "random second reads would catch %(share)s.",
        share=format_percent(found.share),
        caught=_percent_with_interval(found.caught),
    )
    least = target if found.share >= 1 else max(target, math.nextafter(found.share, 1.0))
    return text, _compare_with_target(_interval_of_metric(found.caught), least, 1.0)


def doubt_triage(document: MetricsBody) -> str | None:
    """A sentence while the disagreement probability is not known to beat random second reads."""
    found = document.metrics["skill_D"]
    if found.value is None or found.low is None or found.high is None:
        return ngettext(
            "Too few pairs of labels to compare with random second reads: %(n)s cell has two labels.",
            "Too few pairs of labels to compare with random second reads: %(n)s cells have two labels.",
            found.n,
            n=found.n,
        )
    if found.low > 0:
        return None
    value, low, high = (localize_decimal(f"{number:z.2f}") for number in (found.value, found.low, found.high))
    return ngettext(
        "No better than random so far: skill of the disagreement probability %(value)s (95%% CI %(low)s to %(high)s), "
        "from %(n)s cell with two labels.",
        "No better than random so far: skill of the disagreement probability %(value)s (95%% CI %(low)s to %(high)s), "
        "from %(n)s cells with two labels.",
        found.n,
        value=value,
        low=low,
        high=high,
        n=found.n,
    )


def _agreement_answer(found: MetricOut | None, target: float) -> _Answer:
    if found is None:
        return _unknown(_TWICE)
    text = gettext("Two annotators agree on %(share)s of the cells.", share=_percent_with_interval(found))
    return text, _compare_with_target(_interval_of_metric(found), target, 1.0)


def _turnaround_answer(found: DurationOut, limit: float) -> _Answer:
    if found.n == 0:
        return _unknown(gettext_noop("there are no planned reads yet"))
    if found.nine_tenths is None:
        return _unknown(gettext_noop("fewer than 9 in 10 planned reads are answered"))
    ends = "" if found.low is None else gettext(" (95%% CI %(range)s)", range=_format_hours_range(found))
    time = format_hours(found.nine_tenths)
    text = gettext("90%% of planned reads are answered within %(time)s%(ends)s.", time=time, ends=ends)
    return text, _compare_with_target(_ValueInterval(found.nine_tenths, found.low, found.high), 0.0, limit)


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

    >>> format_rate(0.1), format_rate(0.9995), format_rate(None)
    ('10%', '99.95%', '–')
    """
    return "–" if value is None else localize_decimal(f"{100 * value:.6g}%")


def _percent_with_interval(found: MetricOut) -> str:
    if found.low is None or found.high is None:
        return format_percent(found.value)
    return gettext(
        "%(share)s (95%% CI %(low)s–%(high)s)",
        share=format_percent(found.value),
        low=f"{100 * found.low:.0f}",
        high=format_percent(found.high),
    )


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
    return format_ends(found.low, found.high)


def format_ends(low: float | None, high: float | None) -> str:
    """The same of its two ends."""
    if low is None or high is None:
        return ""
    return " (" + gettext("%(low)s to %(high)s", low=f"{100 * low:.0f}", high=f"{100 * high:.0f}") + ")"


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
