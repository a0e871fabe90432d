"""Answers to annotators name cases by handles."""

import uuid

from app.cases.handles import case_handle
from app.platform.principal import Principal
from app.reads.schemas import LabelOut, LabelsOut, ReadOut, SubmittedOut


def read_for(secret: bytes, principal: Principal, read: ReadOut) -> ReadOut:
    """A read as its caller gets it."""
    handle = case_handle(secret, principal, uuid.UUID(read.case_id))
    return read.model_copy(update={"case_id": str(handle), "image": f"/v1/cases/{handle}/image"})


def label_for(secret: bytes, principal: Principal, label: LabelOut) -> LabelOut:
    """A label as a caller gets it."""
    return label.model_copy(update={"case_id": str(case_handle(secret, principal, uuid.UUID(label.case_id)))})


def labels_for(secret: bytes, principal: Principal, labels: LabelsOut) -> LabelsOut:
    """Labels as a caller gets them."""
    return LabelsOut(items=[label_for(secret, principal, label) for label in labels.items])


def submitted_for(secret: bytes, principal: Principal, answer: tuple[int, SubmittedOut]) -> tuple[int, SubmittedOut]:
    """Status and stored label as the caller who gave it gets them."""
    status, submitted = answer
    return status, submitted.model_copy(update={"label": label_for(secret, principal, submitted.label)})
