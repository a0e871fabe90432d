"""Response models of the import routes."""

from typing import Literal

from app.database.tables.values import RowStatus
from app.http.models import ResponseModel, Sentence
from app.jobs.service import JobOut

#: Which rows are asked for: by their result, or known ones that say something else than their case.
Status = Literal[RowStatus, "differs"]


class ImportRowOut(ResponseModel):
    """Result of one row; a known cell is never changed by an import."""

    row: int
    external_id: str
    status: RowStatus
    case_id: str | None
    detail: Sentence
    place: Sentence | None = None


class ImportOut(ResponseModel):
    """An import: its job, counts, and a page of rows."""

    job: JobOut
    counts: dict[str, int]
    labels: dict[str, int]
    rows: list[ImportRowOut]
    next_cursor: str | None
