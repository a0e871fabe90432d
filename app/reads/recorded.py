"""What an audit event says of a label, for who writes the event and for who compares it with the row."""

from typing import TypedDict

from app.database.tables import Label


class LabelDetails(TypedDict):
    """Details of an event about a label."""

    case: str
    annotator: str
    label: str | None
    blind: bool
    round: str
    late: bool


def label_details(label: Label) -> LabelDetails:
    """What an event says of a label."""
    return {
        "case": str(label.case_id),
        "annotator": str(label.annotator_id),
        "label": label.class_code,
        "blind": label.blind,
        "round": label.round,
        "late": label.late,
    }
