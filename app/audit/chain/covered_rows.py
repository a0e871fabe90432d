"""Covered rows: the columns that the audit covers, the digest of a row, and the rows that a transaction has written.

A digest is of canonical JSON; of private columns only an HMAC enters it. Columns that are null or false are left out,
so that a migration which adds such a column leaves older digests as they are. A session notes the rows of each flush
and of each statement that it executes, by RETURNING; a statement outside a session is not noted.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import (
    Column,
    Delete,
    Float,
    Insert,
    Result,
    Select,
    Update,
    bindparam,
    event,
    inspect,
    select,
    tuple_,
    update,
)
from sqlalchemy import Table as SqlTable
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction
from sqlalchemy.orm.attributes import set_committed_value

from app.audit.chain.keys import DerivedKey
from app.audit.chain.verify_proof import digest_json, encode_canonical_json
from app.database.tables import BaseTable
from app.database.tables.base import Row


def _is_always_covered(_row: Row) -> bool:
    return True


def _is_settled_read(read: Row) -> bool:
    """Leases come and go without an event; a read that was answered or declined does not."""
    return read["state"] in {"committed", "declined"}


def _is_ended_repeat(repeat: Row) -> bool:
    """Repeats are planned and leased without an event, so that none comes at another time than a lease's."""
    return repeat["state"] in {"answered", "closed"}


def _merge_waiting_states(state: str) -> str:
    return "waiting" if state in {"open", "leased"} else state


@dataclass(frozen=True)
class TableCoverage:
    """Audit coverage of one table."""

    # columns that enter as an HMAC under a secret key, since they name a person or open a door: neither the events nor
    # an export for auditors tells them, or lets anybody try them out
    private: frozenset[str] = frozenset()
    # columns that may change without an event, each with the reason
    free: Mapping[str, str] = field(default_factory=dict)
    # columns of which several values count as one, with the function that gives it
    alike: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    # whether a row must have an event; one that has an event is compared in any case
    covers: Callable[[Row], bool] = _is_always_covered
    # column with the key of that HMAC, in rows about patients: when it goes with an erased patient, nobody can try the
    # digests out any more, not even with the installation's key. None: the installation's key
    key: str | None = None

    def is_free_value(self, name: str, value: object) -> bool:
        """Whether a column that is set to a value needs no event: it is free, or the value counts as the one before."""
        # a row does not come back to such a value from another one: an answered request does not open again
        return name in self.free or (name in self.alike and self.alike[name](value) != value)


def _cover_private(*names: str) -> TableCoverage:
    return TableCoverage(frozenset(names))


def _cover_forgettable(*names: str) -> TableCoverage:
    return TableCoverage(frozenset(names), key="digest_key")


