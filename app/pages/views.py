"""What the pages show, gathered from the domains."""

import hashlib
import hmac
import uuid
from dataclasses import dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.auth.principal import Principal
from app.blindness import has_committed
from app.cases import queries
from app.cases import service as cases
from app.cases.schemas import CaseOut
from app.context import Context
from app.pages.charts import Bars, posterior_bars
from app.reads import service as reads
from app.reads.schemas import LabelOut
from app.releases.service import reading_classes
from app.schemas import ClassOut, PosteriorOut
from app.tables import Annotator, Case, Label

#: Cases shown on one page, and unread cases that are shuffled among themselves.
WORKLIST_LENGTH, BATCH = 120, 1000


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
    """What an annotator has to read and has read."""

    items: list[BlindItem]
    n_read: int
    n_cases: int


def _own_labels(principal: Principal) -> Select[uuid.UUID]:
    return (
        select(Label.case_id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Annotator.account_id == principal.account_id)
        .distinct()
    )


def unread_cases(session: Session, context: Context, principal: Principal) -> list[uuid.UUID]:
    """Cases still to be read, in an order of this annotator's own that neither need nor time of arrival decides.

    The oldest ``BATCH`` unread cases are shuffled among themselves, so that no case waits for ever.
    """
    own = _own_labels(principal)
    unread = session.execute(select(Case.id).where(Case.id.not_in(own)).order_by(Case.id).limit(BATCH)).scalars()

    def place(case_id: uuid.UUID) -> bytes:
        seed = b"order:" + principal.account_id.bytes + case_id.bytes
        return hmac.new(context.secret, seed, hashlib.sha256).digest()

    return sorted(unread, key=place)


def blind_worklist(session: Session, context: Context, principal: Principal) -> BlindWorklist:
    """The cases to read, then those this annotator has read, newest first."""
    own = _own_labels(principal)
    unread = unread_cases(session, context, principal)[:WORKLIST_LENGTH]
    room = max(WORKLIST_LENGTH - len(unread), 0)
    read = session.execute(select(Case.id).where(Case.id.in_(own)).order_by(Case.id.desc()).limit(room)).scalars()
    items = [BlindItem(case_id, case_number(case_id), False) for case_id in unread]
    items += [BlindItem(case_id, case_number(case_id), True) for case_id in read]
    n_read = session.execute(select(func.count()).select_from(own.subquery())).scalar_one()
    return BlindWorklist(items, n_read, session.execute(select(func.count()).select_from(Case)).scalar_one())


def worklist(session: Session, context: Context) -> list[CaseOut]:
    """Cases in most need of another annotator first."""
    rows = queries.page_of_cases(session, after=None, limit=WORKLIST_LENGTH, by_need=True)
    totals = queries.label_totals(session, [case.id for case, _ in rows])
    return [cases.case_out(session, context, case, one, totals.get(case.id, 0)) for case, one in rows]


@dataclass(frozen=True)
class CaseView:
    """A case in full."""

    case: CaseOut
    number: str
    names: dict[str, str]
    posterior: PosteriorOut
    bars: Bars
    labels: list[LabelOut]


def case_view(session: Session, context: Context, case_id: uuid.UUID) -> CaseView:
    """Everything about a case; only for those who may see it."""
    case = queries.case_by_id(session, case_id)
    shown = cases.case_out(session, context, case, queries.latest_prediction(session, case_id))
    after = reads.posterior(session, context, case_id)
    known = {info.code: info.name for info in reading_classes(session)}
    names = {code: known.get(code, code) for code in shown.prediction.classes}
    labels = [reads.label_out(active) for active in queries.labels_of_case(session, case_id)]
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


def next_unread(session: Session, context: Context, principal: Principal) -> uuid.UUID | None:
    """The next case in this annotator's order that it has not read."""
    return next(iter(unread_cases(session, context, principal)), None)
