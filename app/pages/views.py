"""What the pages show, gathered from the domains."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.auth.principal import Principal
from app.blindness import has_committed
from app.cases import queries
from app.cases import service as cases
from app.cases.schemas import CaseOut, WorkOut
from app.cases.showing import show_case
from app.pages.charts import Bars, posterior_bars
from app.reads.leases import list_leases
from app.reads.posterior import posterior
from app.reads.queries import count_waiting
from app.reads.schemas import LabelOut
from app.reads.service import label_out
from app.releases.queries import reading_classes
from app.schemas import ClassOut, PosteriorOut
from app.tables import Annotator, Case, Label

#: Cases shown on one page.
WORKLIST_LENGTH = 120


@dataclass(frozen=True)
class BlindItem:
    """A case as an annotator sees it in the list: nothing but its number."""

    case_id: uuid.UUID
    number: str
    read: bool


def case_number(case_id: uuid.UUID) -> str:
    """Short number of a case that says nothing about its content, unlike a file name."""
    return case_id.hex[-6:].upper()


@dataclass(frozen=True)
class BlindWorklist:
    """What an annotator holds, has read, and how much waits."""

    items: list[BlindItem]
    n_read: int
    n_waiting: int


def _own_labels(principal: Principal) -> Select[uuid.UUID]:
    return (
        select(Label.case_id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Annotator.account_id == principal.account_id)
        .distinct()
    )


def blind_worklist(session: Session, principal: Principal) -> BlindWorklist:
    """Cases that this annotator holds, then those it has read, newest first; of the others only how many wait."""
    own = _own_labels(principal)
    held = [uuid.UUID(read.case_id) for read in list_leases(session, principal)]
    read = session.execute(select(Case.id).where(Case.id.in_(own)).order_by(Case.id.desc()).limit(WORKLIST_LENGTH))
    items = [BlindItem(case_id, case_number(case_id), False) for case_id in held]
    items += [BlindItem(case_id, case_number(case_id), True) for case_id in read.scalars()]
    n_read = session.execute(select(func.count()).select_from(own.subquery())).scalar_one()
    return BlindWorklist(items, n_read, count_waiting(session, principal))


def worklist(session: Session) -> list[WorkOut]:
    """Cases of which a read is wanted, those in most need first."""
    return cases.worklist(session, None, WORKLIST_LENGTH).items


@dataclass(frozen=True)
class CaseView:
    """A case in full."""

    case: CaseOut
    number: str
    names: dict[str, str]
    posterior: PosteriorOut | None
    bars: Bars | None
    labels: list[LabelOut]


def case_view(session: Session, case_id: uuid.UUID) -> CaseView:
    """Everything about a case; only for those who may see it.

    Raises:
        NotFound: no such case.
    """
    shown = show_case(session, case_id)
    known = {info.code: info.name for info in reading_classes(session)}
    if shown.prediction is None:
        return CaseView(shown, case_number(case_id), known, None, None, [])
    after = posterior(session, case_id)
    names = {code: known.get(code, code) for code in shown.prediction.classes}
    labels = [label_out(active) for active in queries.labels_of_case(session, case_id)]
    bars = posterior_bars(names, shown.prediction, after, after.label_counts)
    return CaseView(shown, case_number(case_id), names, after, bars, labels)


@dataclass(frozen=True)
class BlindCase:
    """A case to be read: its image and the classes, nothing else."""

    case_id: uuid.UUID
    number: str
    classes: list[ClassOut]
    form_key: str


def case_to_read(session: Session, principal: Principal, case_id: uuid.UUID) -> BlindCase | None:
    """The blind view of a case, None once this annotator has committed a label."""
    queries.case_by_id(session, case_id)
    if not principal.blind or has_committed(session, principal, case_id):
        return None
    return BlindCase(case_id, case_number(case_id), reading_classes(session), uuid.uuid4().hex)
