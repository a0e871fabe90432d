"""Import from the command line: run the same job in this process."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.database.tables import Account, ImportRow
from app.http.principal import Principal
from app.imports.archive_storage import ReceivedArchive, remove_unclaimed, store_in_bucket
from app.imports.dry_run import CheckReport, FailedRow, check_archive
from app.imports.import_job import LABEL_SCOPE, ImportResult, begin_import
from app.imports.label_import import LabelCounts
from app.imports.receiving import receive_archive
from app.imports.zip_contents import open_archive, pack_folder
from app.jobs.inline import run_inline
from app.jobs.service import JobFunction, JobView

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
        "labels": LabelCounts,
        "failures": list[FailedRow],
    },
)


def import_local(
    context: ServiceContext,
    kinds: Mapping[str, JobFunction],
    source: Path,
    account: str,
    say: Callable[[str], None],
    part: tuple[int, int] | None = None,
    *,
    class_folders: bool = False,
) -> ImportReport:
    """Import a folder or a zip."""
    with context.database.read() as session:
        importer = session.execute(select(Account).where(Account.name == account)).scalar_one_or_none()
    if importer is None:
        raise ValueError(f"there is no account {account!r}; name one with --account")
    principal = Principal(importer.id, importer.name, importer.role, frozenset({"cases:write", LABEL_SCOPE}))
    with _receive_source(context, source, say) as archive:

        def ask(session: Session) -> JobView:
            return begin_import(session, context, principal, archive, part, class_folders=class_folders)

        try:
            store_in_bucket(context.bucket, archive)
            job, result = run_inline(
                context,
                ask,
                kinds,
                f"importing {_describe(archive)}" if part is None else f"importing part {part[0]} of {part[1]}",
            )
        finally:
            remove_unclaimed(context.bucket, archive)
    counts = cast(ImportResult, result)
    return {"import": str(job.id), **counts, "failures": _list_failures(context, job)}


def check_local(
    context: ServiceContext, source: Path, say: Callable[[str], None], *, class_folders: bool = False
) -> CheckReport:
    """Report what importing a folder or a zip would do; nothing is stored."""
    with _receive_source(context, source, say) as received, open_archive(received.path) as archive:
        say(f"checking {_describe(received)}")
        return check_archive(context, archive, SHOWN_FAILURES, class_folders=class_folders)


def _describe(archive: ReceivedArchive) -> str:
    return f"{archive.n_rows:,} cases{' and labels' if archive.has_labels else ''}"


@contextmanager
def _receive_source(context: ServiceContext, source: Path, say: Callable[[str], None]) -> Iterator[ReceivedArchive]:
    if not source.exists():
        raise ValueError(f"{source}: no such file or folder")
    settings = context.settings
    with receive_archive(settings.home, settings.min_free_bytes, limit=None, name=source.name) as receiver:
        if source.is_dir():
            say(f"packing {source}")
            pack_folder(source, receiver)
        else:
            with source.open("rb") as stream:
                shutil.copyfileobj(stream, receiver, _COPY_BYTES)
        yield receiver.finish()


def _list_failures(context: ServiceContext, job: JobView) -> list[FailedRow]:
    with context.database.read() as session:
        statement = select(ImportRow).where(ImportRow.job_id == job.id, ImportRow.detail != "")
        first = statement.order_by(ImportRow.status != "failed", ImportRow.row)
        rows = session.execute(first.limit(SHOWN_FAILURES)).scalars()
        return [{"row": r.row, "external_id": r.external_id, "detail": r.detail, "place": r.place} for r in rows]
