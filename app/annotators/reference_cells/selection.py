"""Selection of reference cells from settled cases."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from app.annotators.practice import service as practice_service
from app.annotators.service import opinions_until
from app.audit.chain.keys import DerivedKey
from app.database.tables import (
    SHOWN_KINDS,
    Case,
    CaseTwin,
    CountedLabel,
    HeldBack,
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
class CellCandidate:
    """A settled cell that may stand for a class."""

    case_id: uuid.UUID
    # what most of its readers said
    class_code: str
    n_readers: int
    # how many of them said so
    n_same: int
    # whose cell it is; None where nobody said
    patient: str | None
    # decides between cells that are alike otherwise; says nothing of them
    lot: bytes

    @property
    def worth(self) -> float:
        """Probability by Laplace's rule of succession that one more reader says the same."""
        # It grows with readers who agree, so that four of four are worth more than two of two, and than nine of twelve.
        return (self.n_same + 1) / (self.n_readers + 2)


def candidate_of(case_id: uuid.UUID, answers: Iterable[str], patient: str | None, lot: bytes) -> CellCandidate | None:
    """The candidate that a cell is by the answers of its readers; None where they are too few or differ too much."""
    counts = Counter(answers)
    if not counts:
        return None
    (code, n_same), n_readers = counts.most_common(1)[0], counts.total()
    if n_readers < MIN_READERS or n_same < MIN_AGREEMENT * n_readers:
        return None
    return CellCandidate(case_id, code, n_readers, n_same, patient, lot)


def select_cells(
    candidates: Iterable[CellCandidate], kept: Sequence[CellCandidate] = (), n_cells: int = N_CELLS
) -> list[CellCandidate]:
    """The cells of one class: those that are kept, then the worthiest, each of another patient as far as possible."""
    kept_ids = {one.case_id for one in kept}
    ranked = sorted((one for one in candidates if one.case_id not in kept_ids), key=lambda one: (-one.worth, one.lot))
    patients = {one.patient for one in kept if one.patient is not None}
    free = max(0, n_cells - len(kept))
    chosen: list[CellCandidate] = []
    spare: list[CellCandidate] = []
    for one in ranked:
        (spare if one.patient in patients else chosen).append(one)
        if one.patient is not None:
            patients.add(one.patient)
    taken = {one.case_id for one in [*chosen[:free], *spare[: max(0, free - len(chosen))]]}
    return [*kept, *(one for one in ranked if one.case_id in taken)]


def pair_at_stake(own: str | None, others: Counter[str], probs: dict[str, float]) -> tuple[str, str] | None:
    """The two classes that a case is between."""
    rest = [code for code, _ in others.most_common() if code != own]
    likely = sorted(probs, key=lambda code: (-probs[code], code))
    first = own or (rest.pop(0) if rest else None) or (likely[0] if likely else None)
    second = next((code for code in [*rest, *likely] if code != first), None)
    return None if first is None or second is None else (first, second)


def list_reference_candidates(
    session: Session, order: DerivedKey, first: Iterable[uuid.UUID] = (), only: uuid.UUID | None = None
) -> dict[str, list[CellCandidate]]:
    """Cells that may be chosen, by class, one of each group of twins."""
    # They are settled, of the calibration partition, held back from nobody, in no qualification and shown to annotators
    # by the policy: whoever has seen them as reference cells can neither read them nor judge a release by them.
    test = and_(PracticeSet.id == PracticeCell.set_id, PracticeSet.purpose == "qualification")
    statement = (
        select(Case.id)
        .join(CountedLabel, CountedLabel.case_id == Case.id)
        .where(
            Case.partition == "calibration",
            CountedLabel.blind.is_(True),
            practice_service.is_settled(),
            ~practice_service.with_twins(HeldBack.case_id, Case.id),
            ~practice_service.with_twins(Repeat.case_id, Case.id),
            ~practice_service.with_twins(PracticeCell.case_id, Case.id, test),
        )
        .group_by(Case.id)
        .having(func.count(CountedLabel.annotator_id.distinct()) >= MIN_READERS)
        .order_by(Case.id.desc())
        .limit(practice_service.MOST_CANDIDATES)
    )
    if only is not None:
        statement = statement.where(Case.id == only)
    case_ids = list(session.execute(statement).scalars())
    before = set(first)
    ids = practice_service.drop_later_twins(session, sorted(case_ids, key=lambda case_id: case_id not in before))
    hidden = practice_service.never_revealed_cases(session, ids)
    return _by_class(session, order, [case_id for case_id in ids if case_id not in hidden])


