"""Cases that a release was trained on never judge it: taken out before anything else is asked about the columns."""

import numpy as np
import numpy.typing as npt

from app.audit.chain.keys import DerivedKey
from app.evaluations.cohort import Question, in_question
from app.evaluations.columns import Columns
from app.evaluations.schemas import TrainedOnOut
from app.releases.training import what_is_known
from ml.messages import Message
from ml.release.card import CardContents


def held_out(columns: Columns, trained_on: npt.NDArray[np.bool_] | None = None) -> Columns:
    """Columns without the cases that their release was trained on.

    Args:
        columns: of one release.
        trained_on: (N,) cases to leave out; those of the columns where left out.
    """
    mask = columns.trained_on if trained_on is None else trained_on
    return columns.take(np.flatnonzero(~mask)) if mask.any() else columns


def left_out(columns: Columns, question: Question, trained_on: npt.NDArray[np.bool_] | None = None) -> int:
    """How many of the cases that a question is about ``held_out`` takes away."""
    mask = columns.trained_on if trained_on is None else trained_on
    return int((in_question(columns, question) & mask).sum()) if mask.any() else 0


def trained_on_out(n_left_out: int, key: DerivedKey, *cards: CardContents) -> TrainedOnOut:
    """How many cases were left out, and whether all of the releases say what they were trained on.

    Args:
        n_left_out: cases.
        key: of this installation, for patients of training sets.
        cards: of the releases.
    """
    images, patients = zip(*(what_is_known(card, key) for card in cards), strict=True)
    return TrainedOnOut(
        n_left_out=n_left_out,
        images="unknown" if "unknown" in images else "known",
        patients="unknown" if "unknown" in patients else "known",
    )


def left_out_warnings(found: TrainedOnOut) -> list[str]:
    """A sentence where cases were left out."""
    if not found.n_left_out:
        return []
    return [
        Message(
            "{n_left_out:,} cases are left out because the release was trained on them, or on their patient",
            n_left_out=found.n_left_out,
        )
    ]
