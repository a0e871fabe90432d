"""A database with workers on it, and imports for them to do, without a server."""

import io
import uuid
import zipfile
from collections import Counter
from pathlib import Path
from typing import Self

from sqlalchemy import func, select

from app.context import build_context
from app.database.tables import Account, Case, ImportRow, Job, new_id
from app.http.principal import Principal
from app.imports.archive_storage import ReceivedArchive
from app.imports.import_job import begin_import
from app.jobs.queries import JobView, job_by_id
from app.jobs.service import count_living_workers
from app.settings import Settings
from tests.faults.rounds import Rounds
from tests.support.forked import ForkedCommand
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import wait_until

# what makes a worker kill itself at a point of its work
_DOOMED = """
import os, signal
from sqlalchemy import event
from sqlalchemy.orm import Session
from app.jobs.handle import RunningJob
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
point = {point!r}
write = RunningJob.write.__wrapped__
if point == "before the outcome is recorded":
    RunningJob.end = die
else:
    def count(session):
        if session.info.get("job"): die()
    event.listen(Session, "before_commit" if point == "before a commit" else "after_commit", count)
    from contextlib import contextmanager
    seen = []
    @contextmanager
    def marked(job):
        with contextmanager(write)(job) as session:
            seen.append(1)
            session.info["job"] = len(seen) == 2
            yield session
    RunningJob.write = marked
"""

_TICKING = """
import os
from app.job_table import SCHEDULES
from app.jobs.executor import JobSchedule
def tick(_):
    with open({path!r}, "a") as ticks:
        print(os.getpid(), file=ticks)
SCHEDULES.clear()
SCHEDULES["tidying"] = JobSchedule("* * * * * *", tick)
"""

_STUCK = """
import time
from app.job_table import FUNCTIONS
FUNCTIONS["import"] = lambda job: time.sleep(600)
"""


def packed_cells(first: int, n: int) -> bytes:
    """An archive of n different cells, no two of one patient."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        rows = ["file,external_id,patient"]
        for number in range(first, first + n):
            archive.writestr(f"{number}.png", cell_png(number))
            rows.append(f"{number}.png,case {number},p{number}")
        archive.writestr("manifest.csv", "\n".join(rows))
    return buffer.getvalue()


class Workplace:
    """An installation without a server; as a context manager it ends its workers."""

    def __init__(self, folder: Path, url: str | None, release: Path) -> None:
        self.made = Installation(folder / "home", url)
        self.made.prepare(release, lead="admin")
        self.context = build_context(Settings(home=self.made.home, database_url=url))
        with self.context.database.read() as session:
            account = session.execute(select(Account).where(Account.name == "lead")).scalar_one()
        self.principal = Principal(account.id, account.name, account.role, frozenset({"cases:write"}))
        self._cells = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.made.close()
        self.context.database.engine.dispose()

    def ask_import(self, n: int) -> uuid.UUID:
        """Ask for the import of n cells that are not here yet."""
        folder = self.made.home / "imports"
        folder.mkdir(exist_ok=True)
        path = folder / f".{uuid.uuid4().hex}.part"
        path.write_bytes(packed_cells(self._cells, n))
        self._cells += n
        with self.context.database.write() as session:
            archive = ReceivedArchive(path, "0" * 64, n, new_id())
            return begin_import(session, self.context, self.principal, archive).id

    def worker(self, name: str = "worker") -> ForkedCommand:
        """Start a worker whose connections to PostgreSQL have a name."""
        self.made.environment["PGAPPNAME"] = name
        return self.made.spawn("worker")

    def doomed_worker(self, point: str) -> ForkedCommand:
        """Start a worker that kills itself at a point of its work."""
        return self.made.spawn("worker", code=_DOOMED.format(point=point))

    def stuck_worker(self) -> ForkedCommand:
        """Start a worker whose imports never reach their next batch."""
        return self.made.spawn("worker", code=_STUCK)

    def ticking_worker(self) -> ForkedCommand:
        """Start a worker whose only schedule fires every second and writes down who did it."""
        return self.made.spawn("worker", code=_TICKING.format(path=str(self.ticks)))

    @property
    def ticks(self) -> Path:
        """File with a line per time that the schedule of ticking workers fired: the process that did its work."""
        return self.made.home.parent / "ticks"

    def job(self, job_id: uuid.UUID) -> JobView:
        with self.context.database.read() as session:
            return job_by_id(session, job_id)

    def wait_for_progress(self, job_id: uuid.UUID, share: float) -> None:
        """Wait until a job is so far, and not at its end."""
        wait_until(lambda: self.job(job_id).progress >= share, 120, lambda: f"{self.job(job_id)}\n{self.made.log}")
        assert self.job(job_id).state == "running"

    def wait_for_success(self, job_id: uuid.UUID, seconds: float = 120) -> None:

        def ended() -> bool:
            job = self.job(job_id)
            assert job.state not in {"failed", "cancelled"}, f"{job.error}\n{self.made.log}"
            return job.state == "succeeded"

        wait_until(ended, seconds, lambda: f"{self.job(job_id)}\n{self.made.log}")

    def living(self) -> int:
        with self.context.database.read() as session:
            return count_living_workers(session)

    def executors(self) -> set[str]:
        with self.context.database.read() as session:
            doing = select(Job.executor_id).where(Job.state == "running", Job.kind == "import")
            return {str(executor_id) for executor_id in session.execute(doing).scalars()}

    def note(self, fault: str, what: str, rounds: int, rows: int, recovery_seconds: float | None = None) -> None:
        """Note what rounds of a fault came to, by the cases that are there."""
        with self.context.database.read() as session:
            names = Counter(session.execute(select(Case.external_id)).scalars())
        lost, twice = len({f"case {number}" for number in range(rows)} - names.keys()), names.total() - len(names)
        dialect = self.context.database.engine.dialect.name
        Rounds(fault, what, dialect, rounds, rows, lost, twice, 0, recovery_seconds).note()

    def assert_each_row_once(self, *jobs: tuple[uuid.UUID, int]) -> None:
        """Every row of these imports, each with its number of cells, became one case."""
        with self.context.database.read() as session:
            counted = select(ImportRow.job_id, ImportRow.status, func.count())
            rows = session.execute(counted.group_by(ImportRow.job_id, ImportRow.status))
            assert {(row[0], row[1]): row[2] for row in rows} == {(job_id, "created"): n for job_id, n in jobs}
            names = Counter(session.execute(select(Case.external_id)).scalars())
        assert names == Counter(f"case {number}" for number in range(sum(n for _, n in jobs)))
        for job_id, n in jobs:
            rows = {"created": n, "known": 0, "failed": 0, "ignored": 0, "differs": 0}
            assert self.job(job_id).result == {"n_rows": n} | rows
