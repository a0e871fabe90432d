"""The list of erasures: a file outside of backups, so that none of them brings a patient back.

A backup that was made before an erasure still has the patient. The list says which cases and rows of imports became
tombstones, by their identifiers alone, each line signed with a key of the installation that never moves. Whoever brings
a backup back, by whatever means, starts a service that first erases again what the list names.
"""

import hmac
import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.anchor import add_lines, open_locked
from app.audit.chain.keys import DerivedKey
from app.audit.chain.row_digests import canonical
from app.database.tables import Erasure


class ErasureListError(ValueError):
    """The list is missing, too short, or not of this installation."""


class Line(BaseModel):
    """One erasure, or the list's beginning, which names none.

    Attributes:
        number: 0 for the beginning, then 1, 2, …
        erasure: identifier; None for the beginning.
        cases: that became tombstones.
        import_rows: job and row of each row of an import.
        erased_at: UTC.
        signature: of everything else: HMAC-SHA256 in hexadecimal.
    """

    number: int
    erasure: uuid.UUID | None = None
    cases: list[uuid.UUID] = []
    import_rows: list[str] = []
    erased_at: datetime | None = None
    signature: str = ""

    def signed(self, key: DerivedKey) -> str:
        """Signature that the line must have."""
        return key.digest(canonical(self.model_dump(mode="json", exclude={"signature"}))).hex()


def read_list(path: Path, key: DerivedKey) -> list[Line]:
    """Erasures of a list, in their order.

    Args:
        path: of the file.
        key: of lists of erasures.

    Raises:
        ErasureListError: it is missing, was cut in its middle, or is not of this installation.
    """
    if not path.is_file():
        raise ErasureListError(
            f"{path}: there is no list of erasures, without which whoever was erased after the backup is back: put "
            "erasures.jsonl of the former HOME there, or name the list by SECONDREAD_ERASURES, or give --without-list"
        )
    return _parsed(path, path.read_text(encoding="utf-8"), key)


def is_begun(path: Path) -> bool:
    """Whether a list has a whole line: not so where a full disk cut off its very first one, which says nothing yet."""
    return path.is_file() and _end(path.read_text(encoding="utf-8")) > 0


def _parsed(path: Path, text: str, key: DerivedKey) -> list[Line]:
    """Erasures of a list.

    Raises:
        ErasureListError: it was cut in its middle, or is not of this installation.
    """
    lines = []
    for number, stored in enumerate(text[: _end(text)].splitlines()):
        try:
            line = Line.model_validate_json(stored)
        except ValidationError as exc:
            raise ErasureListError(f"{path}: line {number + 1} of the list of erasures cannot be read") from exc
        if line.number != number or not hmac.compare_digest(line.signature, line.signed(key)):
            raise ErasureListError(
                f"{path}: line {number + 1} of the list of erasures is not of this installation; if HOME "
                "was made anew on purpose, take the list away"
            )
        lines.append(line)
    if not lines:
        raise ErasureListError(f"{path}: the list of erasures is empty")
    return lines[1:]


def _end(text: str) -> int:
    """Length without a last line whose writing was cut off: the database still has what it said."""
    return text.rfind("\n") + 1


def add_missing(path: Path, session: Session, key: DerivedKey) -> int:
    """Add the database's erasures that the list lacks, and begin it where there is none.

    Args:
        path: of the file.
        session: for reading.
        key: of lists of erasures.

    Returns:
        Number of erasures in the list.

    Raises:
        ErasureListError: the file is not a list of this installation.
        OSError: it cannot be written.
    """
    with open_locked(path) as stream:
        text = stream.read()
        whole = text[: _end(text)]
        stream.truncate(len(whole.encode()))
        known = _parsed(path, whole, key) if whole else []
        listed = {line.erasure for line in known}
        rows = session.execute(select(Erasure).order_by(Erasure.created_at, Erasure.id)).scalars()
        missing = [row for row in rows if row.id not in listed]
        lines = [] if whole else [Line(number=0)]
        for number, row in enumerate(missing, len(known) + 1):
            cases = [uuid.UUID(case) for case in row.cases]
            rows_of_imports, at = row.import_rows, row.created_at
            lines.append(Line(number=number, erasure=row.id, cases=cases, import_rows=rows_of_imports, erased_at=at))
        signed = (line.model_copy(update={"signature": line.signed(key)}) for line in lines)
        add_lines(stream, (json.dumps(line.model_dump(mode="json")) for line in signed))
    return len(known) + len(missing)


def outstanding(session: Session, lines: Sequence[Line]) -> list[Line]:
    """Erasures of a list that the database knows nothing of."""
    known = set(session.execute(select(Erasure.id)).scalars())
    return [line for line in lines if line.erasure not in known]