def _by_class(session: Session, order: DerivedKey, case_ids: list[uuid.UUID]) -> dict[str, list[CellCandidate]]:
    ids = select(Case.id.label("case_id")).where(Case.id.in_(case_ids)).subquery()
    opinions = opinions_until(session, ids, time_of(session))
    of_cases = select(Case.id, Case.patient).where(Case.id.in_(case_ids))
    patients = {row.id: row.patient for row in session.execute(of_cases)}
    by_class: dict[str, list[CellCandidate]] = defaultdict(list)
    for case_id in case_ids:
        answers = opinions[case_id].opinions.values() if case_id in opinions else ()
        class_codes = [one.class_code for one in answers if not one.late]
        lot = order.digest(b"reference cell " + case_id.bytes)
        candidate = candidate_of(case_id, class_codes, patients[case_id], lot)
        if candidate is not None:
            by_class[candidate.class_code].append(candidate)
    return by_class


@dataclass(frozen=True)
class CellDecision:
    """A case with the decision that holds on it."""

    row: ReferenceCell
    case: Case

    @property
    def shown(self) -> bool:
        """Whether it may be shown."""
        return self.row.kind in SHOWN_KINDS

    def candidate(self) -> CellCandidate:
        """The cell as one that is kept."""
        row = self.row
        return CellCandidate(row.case_id, row.class_code, row.n_readers, row.n_same, self.case.patient, b"")


def cells_of(session: Session, codes: Iterable[str] | None = None) -> dict[str, list[CellDecision]]:
    """Every cell of some classes, all where left out, by class: pinned ones first, then those with most agreement."""
    place = func.row_number().over(
        partition_by=(ReferenceCell.class_code, ReferenceCell.case_id), order_by=ReferenceCell.number.desc()
    )
    ranked = select(ReferenceCell.id, place.label("place"))
    if codes is not None:
        ranked = ranked.where(ReferenceCell.class_code.in_(list(codes)))
    newest = ranked.subquery()
    statement = (
        select(ReferenceCell, Case)
        .join(newest, (newest.c.id == ReferenceCell.id) & (newest.c.place == 1))
        .join(Case, Case.id == ReferenceCell.case_id)
        .where(Case.erased_at.is_(None))
    )
    cells_by_class: dict[str, list[CellDecision]] = {}
    for row, case in session.execute(statement):
        cells_by_class.setdefault(row.class_code, []).append(CellDecision(row, case))
    for cells in cells_by_class.values():
        cells.sort(key=_cell_sort_key)
    return cells_by_class


def _cell_sort_key(cell: CellDecision) -> tuple[bool, float, bytes]:
    """Sort key: pinned cells first, then by the probability that the next reader agrees."""
    row = cell.row
    return row.kind != "pinned", -cell.candidate().worth, row.id.bytes


def shown_cells(cells: Sequence[CellDecision]) -> list[CellDecision]:
    """Those of a class that are shown."""
    return [cell for cell in cells if cell.shown][:N_CELLS]


def stands_for(session: Session, case_id: uuid.UUID) -> str | None:
    """The class for which a case, or a twin of it, was shown as a reference cell last; None where none ever was."""
    twins = select(CaseTwin.twin_id).where(CaseTwin.case_id == case_id)
    about = or_(ReferenceCell.case_id == case_id, ReferenceCell.case_id.in_(twins))
    newest = select(ReferenceCell.class_code).where(about, ReferenceCell.kind.in_(SHOWN_KINDS))
    return session.execute(newest.order_by(ReferenceCell.created_at.desc()).limit(1)).scalar_one_or_none()


def shown_case(session: Session, cell_id: uuid.UUID) -> Case:
    """The case of a cell that is shown now."""
    row = session.get(ReferenceCell, cell_id)
    class_cells = [] if row is None else cells_of(session, [row.class_code]).get(row.class_code, [])
    if row is None or row.case_id not in {cell.row.case_id for cell in shown_cells(class_cells)}:
        raise NotFound("there is no such reference cell")
    return session.get_one(Case, row.case_id)
