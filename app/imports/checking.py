"""What an import would do: each row is read, decoded and compared as by the import itself, and nothing is stored."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypedDict

from app.cases import queries
from app.cases.ingest import UploadDigests, look_at_case, refuse_other_image
from app.cases.schemas import CaseIn
from app.context import Context
from app.http.errors import Problem
from app.imports.archive import Archive, Row
from app.imports.work import RowCounts, differences, named, of_the_row
from ml.messages import Message

_Status = Literal["created", "known", "failed"]


def same_image_as(external_id: str) -> str:
    """What is told of a row with the image of a case that is there; one of the same archive is told by its row."""
    return Message("same image as {external_id}", external_id=external_id)


class FailedRow(TypedDict):
    """A row that became no case, says something else than its case, or a file that no row is about; and why."""

    row: int
    external_id: str
    detail: str


class CheckCounts(RowCounts):
    """What would become of the rows; ``twins`` are created with the image of another case."""

    n_rows: int
    twins: int


class CheckReport(CheckCounts):
    """What would become of the rows, and the first of which something is to be told, those that would fail first."""

    failures: list[FailedRow]


@dataclass(frozen=True)
class _Known:
    """A case that is there, or would be by an earlier row."""

    image_sha256: str
    field_sha256: str | None
    patient: str | None
    site: str | None
    metadata: dict[str, str]


class _Check:
    """Goes through an archive and remembers what its rows would have stored."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rows: dict[str, _Known] = {}
        self._images: dict[str, int] = {}

    def row(self, archive: Archive, row: Row) -> tuple[_Status, str]:
        """What would become of a row, and what is to be told of it.

        Raises:
            Problem: one that every row would have at this moment.
        """
        try:
            fields = row.case()
            files = archive.read(row), archive.read_field(row)
            return self._compared(row.number, fields, *look_at_case(self._context, fields, *files))
        except Problem as exc:
            if not of_the_row(exc):
                raise
            return "failed", exc.detail
        except ValueError as exc:
            return "failed", str(exc)

    def _compared(self, number: int, fields: CaseIn, sent: UploadDigests, pixels_sha256: str) -> tuple[_Status, str]:
        with self._context.database.read() as session:
            case, twin = queries.known_case_and_first_image(session, fields.external_id, pixels_sha256)
            known = self._rows.get(fields.external_id)
            if case is not None:
                said = case.patient, case.site, dict(case.case_metadata)
                known = _Known(case.image_sha256, case.field_sha256, *said)
            first = "" if twin is None else same_image_as(twin.external_id)
        refuse_other_image(known, sent)
        if known is not None:
            return "known", differences(fields, known.patient, known.site, known.metadata)
        earlier = self._images.setdefault(pixels_sha256, number)
        said = fields.patient, fields.site, dict(fields.metadata)
        self._rows[fields.external_id] = _Known(sent.image_sha256, sent.field_sha256, *said)
        return "created", first or (
            "" if earlier == number else Message("same image as row {earlier}", earlier=earlier)
        )


@dataclass(frozen=True)
class CheckedRow:
    """What would become of a row, or of a file that no row is about, and what is to be told of it.

    Attributes:
        number: of the row.
        external_id: of the case; of a file its name.
        patient: as the row says.
        status: created, known, failed or ignored.
        detail: empty where there is nothing to tell.
    """

    number: int
    external_id: str
    patient: str | None
    status: Literal["created", "known", "failed", "ignored"]
    detail: str


def checked_rows(context: Context, archive: Archive) -> Iterator[CheckedRow]:
    """Every row of an archive in its order, then every file that no row is about."""
    check = _Check(context)
    for row in archive.rows:
        status, detail = check.row(archive, row)
        yield CheckedRow(row.number, *named(row), status, detail)
    for file in archive.ignored:
        yield CheckedRow(file.number, file.file[-200:].replace("\x00", ""), None, "ignored", file.why)


class Counting:
    """Counts what would become of rows, one by one."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, row: CheckedRow) -> None:
        """Count one more."""
        told = {"known": "differs", "created": "twins"}.get(row.status)
        self._counts.update([row.status, *([told] if told and row.detail else [])])

    def counts(self) -> CheckCounts:
        """So far."""
        n = self._counts
        return {
            "n_rows": n["created"] + n["known"] + n["failed"],
            "created": n["created"],
            "known": n["known"],
            "failed": n["failed"],
            "ignored": n["ignored"],
            "differs": n["differs"],
            "twins": n["twins"],
        }


def check_archive(context: Context, archive: Archive, shown: int) -> CheckReport:
    """What importing an archive would do.

    Args:
        context: parts of the service.
        archive: opened.
        shown: of how many rows something is told at most.
    """
    counting, told = Counting(), []
    for row in checked_rows(context, archive):
        counting.add(row)
        if row.detail:
            said = FailedRow(row=row.number, external_id=row.external_id, detail=row.detail)
            told.append((row.status != "failed", said))
    told.sort(key=lambda one: (one[0], one[1]["row"]))
    return {**counting.counts(), "failures": [row for _, row in told[:shown]]}
