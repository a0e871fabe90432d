"""What practice says to people: what others said, never one right answer; and what a test can and cannot tell."""

from collections.abc import Mapping

from app.practice.schemas import PassRatesOut, ResultOut
from ml.agreement.qualification import LEVEL

#: Somebody who should not pass does so too often above this share.
TOO_OFTEN = 0.10


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


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
    parts = [f"{n} said {names.get(code, code)}" for n, code in said]
    parts[:1] = [f"{said[0][0]} of {total} said {names.get(said[0][1], said[0][1])}"]
    as_they_did = f"as {same} of them did" if same else "as none of them did"
    you = f"You said {names.get(own, own)}, {'as all of them did' if same == total else as_they_did}."
    likely = [(names.get(code, code), value) for code, value in sorted(probs.items(), key=lambda pair: -pair[1])]
    first = f"{likely[0][0]} with a probability of {_percent(likely[0][1])}"
    rest = [f"{name} {_percent(value)}" for name, value in likely[1:3] if value >= 0.01]
    after = f"By these answers and the prediction, the next annotator says {', '.join([first, *rest])}."
    return [f"{', '.join(parts)}. {you}", after]


def result_sentences(result: ResultOut) -> list[str]:
    """What a qualification found, for the one who took it."""
    points = [f"{100 * value:+.0f}" for value in (result.difference, result.low, result.high)]
    first = (
        f"By what others said of these {result.n} cells, the answers have a mean probability of "
        f"{_percent(result.mean)}; a member of the pool gets {_percent(result.of_pool)} on the same cells. The "
        f"difference is {points[0]} points ({points[1]} to {points[2]})."
    )
    if result.passed:
        return [
            first,
            "Passed: nothing in the answers is like guessing, or like taking one class for another, beyond chance.",
        ]
    rare = f"fewer than {100 * LEVEL:g} of 100"
    return [
        first,
        f"Not passed: in {rare} tests of somebody who answers like the others, the answers look as much like "
        "guessing, or confusing two classes, as these.",
    ]


def set_sentences(rates: PassRatesOut | None, names: Mapping[str, str]) -> list[str]:
    """What a qualification by a set can and cannot tell, for those who make it."""
    if rates is None:
        return []
    sentences = [
        f"Somebody who answers like the others passes with a probability of {_percent(rates.like_the_others)}, "
        f"somebody who guesses with {_percent(rates.guessing)}."
    ]
    weak = [f"{names.get(code, code)} ({_percent(rate)})" for code, rate in rates.confusing.items() if rate > TOO_OFTEN]
    if weak:
        sentences.append(f"Who takes a class for another one half of the time passes too often with {_listed(weak)}.")
    elif rates.confusing:
        worst = max(rates.confusing.values())
        sentences.append(f"Who takes any class for another one half of the time passes with {_percent(worst)} at most.")
    if rates.guessing > TOO_OFTEN or weak:
        sentences.append("The test is too weak for these: take more cells per run.")
    return sentences
