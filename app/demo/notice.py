"""What the page for signing in says of a demo: its accounts, and whose cells and labels it shows."""

from dataclasses import dataclass
from pathlib import Path

from app.demo.people import PEOPLE
from ml.files import read_json, write_json

#: What each account of the demo is for.
PURPOSES = {
    "admin": "leads: worklist, report, policy, releases",
    "viewer": "looks at all of it and changes nothing",
    "annotator-1": "reads cells",
    "annotator-2": "reads cells too, so that two can differ",
}


@dataclass(frozen=True)
class Notice:
    """What to say of a demo.

    Attributes:
        real: real cells, whose sources must be named.
        people: accounts and what they are for.
    """

    real: bool
    people: tuple[tuple[str, str], ...] = tuple((name, PURPOSES[name]) for name in PEOPLE)


def _file(home: Path) -> Path:
    return home / "demo" / "notice.json"


def write_notice(home: Path, *, real: bool) -> None:
    """Keep in HOME that it is a demo, and of which kind."""
    _file(home).parent.mkdir(parents=True, exist_ok=True)
    write_json(_file(home), {"real": real})


def notice_of(home: Path) -> Notice | None:
    """What to say of the demo in HOME; None where there is none."""
    path = _file(home)
    return Notice(bool(read_json(path)["real"])) if path.is_file() else None
