"""What an import would do: each row is read, decoded and compared as by the import itself, and nothing is stored."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from app.cases import queries
from app.cases.preparing import UploadDigests, look_at_case, refuse_other_image
from app.cases.schemas import CaseIn
from app.context import Context
from app.imports.archive import Archive, Row
from app.imports.work import RowCounts, differences, of_the_row
from app.platform.errors import Problem

_Status = Literal["created", "known", "failed"]


class FailedRow(TypedDict):
    """A row that became no case, says something else than its case, or a file that no row is about; and why."""

    row: int
    external_id: str
    detail: str


class CheckReport(RowCounts):
    """What would become of the rows; ``twins`` are created with the image of another case.

    ``failures`` has the first rows of which something is to be told, those that would fail first.
    """

    n_rows: int
    twins: int
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
        self._images: dict[str, str] = {}
        self.n_twins = 0

    def row(self, archive: Archive, row: Row) -> tuple[_Status, str]:
        """What would become of a row, and what is to be told of it.

        Raises:
            Problem: one that every row would have at this moment.
        """
        try:
            fields = row.case()
            files = archive.read(row), archive.read_field(row)
            return self._compared(fields, *look_at_case(self._context, fields, *files))
        except Problem as exc:
            if not of_the_row(exc):
                raise
            return "failed", exc.detail
        except ValueError as exc:
            return "failed", str(exc)

    def _compared(self, fields: CaseIn, sent: UploadDigests, stored_sha256: str) -> tuple[_Status, str]:
        with self._context.database.read() as session:
            case, twin = queries.known_case_and_first_image(session, fields.external_id, stored_sha256)
            known = self._rows.get(fields.external_id)
            if case is not None:
                said = case.patient, case.site, dict(case.case_metadata)
                known = _Known(case.image_sha256, case.field_sha256, *said)
            first = None if twin is None else twin.external_id
        refuse_other_image(known, sent)
        if known is not None:
            return "known", differences(fields, known.patient, known.site, known.metadata)
        first = first or self._images.get(stored_sha256)
        said = fields.patient, fields.site, dict(fields.metadata)
        self._rows[fields.external_id] = _Known(sent.image_sha256, sent.field_sha256, *said)
        self._images.setdefault(stored_sha256, fields.external_id)
        if first is None:
            return "created", ""
        self.n_twins += 1
        return "created", f"same image as {first}"


def check_archive(context: Context, archive: Archive, shown: int) -> CheckReport:
    """What importing an archive would do.

    Args:
        context: parts of the service.
        archive: opened.
        shown: of how many rows something is told at most.
    """
    check, counts, told = _Check(context), {"created": 0, "known": 0, "failed": 0}, []
    differs = 0
    for row in archive.rows:
        status, detail = check.row(archive, row)
        counts[status] += 1
        differs += status == "known" and detail != ""
        if detail:
            name = str(row.fields.get("external_id", ""))[:200].replace("\x00", "")
            told.append((status != "failed", FailedRow(row=row.number, external_id=name, detail=detail)))
    told += [
        (True, FailedRow(row=file.number, external_id=file.file[-200:].replace("\x00", ""), detail=file.why))
        for file in archive.ignored
    ]
    told.sort(key=lambda one: (one[0], one[1]["row"]))
    return {
        "n_rows": len(archive.rows),
        "created": counts["created"],
        "known": counts["known"],
        "failed": counts["failed"],
        "ignored": len(archive.ignored),
        "differs": differs,
        "twins": check.n_twins,
        "failures": [row for _, row in told[:shown]],
    }