COVERED: Mapping[str, TableCoverage] = {
    "accounts": TableCoverage(
        frozenset({"name", "one_time_sha256", "password_hash", "oidc_subject"}),
        {"language": "of the pages, which everybody chooses for themselves; nothing follows from it"},
    ),
    "aliases": TableCoverage(),
    "annotators": _cover_private("name"),
    "api_keys": _cover_private("secret_sha256"),
    "browser_sessions": TableCoverage(
        frozenset({"token_sha256"}), {"seen_at": "written while somebody is signed in, at most once a minute"}
    ),
    "cases": TableCoverage(
        frozenset(
            {
                "external_id",
                "patient",
                "case_metadata",
                "image_sha256",
                "stored_sha256",
                "field_sha256",
                "stored_field_sha256",
                "pixels_sha256",
                "field_pixels_sha256",
                "image_hash",
                "stain",
            }
        ),
        {"need": "order of the worklist; set anew whenever another release is served"},
        key="digest_key",
    ),
    "case_twins": TableCoverage(),
    "class_definitions": TableCoverage(),
    "class_settings": TableCoverage(),
    "comments": _cover_forgettable("text"),
    "daily_thresholds": TableCoverage(),
    "erasures": TableCoverage(free={"finished_at": "when the files of the database had forgotten the patient too"}),
    "evaluations": TableCoverage(),
    "exposures": TableCoverage(),
    "held_back": TableCoverage(),
    "import_rows": _cover_forgettable("external_id", "patient", "detail", "place"),
    "installation": _cover_private("key_check"),
    "invitations": _cover_private("token_sha256"),
    "jobs": TableCoverage(
        frozenset({"parameters"}),
        {
            "state": "follows from how far the job is; a request to cancel or to try again has its own event",
            "attempt": "follows from how far the job is",
            "begun": "follows from how far the job is",
            "executor_id": "process that runs the job",
            "traceparent": "of the request's trace",
            "cancel_requested_at": "has its own event",
            "cancel_requested_by": "has its own event",
            "result": "what is shown of the job; what it wrote has its own events",
            "error": "what is shown of the job",
            "ended_at": "what is shown of the job",
            "progress": "what is shown while the job is under way",
            "message": "what is shown while the job is under way",
            "started_at": "what is shown of the job",
        },
    ),
    "labels": TableCoverage(),
    "looks": TableCoverage(),
    "network_outputs": _cover_forgettable("logits", "features", "appearance"),
    "outcomes": TableCoverage(),
    "policies": TableCoverage(),
    "practice_answers": TableCoverage(),
    "practice_cells": TableCoverage(),
    "practice_items": TableCoverage(),
    "practice_runs": TableCoverage(),
    "practice_sets": TableCoverage(),
    "predictions": TableCoverage(),
    "provisional_labels": TableCoverage(
        free={
            "final_at": "brought forward by the annotator's next answers",
            "n_since": "counts the annotator's next answers",
        }
    ),
    "qualifications": _cover_private("reason"),
    "read_requests": TableCoverage(
        free={
            "lease_expires_at": "moves with every heartbeat",
        },
        # a lease begins and ends without an event
        alike={"state": _merge_waiting_states},
    ),
    "reader_draws": TableCoverage(),
    "reader_model_in_use": TableCoverage(),
    "reader_models": _cover_private("document"),
    "reads": TableCoverage(
        free={"displayed_at": "the label's reading_seconds, which follow from it, are covered"},
        covers=_is_settled_read,
    ),
    "reference_cells": _cover_private("reason"),
    "releases": TableCoverage(),
    "remarks": _cover_forgettable("note", "reason"),
    "repeats": TableCoverage(
        free={"lease_expires_at": "moves with every heartbeat"},
        covers=_is_ended_repeat,
    ),
    "report_targets": TableCoverage(),
    "specimen_knowledge": TableCoverage(),
    "specimen_remarks": _cover_forgettable("comment", "reason"),
    "specimen_signatures": TableCoverage(),
    "specimens": _cover_forgettable("external_id", "patient"),
}

#: Tables without covered rows, each with the reason.
NOT_COVERED: Mapping[str, str] = {
    "answer_sets": "computed anew every day",
    "audit_events": "the chain itself: each event's digest covers it",
    "audit_head": "compared with the end of the chain",
    "case_changes": "covered by the event that names the cases, as one digest for all of them",
    "idempotency_records": "answers to retries, deleted after seven days",
    "job_batches": "how far a job is, read only while it is under way",
    "published_estimates": "computed anew every minute",
    "specimen_results": "computed again whenever what they follow from changes",
    "published_reports": "made anew when somebody asks after a change",
    "workers": "who runs jobs now",
}


#: JSON values.
Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
#: Table → key of the row → digest, None where the row was deleted.
Leaves = dict[str, dict[str, str | None]]


# what JSON gives back as it was
_PLAIN_TYPES = frozenset({str, int, float, bool})


@cache
def key_names(table: SqlTable) -> tuple[str, ...]:
    """Names of the columns of a table's primary key."""
    return tuple(column.name for column in table.primary_key.columns)


@cache
def _list_column_kinds(table: SqlTable) -> tuple[tuple[str, bool], ...]:
    """Names of a table's columns, and whether each holds numbers that need not be whole."""
    return tuple((column.name, isinstance(column.type, Float)) for column in table.columns)


def row_key(table: SqlTable, row: Row) -> str:
    """Primary key of a row as text."""
    return "/".join([str(row[name]) for name in key_names(table)])


