"""What an annotator's numbers mean, in sentences that brand nobody for chance."""

from collections.abc import Mapping, Sequence

from app.annotators.schemas import ConfidenceOut, ConfusionOut, OwnReadingOut, PulledOut

_MOST = 3


def share(value: float) -> str:
    """A share in whole per cent: more digits would be of chance alone."""
    return f"{100 * value:.0f} %"


def sentences(reading: OwnReadingOut, names: Mapping[str, str]) -> list[str]:
    """Everything that the numbers say, one sentence each.

    Args:
        reading: the numbers, its own sentences not looked at.
        names: of classes, by code.
    """
    said = [_pace(reading.seconds), _self(reading.self_agreement), _agreement(reading)]
    said += _confusions(reading.confusions, names) if reading.n_compared else []
    said += [_confidence(row) for row in reading.confidence]
    said += [_cannot_tell(reading.cannot_tell), _drift(reading.drift)]
    return [sentence for sentence in said if sentence]


def _range(pulled: PulledOut) -> str:
    return f"{share(pulled.low)} to {share(pulled.high)}"


def _than_all(pulled: PulledOut) -> str:
    """How an interval lies to everybody's value."""
    if pulled.low > pulled.everybody:
        return "more than all annotators"
    return "less than all annotators" if pulled.high < pulled.everybody else "no more and no less than chance allows"


def _pace(seconds: PulledOut | None) -> str:
    if seconds is None:
        return ""
    return (
        f"A case typically takes {seconds.value:.0f} s ({seconds.low:.0f} to {seconds.high:.0f}), "
        f"by {seconds.n} reads; of all annotators {seconds.everybody:.0f} s."
    )


def _self(pulled: PulledOut | None) -> str:
    if pulled is None:
        return "Agreement with yourself is shown after ten cases that came a second time."
    return (
        f"Of cases that came a second time, {share(pulled.value)} ({_range(pulled)}) get the same answer, "
        f"by {pulled.n} cases; of all annotators {share(pulled.everybody)}."
    )


def _agreement(reading: OwnReadingOut) -> str:
    mean, surplus = reading.agreement, reading.agreement_surplus
    if mean is None or surplus is None:
        return "The comparison with others begins after ten closed cases that others have read as well."
    return (
        f"Another annotator gives the same answer with a probability of {share(mean.value)} ({_range(mean)}), "
        f"by {mean.n} closed cases. On the same cases that is {_points(surplus.value)} than for somebody like the "
        f"others ({_points(surplus.low)} to {_points(surplus.high)}); for all annotators together it is "
        f"{_points(surplus.everybody)}: {_than_all(surplus)}."
    )


def _points(difference: float) -> str:
    """How far a share is from another one, in words: nobody has to look for a sign.

    >>> _points(-0.094), _points(0.012), _points(-0.004)
    ('9 points lower', '1 point higher', '0 points higher')
    """
    points = round(100 * difference)
    if points in {-1, 1}:
        return "1 point lower" if points < 0 else "1 point higher"
    return f"{-points} points lower" if points < 0 else f"{points} points higher"


def _confusions(cells: Sequence[ConfusionOut], names: Mapping[str, str]) -> list[str]:
    notable = sorted((cell for cell in cells if cell.notable), key=lambda cell: cell.everybody - cell.share)
    if not notable:
        return ["No answer differs from what all annotators say by more than chance allows."]
    return [
        f"Where others say {names.get(cell.others_say, cell.others_say)}, the answer is "
        f"{names.get(cell.says, cell.says)} in {share(cell.share)} of cases ({share(cell.low)} to {share(cell.high)}); "
        f"of all annotators in {share(cell.everybody)}."
        for cell in notable[:_MOST]
    ]


def _confidence(row: ConfidenceOut) -> str:
    pulled = row.agreement
    verdict = "as sure as others bear out"
    if row.confidence > pulled.high:
        verdict = "surer than others bear out"
    elif row.confidence < pulled.low:
        verdict = "less sure than others bear out"
    return (
        f"Where the answer was {share(row.confidence)} sure, another annotator agrees in {share(pulled.value)} "
        f"({_range(pulled)}) of {pulled.n} cases: {verdict}."
    )


def _cannot_tell(pulled: PulledOut | None) -> str:
    if pulled is None:
        return ""
    return (
        f"{share(pulled.value)} ({_range(pulled)}) of {pulled.n} reads end in \u201ccannot tell\u201d; "
        f"of all annotators {share(pulled.everybody)}."
    )


def _drift(pulled: PulledOut | None) -> str:
    if pulled is None:
        return ""
    if pulled.high < 0:
        return "In the last third of the cases others differ more from the answers than before."
    if pulled.low > 0:
        return "In the last third of the cases others differ less from the answers than before."
    return "The last third of the cases differs from those before by no more than chance allows."
