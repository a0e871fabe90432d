"""Importing from the command line: the same job, done in this process."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.context import Context
from app.database.tables import Account, ImportRow
from app.http.principal import Principal
from app.imports.archive_storage import ReceivedArchive, put_into, take_back
from app.imports.dry_run import CheckReport, FailedRow, check_archive
from app.imports.import_job import ImportResult, begin_import
from app.imports.receiving import receiving
from app.imports.zip_contents import open_archive, pack_folder
from app.jobs.handle import JobFunction
from app.jobs.inline import do_here
from app.jobs.queries import JobView

SHOWN_FAILURES = 20
_COPY_BYTES = 1 << 20


#: What ``secondread import --json`` prints: the job, rows by what became of them, and the first that failed, differ
#: from what is stored, or are files that were ignored.
ImportReport = TypedDict(
    "ImportReport",
    {
        "import": str,
        "n_rows": int,
        "created": int,
        "known": int,
        "failed": int,
        "ignored": int,
        "differs": int,
        "failures": list[FailedRow],
    },
)


def import_local(
    context: Context,
    kinds: Mapping[str, JobFunction],
    source: Path,
    account: str,
    say: Callable[[str], None],
    part: tuple[int, int] | None = None,
) -> ImportReport:
    """Import a folder or a zip.

    Args:
        context: parts of the service.
        kinds: what each kind of job does.
        source: folder or zip, with or without a manifest.
        account: who stores the cases.
        say: where to report what is being done.
        part: which part of how many; other processes import the others, at any time. None for all rows.

    Returns:
        Counts, and the first failed rows.

    Raises:
        ValueError: no such source or account, or an archive that cannot be imported at all.
    """
    with context.database.read() as session:
        importer = session.execute(select(Account).where(Account.name == account)).scalar_one_or_none()
    if importer is None:
        raise ValueError(f"there is no account {account!r}; name one with --account")
    principal = Principal(importer.id, importer.name, importer.role, frozenset({"cases:write"}))
    with _received(context, source, say) as archive:

        def ask(session: Session) -> JobView:
            return begin_import(session, context, principal, archive, part)

        try:
            put_into(context.bucket, archive)
            job, result = do_here(context, ask, kinds, _title(archive.n_rows, part))
        finally:
            take_back(context.bucket, archive)
    counts = cast(ImportResult, result)
    return {"import": str(job.id), **counts, "failures": _failures(context, job)}


def check_local(context: Context, source: Path, say: Callable[[str], None]) -> CheckReport:
    """What importing a folder or a zip would do; nothing is stored.

    Args:
        context: parts of the service.
        source: folder or zip, with or without a manifest.
        say: where to report what is being done.

    Raises:
        ValueError: no such source, or an archive that cannot be imported at all.
    """
    with _received(context, source, say) as received, open_archive(received.path) as archive:
        say(f"checking {received.n_rows:,} cases")
        return check_archive(context, archive, SHOWN_FAILURES)


def _title(n_rows: int, part: tuple[int, int] | None) -> str:
    return f"importing {n_rows:,} cases" if part is None else f"importing part {part[0]} of {part[1]}"


@contextmanager
def _received(context: Context, source: Path, say: Callable[[str], None]) -> Iterator[ReceivedArchive]:
    """A folder or a zip as an archive in HOME/imports.

    Raises:
        ValueError: there is no such source, or it cannot be imported at all.
    """
    if not source.exists():
        raise ValueError(f"{source}: no such file or folder")
    settings = context.settings
    with receiving(settings.home, settings.min_free_bytes, limit=None, name=source.name) as receiver:
        if source.is_dir():
            say(f"packing {source}")
            pack_folder(source, receiver)
        else:
            with source.open("rb") as stream:
                shutil.copyfileobj(stream, receiver, _COPY_BYTES)
        yield receiver.finish()


def _failures(context: Context, job: JobView) -> list[FailedRow]:
    """The first rows of which something is to be told, those that failed first."""
    with context.database.read() as session:
        told = select(ImportRow).where(ImportRow.job_id == job.id, ImportRow.detail != "")
        first = told.order_by(ImportRow.status != "failed", ImportRow.row)
        rows = session.execute(first.limit(SHOWN_FAILURES)).scalars()
        return [{"row": r.row, "external_id": r.external_id, "detail": r.detail} for r in rows]
