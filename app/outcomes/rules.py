"""Rules that conclude a case: pure functions of its opinions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.database.tables.values import OutcomeRule

#: Opinions below which no rule concludes a case.
MIN_OPINIONS = 3


@dataclass(frozen=True)
class RuleDecision:
    """What a rule concludes."""

    rule: OutcomeRule
    # None: split
    class_code: str | None


def conclude_opinions(classes: Sequence[str], max_labels: int, *, no_annotator_left: bool) -> RuleDecision | None:
    """Conclude a case from the classes of its final blind opinions; None if no rule applies.

    >>> conclude_opinions(["a", "b", "a"], 5, no_annotator_left=False)
    RuleDecision(rule='majority', class_code='a')
    """
    if len(classes) < MIN_OPINIONS:
        return None
    leader, n = Counter(classes).most_common(1)[0]
    if 2 * n > len(classes):
        return RuleDecision("majority", leader)
    return RuleDecision("split", None) if no_annotator_left or len(classes) >= max_labels else None
