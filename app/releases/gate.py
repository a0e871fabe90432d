"""The gate: whether a release may replace the champion, judged when it was recalibrated, or when somebody asked.

The verdict is a column of the release. Reasons and the changes that it rests on are on the card of a release that was
recalibrated here, which is hashed with the release, and in the audit for one that was trained elsewhere. What a card
from elsewhere says of a gate counts for nothing here.
"""

from math import isfinite
from typing import Any, Literal, Self

from pydantic import Field, StrictBool, ValidationError, model_validator

from app.http.models import MetricOut, Out, Sentence
from ml.release.card import CardContents

#: ``not_judged``: no gate of this service has compared the release with a champion.
Verdict = Literal["passed", "refused", "not_judged"]
VERDICTS: tuple[Verdict, ...] = ("passed", "refused", "not_judged")


class Worse(Out):
    """By how much a change is worse than by all labels, with the standard error of that difference."""

    value: float | None
    se: float | None

    @classmethod
    def of(cls, value: float, se: float) -> "Worse":
        """Numbers as JSON has them: what is not a number becomes null."""
        return cls(value=value if isfinite(value) else None, se=se if isfinite(se) else None)


class WithoutAnnotator(Out):
    """The judgement with one annotator's labels left out of fit and judgement, or why there is none."""

    annotator: str
    failed: Sentence | None = None
    L: MetricOut | None = None
    L_D: MetricOut | None = None
    worse: dict[str, Worse] | None = None


class Attempt(Out):
    """Which attempt on the champion it was, and what was asked of it.

    ``level``: probability of passing by luck that this attempt may use, half of it for each loss; ``p_L``, ``p_L_D``:
    one-sided p values of «not better»; ``stability_limit``: standard errors that a change may be worse without one
    annotator, null where there were too few; ``max_increase``: margin of the change plan, null without one.
    """

    number: int
    level: float
    level_of_each_loss: float
    p_L: float | None
    p_L_D: float | None
    stability_limit: float | None
    max_increase: float | None


class SinceFirst(Out):
    """Changes from the release that was promoted first in this service, or why they are unknown."""

    release: str | None
    is_champion: bool = False
    unknown: Sentence | None = None
    n_cases: int | None = None
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
        findings: what else was found or could not be checked, a sentence each.
        champion: release against which it was judged.
        attempt: number, level and limits.
        since_first: changes from the first champion.
    """

    passed: StrictBool
    reasons: list[Sentence]
    L: MetricOut
    L_D: MetricOut
    without_annotator: list[WithoutAnnotator]
    findings: list[Sentence] = Field(default_factory=list)
    champion: str | None = None
    attempt: Attempt | None = None
    since_first: SinceFirst | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse a verdict that contradicts its reasons.

        Raises:
            ValueError: it passed with reasons, or was refused without.
        """
        if self.passed == bool(self.reasons):
            raise ValueError("a gate that refuses has reasons, and one that passes has none")
        return self

    def headline(self) -> str:
        """The verdict in a few words, with the number of the attempt."""
        verdict = "the gate passed it" if self.passed else "the gate refused it"
        return verdict if self.attempt is None else f"{verdict}, attempt {self.attempt.number} on this champion"

    def to_dict(self) -> dict[str, Any]:
        """Return it as it stands on the card."""
        return self.model_dump(exclude_unset=True)


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
