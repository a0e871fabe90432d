"""Which cells stand for a class: many readers, high agreement, different patients. Pure."""

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Cells of a class.
N_CELLS = 6
#: Final blind readers of a cell at least, and the share of them who said its class at least.
MIN_READERS, MIN_AGREEMENT = 2, 0.8


@dataclass(frozen=True)
class Candidate:
    """A settled cell that may stand for a class.

    Attributes:
        case_id: of the cell.
        class_code: what most of its readers said.
        n_readers: final blind readers.
        n_same: how many of them said so.
        patient: whose cell it is; None where nobody said.
        lot: decides between cells that are alike otherwise; says nothing of them.
    """

    case_id: uuid.UUID
    class_code: str
    n_readers: int
    n_same: int
    patient: str | None
    lot: bytes

    @property
    def worth(self) -> float:
        """Probability by Laplace's rule of succession that one more reader says the same.

        It grows with readers who agree, so that four of four are worth more than two of two, and than nine of twelve.
        """
        return (self.n_same + 1) / (self.n_readers + 2)


def candidate_of(case_id: uuid.UUID, answers: Iterable[str], patient: str | None, lot: bytes) -> Candidate | None:
    """The candidate that a cell is by the answers of its readers; None where they are too few or differ too much.

    Args:
        case_id: of the cell.
        answers: class by each final blind reader.
        patient: whose cell it is.
        lot: see ``Candidate``.
    """
    said = Counter(answers)
    if not said:
        return None
    (code, n_same), n_readers = said.most_common(1)[0], said.total()
    if n_readers < MIN_READERS or n_same < MIN_AGREEMENT * n_readers:
        return None
    return Candidate(case_id, code, n_readers, n_same, patient, lot)


def select_cells(
    candidates: Iterable[Candidate], kept: Sequence[Candidate] = (), n_cells: int = N_CELLS
) -> list[Candidate]:
    """The cells of one class: those that are kept, then the worthiest, each of another patient as far as possible.

    Args:
        candidates: of the class, in any order.
        kept: that stay whatever the others are.
        n_cells: in all, unless more are kept.

    Returns:
        The kept ones in their order, then the others, the worthiest first.
    """
    known = {one.case_id for one in kept}
    ranked = sorted((one for one in candidates if one.case_id not in known), key=lambda one: (-one.worth, one.lot))
    patients = {one.patient for one in kept if one.patient is not None}
    free = max(0, n_cells - len(kept))
    chosen: list[Candidate] = []
    spare: list[Candidate] = []
    for one in ranked:
        (spare if one.patient in patients else chosen).append(one)
        if one.patient is not None:
            patients.add(one.patient)
    taken = {one.case_id for one in [*chosen[:free], *spare[: max(0, free - len(chosen))]]}
    return [*kept, *(one for one in ranked if one.case_id in taken)]


def pair_at_stake(own: str | None, others: Counter[str], probs: dict[str, float]) -> tuple[str, str] | None:
    """The two classes that a case is between.

    Args:
        own: what the annotator who looks said; None for others.
        others: how many of the others said each class.
        probs: probability of each class for the next answer; empty where there is no prediction.

    Returns:
        The own answer and what most of the others said instead; where nobody said anything else the two most probable
        classes, the own one first; None where there are no two.
    """
    rest = [code for code, _ in others.most_common() if code != own]
    likely = sorted(probs, key=lambda code: (-probs[code], code))
    first = own or (rest.pop(0) if rest else None) or (likely[0] if likely else None)
    second = next((code for code in [*rest, *likely] if code != first), None)
    return None if first is None or second is None else (first, second)