def build_row_document(
    private: DerivedKey, table: SqlTable, row: Row, coverage: TableCoverage | None = None
) -> dict[str, Json]:
    """Return the covered columns as JSON values, private ones as HMAC, without null or false."""
    coverage = coverage or COVERED[table.name]
    of_row = None if coverage.key is None else row[coverage.key]
    own = private if of_row is None else DerivedKey(of_row, b"")
    document: dict[str, Json] = {}
    for name, is_float in _list_column_kinds(table):
        value = row[name]
        if value is None or value is False or name in coverage.free or name == coverage.key:
            continue
        alike = coverage.alike.get(name)
        plain = float(value) if is_float else _to_json_value(value if alike is None else alike(value))
        if name in coverage.private:
            named = encode_canonical_json([table.name, row_key(table, row), name, plain])
            plain = own.digest(named).hex()
        document[name] = plain
    return document


def _to_json_value(value: object) -> Json:
    """A column's value as JSON; the same before it was stored and after it was read."""
    if type(value) in _PLAIN_TYPES:  # not a kind of them, such as a name of an enumeration
        return value  # type: ignore[return-value]
    if isinstance(value, list) and all(type(item) is float for item in value):
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    plain: Json = json.loads(json.dumps(value))
    return plain


def row_digest(private: DerivedKey, table: SqlTable, row: Row, coverage: TableCoverage | None = None) -> str:
    """SHA-256 of a row: its table and its covered columns."""
    return digest_json([table.name, build_row_document(private, table, row, coverage)])


def cases_digest(case_ids: Iterable[UUID]) -> str:
    """SHA-256 of the cases whose evaluation an event changed."""
    return digest_json(sorted(map(str, case_ids)))


def covered_tables() -> list[SqlTable]:
    """Tables whose rows are covered, each after those that it refers to."""
    return [table for table in BaseTable.metadata.sorted_tables if table.name in COVERED]


_WRITTEN = "covered rows that were written"
# execution option: columns that an UPDATE sets, with their values
_SET_COLUMNS = "set_columns"
#: Execution option of a statement of tables that is made once: so is the one with RETURNING that is made of it.
MADE_ONCE = "made_once"


class _DeletedRow:
    """Marker of a row that was deleted."""


class _StaleRow:
    """Marker of a row that was changed without a lock."""


_GONE, _CHANGED = _DeletedRow(), _StaleRow()
_Written: TypeAlias = "dict[tuple[str, str], tuple[tuple[object, ...], Row | BaseTable | _DeletedRow | _StaleRow]]"


class RecordedSession(Session):
    """A session that remembers which covered rows it has written."""


def update_columns(table: type[BaseTable], **values: Any) -> Update:
    """Make an UPDATE that names its columns to the session: without covered ones nothing is noted."""
    statement = update(table).values(**values)
    return statement.execution_options(**{_SET_COLUMNS: values}, synchronize_session=False)


def update_row(session: Session, row: BaseTable, **values: Any) -> None:
    """Write columns of a loaded row at once; what its digest covers comes back with the statement."""
    session.flush()
    table, coverage = row.__table__, COVERED[row.__tablename__]
    # a lease is not covered, whether of a read or of a repeat: it must return nothing for either
    noted = values if coverage.covers({**_columns_of(row), **values}) else {}
    parameters = {f"of_{name}": getattr(row, name) for name in key_names(table)}
    parameters |= {f"new_{name}": value for name, value in values.items()}
    statement = _update_by_key(table, tuple(values))
    session.execute(statement, parameters, execution_options={_SET_COLUMNS: noted})
    for name, value in values.items():
        set_committed_value(row, name, value)


@cache
def _update_by_key(table: SqlTable, names: tuple[str, ...]) -> Update:
    key = [column == bindparam(f"of_{column.name}") for column in table.primary_key.columns]
    changed = update(table).where(*key).values({name: bindparam(f"new_{name}") for name in names})
    return changed.execution_options(**{MADE_ONCE: True})


@cache
def _return_written(statement: Insert | Update | Delete, table: SqlTable) -> Insert | Update | Delete:
    return statement.returning(*_noted_columns(statement, table))


def _noted_columns(statement: Insert | Update | Delete, table: SqlTable) -> Iterable[Column[Any]]:
    return table.primary_key.columns if isinstance(statement, Delete) else table.columns


