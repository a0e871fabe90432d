"""The size of a pixel, where whoever sent the image said it: ``mpp`` among the metadata of its case."""

import math
import uuid

from sqlalchemy.orm import Session

from app.database.tables import Case, Repeat


def microns_per_pixel(metadata: dict[str, str]) -> float | None:
    """µm per pixel of a stored image by the metadata of its case; None where nobody said, or no length was said."""
    try:
        size = float(metadata.get("mpp", "").replace(",", "."))
    except ValueError:
        return None
    return size if math.isfinite(size) and size > 0 else None


def microns_per_pixel_of(session: Session, named: uuid.UUID) -> float | None:
    """µm per pixel of the image that a handle stands for, which may be of a second visit."""
    repeat = session.get(Repeat, named)
    case = session.get(Case, named if repeat is None else repeat.case_id)
    return None if case is None else microns_per_pixel(case.case_metadata)
