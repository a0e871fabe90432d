"""Selection of reference cells from settled cases."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from app.annotators.history import opinions_until
from app.annotators.practice.cells import MOST_CANDIDATES, never_shown, one_of_twins, settled, with_twins
from app.audit.chain.keys import DerivedKey
from app.database.tables import (
    SHOWN_KINDS,
    Case,
    CaseTwin,
    HeldBack,
    Label,
    PracticeCell,
    PracticeSet,
    ReferenceCell,
    Repeat,
    time_of,
)
from app.http.errors import NotFound

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


def candidates(
    session: Session, order: DerivedKey, first: Iterable[uuid.UUID] = (), only: uuid.UUID | None = None
) -> dict[str, list[Candidate]]:
    """Cells that may be chosen, by class, one of each group of twins.

    They are settled, of the calibration partition, held back from nobody, in no qualification and shown to annotators
    by the policy: whoever has seen them as reference cells can neither read them nor judge a release by them.

    Args:
        session: for reading.
        order: key by which those that are alike are put in order.
        first: cases that go before their twins.
        only: this case alone.
    """
    test = and_(PracticeSet.id == PracticeCell.set_id, PracticeSet.purpose == "qualification")
    statement = (
        select(Case.id)
        .join(Label, Label.case_id == Case.id)
        .where(
            Case.partition == "calibration",
            settled(),
            ~with_twins(HeldBack.case_id, Case.id),
            ~with_twins(Repeat.case_id, Case.id),
            ~with_twins(PracticeCell.case_id, Case.id, test),
        )
        .group_by(Case.id)
        .having(func.count(Label.annotator_id.distinct()) >= MIN_READERS)
        .order_by(Case.id.desc())
        .limit(MOST_CANDIDATES)
    )
    if only is not None:
        statement = statement.where(Case.id == only)
    found = list(session.execute(statement).scalars())
    before = set(first)
    ids = one_of_twins(session, sorted(found, key=lambda case_id: case_id not in before))
    hidden = never_shown(session, ids)
    return _by_class(session, order, [case_id for case_id in ids if case_id not in hidden])


def _by_class(session: Session, order: DerivedKey, case_ids: list[uuid.UUID]) -> dict[str, list[Candidate]]:
    ids = select(Case.id.label("case_id")).where(Case.id.in_(case_ids)).subquery()
    opinions = opinions_until(session, ids, time_of(session))
    of_cases = select(Case.id, Case.patient).where(Case.id.in_(case_ids))
    patients = {row.id: row.patient for row in session.execute(of_cases)}
    by_class: dict[str, list[Candidate]] = defaultdict(list)
    for case_id in case_ids:
        answers = opinions[case_id].opinions.values() if case_id in opinions else ()
        said = [one.class_code for one in answers if not one.late]
        lot = order.digest(b"reference cell " + case_id.bytes)
        found = candidate_of(case_id, said, patients[case_id], lot)
        if found is not None:
            by_class[found.class_code].append(found)
    return by_class


@dataclass(frozen=True)
class Cell:
    """A case with the decision that holds on it.

    Attributes:
        row: the decision.
        external_id: of the case.
        patient: whose cell it is.
    """

    row: ReferenceCell
    external_id: str
    patient: str | None

    @property
    def shown(self) -> bool:
        """Whether it may be shown."""
        return self.row.kind in SHOWN_KINDS

    def candidate(self) -> Candidate:
        """The cell as one that is kept."""
        row = self.row
        return Candidate(row.case_id, row.class_code, row.n_readers, row.n_same, self.patient, b"")


def cells_of(session: Session, codes: Iterable[str] | None = None) -> dict[str, list[Cell]]:
    """Every cell of some classes, all where left out, by class: pinned ones first, then those with most agreement."""
    place = func.row_number().over(
        partition_by=(ReferenceCell.class_code, ReferenceCell.case_id), order_by=ReferenceCell.number.desc()
    )
    ranked = select(ReferenceCell.id, place.label("place"))
    if codes is not None:
        ranked = ranked.where(ReferenceCell.class_code.in_(list(codes)))
    newest = ranked.subquery()
    statement = (
        select(ReferenceCell, Case.external_id, Case.patient)
        .join(newest, (newest.c.id == ReferenceCell.id) & (newest.c.place == 1))
        .join(Case, Case.id == ReferenceCell.case_id)
        .where(Case.erased_at.is_(None))
    )
    found: dict[str, list[Cell]] = {}
    for row, external_id, patient in session.execute(statement):
        found.setdefault(row.class_code, []).append(Cell(row, external_id, patient))
    for cells in found.values():
        cells.sort(key=_order)
    return found


def _order(cell: Cell) -> tuple[bool, float, bytes]:
    """Pinned ones, then those of which the next reader says the same most probably, then by random names."""
    row = cell.row
    return row.kind != "pinned", -cell.candidate().worth, row.id.bytes


def shown_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Those of a class that are shown."""
    return [cell for cell in cells if cell.shown][:N_CELLS]


def stands_for(session: Session, case_id: uuid.UUID) -> str | None:
    """The class for which a case, or a twin of it, was shown as a reference cell last; None where none ever was."""
    twins = select(CaseTwin.twin_id).where(CaseTwin.case_id == case_id)
    about = or_(ReferenceCell.case_id == case_id, ReferenceCell.case_id.in_(twins))
    newest = select(ReferenceCell.class_code).where(about, ReferenceCell.kind.in_(SHOWN_KINDS))
    return session.execute(newest.order_by(ReferenceCell.created_at.desc()).limit(1)).scalar_one_or_none()


def shown_case(session: Session, cell_id: uuid.UUID) -> Case:
    """The case of a cell that is shown now.

    Raises:
        NotFound: there is no such cell, or it is not shown any more.
    """
    row = session.get(ReferenceCell, cell_id)
    known = [] if row is None else cells_of(session, [row.class_code]).get(row.class_code, [])
    if row is None or row.case_id not in {cell.row.case_id for cell in shown_cells(known)}:
        raise NotFound("there is no such reference cell")
    return session.get_one(Case, row.case_id)
