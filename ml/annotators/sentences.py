"""One sentence on an annotator's habits, shrunk so that few labels never sound harsh."""

from collections.abc import Sequence

import numpy as np

from ml.annotators.confusions import ReaderModel
from ml.messages import Message

#: A habit is told where it is at least this much more frequent than the population's, and this frequent.
MORE_THAN_OTHERS, OFTEN = 0.1, 0.15
_SHARES = (
    (0.175, Message("about one case in seven")),
    (0.225, Message("about a fifth of cases")),
    (0.29, Message("about a quarter of cases")),
    (0.415, Message("about a third of cases")),
    (0.585, Message("about half of cases")),
    (0.71, Message("about two thirds of cases")),
    (0.85, Message("about three quarters of cases")),
    (1.01, Message("nearly all cases")),
)


def share_in_words(share: float) -> str:
    """A share from .15 on, in words.

    >>> share_in_words(0.35)
    'about a third of cases'
    """
    return next(words for limit, words in _SHARES if share <= limit)


def describe_annotator_habit(model: ReaderModel, name: str, classes: Sequence[str]) -> str | None:
    """Sentence on an annotator's most frequent deviation from the population; None without one.

    Args:
        model: of the annotators, whose matrices are shrunk: few labels make no habit.
        name: of the annotator.
        classes: K names.
    """
    if name not in model.names:
        return None
    confusions = model.confusions[model.names.index(name)]
    more = np.where(np.eye(len(classes), dtype=bool), -np.inf, confusions - model.population)
    notable = (more >= MORE_THAN_OTHERS) & (confusions >= OFTEN)
    if not notable.any():
        return None
    opinion, answer = divmod(int(np.where(notable, confusions, -np.inf).argmax()), len(classes))
    share = share_in_words(float(confusions[opinion, answer]))
    return Message(
        "{name} calls {opinion} {answer} in {share}: counted for less.",
        name=name,
        opinion=classes[opinion],
        answer=classes[answer],
        share=share,
    )
