"""Database access of predictions."""

from typing import Any

from sqlalchemy import case, select

from app.database.tables import Alias, CasePrediction


def shown_first() -> list[Any]:
    """Order of a case's predictions in which the one that is shown, the champion's or else the newest, comes first."""
    served = select(Alias.release_id).where(Alias.name == "champion").scalar_subquery()
    return [case((CasePrediction.release_id == served, 0), else_=1), CasePrediction.id.desc()]
