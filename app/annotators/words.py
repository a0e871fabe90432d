"""What an annotator's numbers mean, in sentences that brand nobody for chance."""

from collections.abc import Mapping, Sequence

from app.annotators.schemas import ConfidenceOut, ConfusionOut, OwnReadingOut, PulledOut
from ml.messages import Message

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
    return Message("{low} to {high}", low=share(pulled.low), high=share(pulled.high))


def _than_all(pulled: PulledOut) -> str:
    """How an interval lies to everybody's value."""
    if pulled.low > pulled.everybody:
        return Message("more than all annotators")
    return (
        Message("less than all annotators")
        if pulled.high < pulled.everybody
        else Message("no more and no less than chance allows")
    )


def _pace(seconds: PulledOut | None) -> str:
    if seconds is None:
        return ""
    return Message(
        "A case typically takes {value:.0f} s ({low:.0f} to {high:.0f}), by {n} reads; of all "
        "annotators {everybody:.0f} s.",
        value=seconds.value,
        low=seconds.low,
        high=seconds.high,
        n=seconds.n,
        everybody=seconds.everybody,
    )


def _self(pulled: PulledOut | None) -> str:
    if pulled is None:
        return Message("Agreement with yourself is shown after ten cases that came a second time.")
    return Message(
        "Of cases that came a second time, {value} ({pulled}) get the same answer, by {n} cases; "
        "of all annotators {everybody}.",
        value=share(pulled.value),
        pulled=_range(pulled),
        n=pulled.n,
        everybody=share(pulled.everybody),
    )


def _agreement(reading: OwnReadingOut) -> str:
    mean, surplus = reading.agreement, reading.agreement_surplus
    if mean is None or surplus is None:
        return Message("The comparison with others begins after ten closed cases that others have read as well.")
    return Message(
        "Another annotator gives the same answer with a probability of {value} ({mean}), by {n} "
        "closed cases. On the same cases that is {value2} than for somebody like the others ({low} "
        "to {high}); for all annotators together it is {everybody}: {surplus}.",
        value=share(mean.value),
        mean=_range(mean),
        n=mean.n,
        value2=_points(surplus.value),
        low=_points(surplus.low),
        high=_points(surplus.high),
        everybody=_points(surplus.everybody),
        surplus=_than_all(surplus),
    )


def _points(difference: float) -> str:
    """How far a share is from another one, in words: nobody has to look for a sign.

    >>> _points(-0.094), _points(0.012), _points(-0.004)
    ('9 points lower', '1 point higher', '0 points higher')
    """
    points = round(100 * difference)
    if points in {-1, 1}:
        return Message("1 point lower") if points < 0 else Message("1 point higher")
    return (
        Message("{points} points lower", points=-points)
        if points < 0
        else Message("{points} points higher", points=points)
    )


def _confusions(cells: Sequence[ConfusionOut], names: Mapping[str, str]) -> list[str]:
    notable = sorted((cell for cell in cells if cell.notable), key=lambda cell: cell.everybody - cell.share)
    if not notable:
        return [Message("No answer differs from what all annotators say by more than chance allows.")]
    return [
        Message(
            "Where others say {others_say}, the answer is {says} in {share} of cases ({low} to "
            "{high}); of all annotators in {everybody}.",
            others_say=names.get(cell.others_say, cell.others_say),
            says=names.get(cell.says, cell.says),
            share=share(cell.share),
            low=share(cell.low),
            high=share(cell.high),
            everybody=share(cell.everybody),
        )
        for cell in notable[:_MOST]
    ]


def _confidence(row: ConfidenceOut) -> str:
    pulled = row.agreement
    verdict = Message("as sure as others bear out")
    if row.confidence > pulled.high:
        verdict = Message("surer than others bear out")
    elif row.confidence < pulled.low:
        verdict = Message("less sure than others bear out")
    return Message(
        "Where the answer was {confidence} sure, another annotator agrees in {value} ({pulled}) of "
        "{n} cases: {verdict}.",
        confidence=share(row.confidence),
        value=share(pulled.value),
        pulled=_range(pulled),
        n=pulled.n,
        verdict=verdict,
    )


def _cannot_tell(pulled: PulledOut | None) -> str:
    if pulled is None:
        return ""
    return Message(
        "{value} ({pulled}) of {n} reads end in \u201ccannot tell\u201d; of all annotators {everybody}.",
        value=share(pulled.value),
        pulled=_range(pulled),
        n=pulled.n,
        everybody=share(pulled.everybody),
    )


def _drift(pulled: PulledOut | None) -> str:
    if pulled is None:
        return ""
    if pulled.high < 0:
        return Message("In the last third of the cases others differ more from the answers than before.")
    if pulled.low > 0:
        return Message("In the last third of the cases others differ less from the answers than before.")
    return Message("The last third of the cases differs from those before by no more than chance allows.")
