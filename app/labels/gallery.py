"""Labels and outcomes of cells in the gallery, where predictions are visible: never blind, many at once, taken back."""

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account, read_own_annotator
from app.cases.service import read_outcomes
from app.context import ServiceContext
from app.database.tables import Annotator, Case, CountedLabel, Label, time_of
from app.http.errors import NotFound
from app.http.models import ResponseModel
from app.http.principal import Principal
from app.labels.leases import LabelSuperseded
from app.labels.schemas import OwnLabelIn
from app.labels.submission import next_chain_position, record_label_event, require_classes, store_label
from app.outcomes import service as outcome_service
from app.releases.service import reading_classes

_GIVEN, _TAKEN_BACK = "given in the gallery", "taken back in the gallery"


class GalleryChangeOut(ResponseModel):
    """What became of cells that were labelled together: how many, and the first label, None if nothing changed."""

    n: int
    first: str | None


def label_in_gallery(
    session: Session, context: ServiceContext, principal: Principal, case_ids: Collection[uuid.UUID], code: str
) -> GalleryChangeOut:
    """Give cells a class under the caller's name, as their outcome; those that have both already stay as they are."""
    # No conclusion is drawn: a label that is not blind enters no posterior, and answers no request.
    body = OwnLabelIn(label=code)
    require_classes([info.code for info in reading_classes(session)], body)
    annotator = read_own_annotator(session, principal)
    chains = _lock_chains(session, annotator, case_ids)
    settled = {case_id: row.outcome.class_code for case_id, row in read_outcomes(session, case_ids).items()}
    given = {case for case, chain in chains.items() if chain and not chain[-1].blind and chain[-1].class_code == code}
    changed = {
        case: (chain, code) for case, chain in chains.items() if case not in given or settled.get(case.id) != code
    }
    at, keys = time_of(session), context.keys.audit
    outcome_service.settle_in_gallery(session, keys, principal, changed, code, _GIVEN, at)
    return _store(session, context, principal, annotator, changed, at)


def undo_in_gallery(
    session: Session, context: ServiceContext, principal: Principal, first_id: uuid.UUID
) -> GalleryChangeOut:
    """Take back what the caller gave together with a label: each cell has again its label and outcome of before."""
    # By a retraction where they had not labelled it, else by the class of before: a retraction would take a blind
    # label of theirs away too.
    annotator = annotator_of_account(session, principal.account_id)
    first = session.execute(select(CountedLabel).where(CountedLabel.id == first_id)).scalar_one_or_none()
    if annotator is None or first is None or first.annotator_id != annotator.id or first.blind:
        raise NotFound("there is no such label")
    mine = (CountedLabel.annotator_id == annotator.id, CountedLabel.blind.is_(False))
    together = select(CountedLabel.case_id, CountedLabel.id).where(*mine, CountedLabel.created_at == first.created_at)
    given = {row.case_id: row.id for row in session.execute(together)}
    chains = _lock_chains(session, annotator, given)
    before: dict[Case, tuple[list[Label], str | None]] = {
        case: (chain, chain[-2].class_code if len(chain) > 1 else None)
        for case, chain in chains.items()
        if chain[-1].id == given[case.id]
    }
    if not before:
        raise LabelSuperseded("these labels have been changed since; give the cells another class")
    keys = context.keys.audit
    outcome_service.undo_in_gallery(session, keys, principal, before, _TAKEN_BACK, first.created_at)
    return _store(session, context, principal, annotator, before, time_of(session))


def _lock_chains(session: Session, annotator: Annotator, case_ids: Collection[uuid.UUID]) -> dict[Case, list[Label]]:
    """Cases, locked in their order, with the labels that an annotator gave to each."""
    cases = {case.id: case for case in outcome_service.lock_cells(session, case_ids)}
    if len(cases) < len(set(case_ids)):
        raise NotFound("there is no such cell")
    chains: dict[Case, list[Label]] = {case: [] for case in cases.values()}
    own = (CountedLabel.annotator_id == annotator.id, CountedLabel.case_id.in_(cases))
    for label in session.execute(select(CountedLabel).where(*own).order_by(CountedLabel.position)).scalars():
        chains[cases[label.case_id]].append(label)
    return chains


def _store(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    annotator: Annotator,
    classes: Mapping[Case, tuple[list[Label], str | None]],
    at: datetime,
) -> GalleryChangeOut:
    """Continue chains by a class, or a retraction for None, all at the same moment: by it they are found again."""
    first = None
    for case, (chain, code) in classes.items():
        before = chain[-1] if chain else None
        label = store_label(
            session,
            next_chain_position(case, annotator, before, "retraction" if code is None else "revision"),
            None if code is None else OwnLabelIn(label=code),
            None if before is None else _TAKEN_BACK if code is None else _GIVEN,
            created_at=at,
            blind=False,
            post_reveal=True,
            round="planned" if before is None else before.round,
            late=before is not None and before.late,
            created_by=principal.account_id,
        )
        verb = "add" if before is None else "retract" if code is None else "revise"
        record_label_event(session, context, principal, label, verb)
        first = first or label
    return GalleryChangeOut(n=len(classes), first=None if first is None else str(first.id))