@event.listens_for(RecordedSession, "do_orm_execute")
def _note_statement(state: ORMExecuteState) -> Result[Any] | None:
    """Let a statement that writes a covered table return the rows that it writes, and note them."""
    statement = state.statement
    if not isinstance(statement, Insert | Update | Delete):
        return None
    table = statement.entity_description["table"]
    coverage = COVERED.get(table.name)
    if coverage is None or _sets_nothing_covered(coverage, state.execution_options.get(_SET_COLUMNS)):
        return None
    made_once = state.execution_options.get(MADE_ONCE, False)
    returning = (_return_written if made_once else _return_written.__wrapped__)(statement, table)
    n_own = len(statement.exported_columns)
    written = state.invoke_statement(statement=returning).freeze()
    names = [column.name for column in _noted_columns(statement, table)]
    for values in written():
        row = dict(zip(names, values[n_own:], strict=True))
        if isinstance(statement, Delete):
            _note_row(state.session, table, row, _GONE)
        elif coverage.covers(row):
            _note_row(state.session, table, row, row)
    return written().columns(*range(n_own)) if n_own else written()


def _sets_nothing_covered(coverage: TableCoverage, values: Row | None) -> bool:
    return values is not None and all(coverage.is_free_value(name, value) for name, value in values.items())


def _get_written_rows(session: Session) -> _Written:
    written: _Written = session.info.setdefault(_WRITTEN, {})
    return written


def _note_row(session: Session, table: SqlTable, row: Row, content: Row | BaseTable | _DeletedRow | _StaleRow) -> None:
    primary = tuple([row[name] for name in key_names(table)])
    _get_written_rows(session)[table.name, row_key(table, row)] = (primary, content)


@event.listens_for(RecordedSession, "after_flush")
def _note_flushed(session: Session, _flush: UOWTransaction) -> None:
    for entity, row, table in _list_covered_rows(session.new):
        if COVERED[table.name].covers(row):
            _note_row(session, table, row, entity)
    for entity, row, table in _list_covered_rows(session.dirty):
        if _has_covered_change(entity, table) and COVERED[table.name].covers(row):
            present = _get_written_rows(session).get((table.name, row_key(table, row)))
            is_own = present is not None and isinstance(present[1], BaseTable)
            _note_row(session, table, row, entity if is_own else _CHANGED)
    for _, row, table in _list_covered_rows(session.deleted):
        _note_row(session, table, row, _GONE)


def _list_covered_rows(entities: Iterable[object]) -> list[tuple[BaseTable, Row, SqlTable]]:
    tables = [(entity, entity.__table__) for entity in entities if isinstance(entity, BaseTable)]
    return [
        (entity, _columns_of(entity), table)
        for entity, table in tables
        if isinstance(table, SqlTable) and table.name in COVERED
    ]


def _has_covered_change(entity: BaseTable, table: SqlTable) -> bool:
    coverage, attributes = COVERED[table.name], inspect(entity).attrs
    for column in table.columns:
        history = attributes[column.name].history
        if column.name in coverage.free or not history.has_changes():
            continue
        alike = coverage.alike.get(column.name)
        if alike is None or [*map(alike, history.added)] != [*map(alike, history.deleted)]:
            return True
    return False


@event.listens_for(RecordedSession, "after_soft_rollback")
def _forget_rolled_back(session: Session, _transaction: object) -> None:
    session.info.pop(_WRITTEN, None)


def take_leaves(session: Session, private: DerivedKey) -> Leaves:
    """Digests of the covered rows that were written since the last call; what is pending must have been flushed."""
    written: _Written = session.info.pop(_WRITTEN, {})
    leaves: Leaves = {}
    unknown: dict[str, list[tuple[object, ...]]] = {}
    for (name, key), (primary, content) in written.items():
        if isinstance(content, _StaleRow):
            unknown.setdefault(name, []).append(primary)
        elif isinstance(content, _DeletedRow):
            leaves.setdefault(name, {})[key] = None
        else:
            row = _columns_of(content) if isinstance(content, BaseTable) else content
            leaves.setdefault(name, {})[key] = row_digest(private, BaseTable.metadata.tables[name], row)
    for name, keys in unknown.items():
        table = BaseTable.metadata.tables[name]
        for row in session.execute(_rows_by_key(table), {"keys": keys}).mappings().all():
            leaves.setdefault(name, {})[row_key(table, row)] = row_digest(private, table, row)
    return leaves


def _columns_of(row: BaseTable) -> Row:
    return {column.name: getattr(row, column.name) for column in row.__table__.columns}


@cache
def _rows_by_key(table: SqlTable) -> Select[Any]:
    return select(table).where(tuple_(*table.primary_key.columns).in_(bindparam("keys", expanding=True)))
