"""What the routes of imports answer."""

from app.jobs.schemas import JobOut
from app.platform.values import Out


class ImportRowOut(Out):
    """What became of one row: ``created``, ``known`` (the same case was there) or ``failed`` with the reason."""

    row: int
    external_id: str
    status: str
    case_id: str | None
    detail: str


class ImportOut(Out):
    """An import: its job, counts, and a page of rows."""

    job: JobOut
    counts: dict[str, int]
    rows: list[ImportRowOut]
    next_cursor: str | None
