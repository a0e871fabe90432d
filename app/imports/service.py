"""Face of the imports: dry runs, archives and import jobs."""

from app.imports.archive_storage import ReceivedArchive, open_job_archive
from app.imports.dry_run import begin_check, can_be_imported, check_of, import_checked, import_of, same_image_as
from app.imports.import_job import CHECK, begin_import, delete_archives
from app.imports.presenters import page_of_rows, show_import
from app.imports.receiving import receive_body
from app.imports.schemas import ImportRowOut, Status
from app.imports.zip_contents import MAX_ENTRIES, MAX_ROWS, ArchiveError

__all__ = [
    "CHECK",
    "MAX_ENTRIES",
    "MAX_ROWS",
    "ArchiveError",
    "ImportRowOut",
    "ReceivedArchive",
    "Status",
    "begin_check",
    "begin_import",
    "can_be_imported",
    "check_of",
    "delete_archives",
    "import_checked",
    "import_of",
    "open_job_archive",
    "page_of_rows",
    "receive_body",
    "same_image_as",
    "show_import",
]
