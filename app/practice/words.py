"""What practice says to people: what others said, never one right answer; and what a test can and cannot tell."""

from collections.abc import Mapping

from app.practice.schemas import PassRatesOut, ResultOut
from ml.agreement.qualification import LEVEL
from ml.messages import Message, joined, listed

#: Somebody who should not pass does so too often above this share.
TOO_OFTEN = 0.10


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def feedback_sentences(
    own: str, counts: Mapping[str, int], probs: Mapping[str, float], names: Mapping[str, str]
) -> list[str]:
    """How others answered a cell, next to one's own answer.

    >>> names = {"s": "segmented", "b": "band"}
    >>> for sentence in feedback_sentences("b", {"s": 7, "b": 2}, {"s": 0.76, "b": 0.24}, names):
    ...     print(sentence)
    7 of 9 said segmented, 2 said band. You said band, as 2 of them did.
    By these answers and the prediction, the next annotator says segmented with a probability of 76 %, band 24 %.
    """
    said = sorted(((n, code) for code, n in counts.items() if n), key=lambda pair: (-pair[0], pair[1]))
    total, same = sum(counts.values()), counts.get(own, 0)
    parts = [Message("{n} said {code}", n=n, code=names.get(code, code)) for n, code in said]
    parts[:1] = [
        Message("{said} of {total} said {said2}", said=said[0][0], total=total, said2=names.get(said[0][1], said[0][1]))
    ]
    as_they_did = Message("as {same} of them did", same=same) if same else Message("as none of them did")
    you = Message(
        "You said {own}, {as_they_did}.",
        own=names.get(own, own),
        as_they_did=Message("as all of them did") if same == total else as_they_did,
    )
    likely = [(names.get(code, code), value) for code, value in sorted(probs.items(), key=lambda pair: -pair[1])]
    first = Message("{likely} with a probability of {likely2}", likely=likely[0][0], likely2=_percent(likely[0][1]))
    rest = [f"{name} {_percent(value)}" for name, value in likely[1:3] if value >= 0.01]
    after = Message(
        "By these answers and the prediction, the next annotator says {rest}.", rest=joined(", ", [first, *rest])
    )
    return [joined(". ", [joined(", ", parts), you]), after]


def result_sentences(result: ResultOut) -> list[str]:
    """What a qualification found, for the one who took it."""
    points = [f"{100 * value:+.0f}" for value in (result.difference, result.low, result.high)]
    first = Message(
        "By what others said of these {n} cells, the answers have a mean probability of {mean}; a "
        "member of the pool gets {of_pool} on the same cells. The difference is {points} points "
        "({points2} to {points3}).",
        n=result.n,
        mean=_percent(result.mean),
        of_pool=_percent(result.of_pool),
        points=points[0],
        points2=points[1],
        points3=points[2],
    )
    if result.passed:
        return [
            first,
            Message(
                "Passed: nothing in the answers is like guessing, or like taking one class for another, beyond chance."
            ),
        ]
    rare = Message("fewer than {level:g} of 100", level=100 * LEVEL)
    return [
        first,
        Message(
            "Not passed: in {rare} tests of somebody who answers like the others, the answers look as "
            "much like guessing, or confusing two classes, as these.",
            rare=rare,
        ),
    ]


def set_sentences(rates: PassRatesOut | None, names: Mapping[str, str]) -> list[str]:
    """What a qualification by a set can and cannot tell, for those who make it."""
    if rates is None:
        return []
    sentences: list[str] = [
        Message(
            "Somebody who answers like the others passes with a probability of {like_the_others}, "
            "somebody who guesses with {guessing}.",
            like_the_others=_percent(rates.like_the_others),
            guessing=_percent(rates.guessing),
        )
    ]
    weak = [f"{names.get(code, code)} ({_percent(rate)})" for code, rate in rates.confusing.items() if rate > TOO_OFTEN]
    if weak:
        sentences.append(
            Message(
                "Who takes a class for another one half of the time passes too often with {weak}.", weak=listed(weak)
            )
        )
    elif rates.confusing:
        worst = max(rates.confusing.values())
        sentences.append(
            Message(
                "Who takes any class for another one half of the time passes with {worst} at most.",
                worst=_percent(worst),
            )
        )
    if rates.guessing > TOO_OFTEN or weak:
        sentences.append(Message("The test is too weak for these: take more cells per run."))
    return sentences
