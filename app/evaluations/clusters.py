"""Which cases are not independent of each other: those of one patient, and those with the same pixels."""

import uuid

from app.audit.chain.keys import DerivedKey

# of 256: a fifth
_KEPT = 51


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


def kept_for_sets(key: DerivedKey, cluster: str) -> bool:
    """Whether a cluster of the calibration partition calibrates answer sets, and so no fit: a fifth of them, for ever.

    Args:
        key: of the installation, for answer sets.
        cluster: its name.
    """
    return key.digest(cluster.encode())[0] < _KEPT
