"""Demo accounts, their one-time passwords, progress and notice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.accounts import service as accounts
from app.context import ServiceContext
from app.database.tables import Account
from ml.util.files import read_json, write_json


class ProgressBar:
    """One task of a bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def update(self, done: int, total: int | None = None) -> None:
        """Update the number of steps done, and the total where it became known."""
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[ProgressBar]:
    """Show a progress bar with the remaining time during the block."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield ProgressBar(bar, bar.add_task(what, total=total))


#: Accounts of the demo and their roles.
PEOPLE = {"admin": "admin", "viewer": "viewer", **{f"annotator-{n}": "annotator" for n in (1, 2, 3)}}
#: Account that uploads.
ROBOT = "demo"

Say = Callable[[str], None]


def ensure_accounts(session: Session, context: ServiceContext) -> None:
    """Accounts of the demo, the uploading robot included, and an API key in HOME/demo/api_key."""
    present = set(session.execute(select(Account.name)).scalars())
    for name, role in {**PEOPLE, ROBOT: "service"}.items():
        if name not in present:
            accounts.add_account(session, context.keys.audit, name, role)
    path = context.settings.home / "demo" / "api_key"
    if not path.is_file():
        _, token = accounts.add_key(session, context.keys.audit, "admin", [])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(token + "\n")


def one_time_passwords(context: ServiceContext) -> dict[str, str | None]:
    """Issue one-time passwords to the demo's people; None for those who chose their own."""
    passwords: dict[str, str | None] = {}
    with context.database.write() as session:
        for account in session.execute(select(Account).where(Account.name.in_(PEOPLE))).scalars().all():
            chosen = account.password_hash is not None
            passwords[account.name] = (
                None if chosen else accounts.issue_one_time_password(session, context.keys.audit, account.name)
            )
    return {name: passwords[name] for name in PEOPLE}


#: What each account of the demo is for.
PURPOSES = {
    "admin": "leads: worklist, report, policy, releases",
    "viewer": "looks at all of it and changes nothing",
    "annotator-1": "reads cells",
    "annotator-2": "reads cells too, so that two can differ",
    "annotator-3": "reads the cells on which the two differ",
}


@dataclass(frozen=True)
class DemoNotice:
    """Contents of a demo's notice."""

    # real cells, whose sources must be named
    real: bool
    # accounts and what they are for
    people: tuple[tuple[str, str], ...] = tuple((name, PURPOSES[name]) for name in PEOPLE)


def _notice_path(home: Path) -> Path:
    return home / "demo" / "notice.json"


def write_notice(home: Path, *, real: bool) -> None:
    """Record in HOME that it is a demo, and of which kind."""
    _notice_path(home).parent.mkdir(parents=True, exist_ok=True)
    write_json(_notice_path(home), {"real": real})


def read_notice(home: Path) -> DemoNotice | None:
    """Read the notice of the demo in HOME; None where there is none."""
    path = _notice_path(home)
    return DemoNotice(bool(read_json(path)["real"])) if path.is_file() else None
