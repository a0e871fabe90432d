"""Second reads by the value of a cell for its specimen."""

import uuid

from sqlalchemy.orm import Session

from app.context import ServiceContext


def plan_specimen(session: Session, context: ServiceContext, specimen_id: uuid.UUID) -> None:
    """Plan the second reads of a specimen from all of its cells so far."""
