"""The baseline: digests of the rows that come with the tables, in the first event of the chain."""

from collections.abc import Iterator
from itertools import groupby
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.coverage import COVERED
from app.audit.chain.keys import AuditKeys
from app.audit.chain.row_digests import Leaves, covered_tables, row_digest, row_key
from app.database.tables import CaseChange

ACTION = "rows.baseline"


def write_baseline(session: Session, keys: AuditKeys) -> None:
    """Vouch for every covered row of a database without events."""
    leaves: Leaves = {}
    for table in covered_tables():
        for row in session.connection().execute(select(table)).mappings():
            if COVERED[table.name].covers(row):
                leaves.setdefault(table.name, {})[row_key(table, row)] = row_digest(keys.rows, table, row)
    events.record_event(session, keys, actor="service", action=ACTION, object_id="rows", leaves=leaves)


def case_changes(session: Session) -> Iterator[tuple[int, list[UUID]]]:
    """Stamp of each event that names cases, and which."""
    changes = select(CaseChange.stamp, CaseChange.case_id).order_by(CaseChange.stamp)
    for stamp, pairs in groupby(session.execute(changes), key=lambda pair: pair[0]):
        yield stamp, [case_id for _, case_id in pairs]
