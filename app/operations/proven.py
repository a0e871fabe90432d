"""Rows compared with the digests that audit events carry: one that no event explains is named, and one that differs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Table as SqlTable
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.platform import audit_chain, baseline
from app.platform.covered_rows import COVERED
from app.platform.keys import DerivedKey
from app.platform.row_digests import cases_digest, covered_tables, row_digest, row_key

_ROWS = 1000


@dataclass
class Expected:
    """What the events say of the rows: for each the newest event that wrote it.

    Attributes:
        rows: table → key → what the event is called and digest, None for a row that was deleted.
        faults: sentences about the events themselves.
    """

    rows: dict[str, dict[str, tuple[str, str | None]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def expected_rows(session: Session) -> Expected:
    """Replay the chain, and what waits to be linked to it: which rows there must be."""
    expected = Expected()
    for place, event in enumerate(audit_chain.all_events(session)):
        if event.action == baseline.ACTION and place > 0:
            expected.faults.append(f"audit event {event.number} is a baseline, and not the first event")
        for table, leaves in (event.row_digests or {}).items():
            rows = expected.rows.setdefault(table, {})
            for key, digest in leaves.items():
                rows[key or str(event.stamp)] = (event.number, digest)
    return expected


def unproven_rows(session: Session, private: DerivedKey) -> Iterator[str]:
    """A sentence for each row that is not as the newest event about it says, is missing, or has no event.

    Args:
        session: for reading.
        private: key of private columns.
    """
    expected = expected_rows(session)
    yield from expected.faults
    for table in covered_tables():
        rows = expected.rows.pop(table.name, {})
        yield from guarded(f"rows of {table.name}", partial(_of_table, session, private, table, rows))
    changes = expected.rows.pop(audit_chain.CASE_CHANGES, {})
    yield from guarded("rows of case_changes", partial(_case_changes, session, changes))
    for table_name in expected.rows:
        yield f"audit events name rows of {table_name}, a table that is not covered"


def guarded(what: str, check: Callable[[], Iterable[str]]) -> list[str]:
    """Faults that a check finds; that it cannot be done, since somebody stored what the service never would, is one.

    Raises:
        DBAPIError: the database went away, which says nothing of its rows.
    """
    faults: list[str] = []
    try:
        faults.extend(check())
    except Exception as exc:
        if isinstance(exc, DBAPIError) and exc.connection_invalidated:
            raise
        faults.append(f"{what} cannot be checked ({type(exc).__name__}): they contain what the service never writes")
    return faults


def _of_table(
    session: Session, private: DerivedKey, table: SqlTable, rows: dict[str, tuple[str, str | None]]
) -> Iterator[str]:
    stored = session.connection().execute(select(table).execution_options(yield_per=_ROWS)).mappings()
    for row in stored:
        key = row_key(table, row)
        said = rows.pop(key, None)
        if said is not None:
            if said[1] != row_digest(private, table, row):
                yield _differs(f"{table.name} {key}", said)
        elif COVERED[table.name].covers(row):
            yield f"{table.name} {key}: no audit event wrote it"
    yield from _missing(table.name, rows)


def _differs(what: str, said: tuple[str, str | None]) -> str:
    return f"{what}: " + (
        f"there again, although audit event {said[0]} deleted it"
        if said[1] is None
        else f"not as audit event {said[0]} wrote it"
    )


def _missing(table: str, rows: dict[str, tuple[str, str | None]]) -> Iterator[str]:
    for key, (event, digest) in rows.items():
        if digest is not None:
            yield f"{table} {key}: missing, although audit event {event} wrote it"


def _case_changes(session: Session, rows: dict[str, tuple[str, str | None]]) -> Iterator[str]:
    for stamp, cases in baseline.case_changes(session):
        said = rows.pop(str(stamp), None)
        if said is None or said[1] != cases_digest(cases):
            event = f"with stamp {stamp}" if said is None else said[0]
            yield f"case_changes {stamp}: not the cases that audit event {event} named"
    yield from _missing(audit_chain.CASE_CHANGES, rows)
