"""Which cases are not independent of each other: those of one patient, and those with the same pixels."""

import uuid


def cluster_name(case_id: uuid.UUID, patient: str | None, first_id: uuid.UUID | None, first_patient: str | None) -> str:
    """Name of a case's cluster: its patient, else that of the first case with the same pixels, else that case.

    Args:
        case_id: of the case.
        patient: of the case.
        first_id: the first case with the same pixels, None where the case is that.
        first_patient: its patient.
    """
    named = first_patient if patient is None else patient
    return f"case:{first_id or case_id}" if named is None else f"patient:{named}"
