"""Database access of releases."""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.tables import Alias, ReleaseRow


def champion(session: Session) -> Alias | None:
    """Alias row of the release that is served."""
    return session.get(Alias, "champion")


def release_by_id(session: Session, release_id: uuid.UUID) -> ReleaseRow | None:
    """Release row."""
    return session.get(ReleaseRow, release_id)


def all_releases(session: Session) -> list[ReleaseRow]:
    """Every release, newest first."""
    return list(session.execute(select(ReleaseRow).order_by(ReleaseRow.id.desc())).scalars())


def aliases(session: Session) -> list[Alias]:
    """Every alias."""
    return list(session.execute(select(Alias).order_by(Alias.name)).scalars())
