"""Response models of the import routes."""

from typing import Literal

from app.http.models import ResponseModel, Sentence
from app.jobs.service import JobOut

#: Which rows are asked for: by their result, or known ones that say something else than their case.
Status = Literal["created", "known", "failed", "ignored", "differs"]


class ImportRowOut(ResponseModel):
    """Result of one row: ``created``, ``known`` (the same case was there) or ``failed`` with the reason.

    A known case that the row gives another patient, site or metadata stays as it is, and ``detail`` says so. Files that
    no row is about come last, ``ignored`` with the reason; ``external_id`` is then the file's name.
    """

    row: int
    external_id: str
    status: str
    case_id: str | None
    detail: Sentence


class ImportOut(ResponseModel):
    """An import: its job, counts, and a page of rows."""

    job: JobOut
    counts: dict[str, int]
    rows: list[ImportRowOut]
    next_cursor: str | None
