"""The gate: whether a candidate may replace the champion, judged when it was recalibrated.

The verdict is a column of the release. Its reasons and the changes that it rests on are on the release's card, which
is hashed with the release.
"""

from typing import Any, Literal, Self

from pydantic import StrictBool, ValidationError, model_validator

from app.platform.values import MetricOut, Out
from ml.release.card import CardContents

#: ``not_judged``: the release was trained, not recalibrated, so that no gate has compared it with a champion.
Verdict = Literal["passed", "refused", "not_judged"]
VERDICTS: tuple[Verdict, ...] = ("passed", "refused", "not_judged")


class WithoutAnnotator(Out):
    """The judgement with one annotator's labels left out of fit and judgement, or why there is none."""

    annotator: str
    failed: str | None = None
    L: MetricOut | None = None
    L_D: MetricOut | None = None


class Gate(Out):
    """What the gate found.

    Attributes:
        passed: whether the candidate may become champion.
        reasons: why not, a sentence each; none where it passed.
        L: change of L from the champion to the candidate; negative is better.
        L_D: change of L_φ.
        without_annotator: the same without each annotator in turn.
    """

    passed: StrictBool
    reasons: list[str]
    L: MetricOut
    L_D: MetricOut
    without_annotator: list[WithoutAnnotator]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse a verdict that contradicts its reasons.

        Raises:
            ValueError: it passed with reasons, or was refused without.
        """
        if self.passed == bool(self.reasons):
            raise ValueError("a gate that refuses has reasons, and one that passes has none")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return it as it stands on the card."""
        return self.model_dump(mode="json", exclude_unset=True)


def gate_of(card: CardContents) -> Gate | None:
    """What the gate found, from a release's card; None for a release that was never judged.

    Raises:
        ValueError: the card says that the release was recalibrated, but its gate is missing or malformed.
    """
    if "recalibration" not in card:
        return None
    recalibration = card["recalibration"]
    if not isinstance(recalibration, dict) or "gate" not in recalibration:
        raise ValueError("the release's card is malformed: recalibration has no gate")
    try:
        return Gate.model_validate(recalibration["gate"])
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(["recalibration.gate", *(str(part) for part in first["loc"])])
        raise ValueError(f"the release's card is malformed: {where}: {first['msg']}") from exc


def gate_fault(card: CardContents) -> str | None:
    """Why the gate on a stored card cannot be read; None where it can, or where there is none."""
    try:
        gate_of(card)
    except ValueError as exc:
        return str(exc)
    return None


def verdict_of(gate: Gate | None) -> Verdict:
    """The verdict as the release's row keeps it."""
    if gate is None:
        return "not_judged"
    return "passed" if gate.passed else "refused"
