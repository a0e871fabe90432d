"""Answers to annotators: cases named by handles, and nothing of why a read was asked for while a case is hidden."""

import uuid

from app.audit.chain.keys import ReaderKeys
from app.cases.opaque_ids import case_handle
from app.http.principal import Principal
from app.reads.schemas import LabelOut, LabelsOut, ReadOut, SubmittedOut


def read_for(keys: ReaderKeys, principal: Principal, read: ReadOut) -> ReadOut:
    """A read as its caller gets it."""
    handle = case_handle(keys, principal, uuid.UUID(read.case_id))
    field = None if read.field is None else f"/v1/cases/{handle}/field"
    return read.model_copy(update={"case_id": str(handle), "image": f"/v1/cases/{handle}/image", "field": field})


def label_for(keys: ReaderKeys, principal: Principal, label: LabelOut) -> LabelOut:
    """A label as a caller gets it."""
    return label.model_copy(update={"case_id": str(case_handle(keys, principal, uuid.UUID(label.case_id)))})


def labels_for(keys: ReaderKeys, principal: Principal, labels: LabelsOut) -> LabelsOut:
    """Labels as a caller gets them."""
    return LabelsOut(items=[label_for(keys, principal, label) for label in labels.items])


def submitted_for(keys: ReaderKeys, principal: Principal, answer: tuple[int, SubmittedOut]) -> tuple[int, SubmittedOut]:
    """Status and stored label as the caller who gave it gets them."""
    status, submitted = answer
    label = label_for(keys, principal, submitted.label)
    if principal.blind and submitted.hidden_because is not None:
        label = label.model_copy(update={"round": None})
    return status, submitted.model_copy(update={"label": label})
