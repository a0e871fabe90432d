"""Label rows: storing them, showing them, and their audit details."""

import uuid
from typing import TypedDict

from sqlalchemy.orm import Session

from app.audit.chain import events
from app.cases.service import NamedLabel
from app.context import ServiceContext
from app.database.tables import Annotator, Case, Label, Remark, Repeat
from app.http.principal import Principal
from app.labels.schemas import LabelOut, OwnLabelIn


class LabelDetails(TypedDict):
    """Details of an event about a label."""

    case: str
    annotator: str
    label: str | None
    blind: bool
    round: str
    late: bool


def label_details(label: Label) -> LabelDetails:
    """Return the audit details of a label."""
    return {
        "case": str(label.case_id),
        "annotator": str(label.annotator_id),
        "label": label.class_code,
        "blind": label.blind,
        "round": label.round,
        "late": label.late,
    }


def head_of_chain(history: list[NamedLabel], annotator: Annotator) -> Label | None:
    """The newest label of an annotator's chain."""
    chain = [row.label for row in history if row.label.annotator_id == annotator.id]
    return max(chain, key=lambda label: label.position, default=None)


class ChainPosition(TypedDict):
    """Columns of a label that say where it stands."""

    case_id: uuid.UUID
    annotator_id: uuid.UUID
    purpose: str
    kind: str
    supersedes_id: uuid.UUID | None
    position: int


def next_chain_position(
    case: Case, annotator: Annotator, before: Label | None, kind: str = "revision", purpose: str = "read"
) -> ChainPosition:
    """Columns of a label that say where it stands: at the end of a chain of its annotator's, or at the beginning."""
    return {
        "case_id": case.id,
        "annotator_id": annotator.id,
        "purpose": purpose if before is None else before.purpose,
        "kind": "label" if before is None else kind,
        "supersedes_id": None if before is None else before.id,
        "position": 0 if before is None else before.position + 1,
    }


def store_label(
    session: Session, place: ChainPosition, body: OwnLabelIn | None, reason: str | None = None, **columns: object
) -> Label:
    """Store a row of labels, and what was written about it."""
    values = {"class_code": None} if body is None else body.columns()
    note = None if body is None else body.note
    label = Label(**values, **place, **columns, remark=Remark.of(note, reason))
    session.add(label)
    session.flush()
    return label


def label_out(row: NamedLabel, repeat: Repeat | None = None) -> LabelOut:
    """A label as the API shows it; one that answers a repeat names the case as its annotator knows it then."""
    label = row.label
    return LabelOut(
        id=str(label.id),
        case_id=str(label.case_id if repeat is None else repeat.named),
        annotator=row.annotator,
        label=label.class_code,
        confidence=label.confidence,
        second_choice=label.second_choice,
        flagged=label.flagged,
        note=label.note,
        blind=label.blind,
        round=label.round,
        late=label.late,
        kind=label.kind,
        supersedes=None if label.supersedes_id is None else str(label.supersedes_id),
        post_reveal=label.post_reveal,
        reason=label.reason,
        reading_seconds=label.reading_seconds,
        created_at=label.created_at,
    )


def record_label_event(
    session: Session, context: ServiceContext, principal: Principal, label: Label, verb: str
) -> None:
    """Append a label to the audit chain."""
    what = "label" if label.purpose == "read" else "repeat"
    events.record_event(
        session,
        context.keys.audit,
        actor=principal.name,
        action=f"{what}.{verb}",
        object_id=label.id,
        details={**label_details(label)},
        # a repeat changes nothing of its case: remembered answers are found by it when a patient is erased
        cases=[label.case_id],
    )
