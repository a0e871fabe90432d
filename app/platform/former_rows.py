"""How rows were covered by the events of former schemas, so that a migration can tell which were right before it."""

from sqlalchemy import Column, Inspector, MetaData, Text
from sqlalchemy import Table as SqlTable

from app.platform.covered_rows import COVERED, Coverage
from app.tables import Remark

#: Before free text had a table of its own, and rows about patients a key of their own
BEFORE_REMARKS = {
    "cases": Coverage(COVERED["cases"].private, COVERED["cases"].free),
    "import_rows": Coverage(frozenset({"external_id", "detail"})),
    "labels": Coverage(frozenset({"note", "reason"})),
    "network_outputs": Coverage(),
    "read_requests": Coverage(
        free={"lease_expires_at": "moves with every heartbeat"}, alike=COVERED["read_requests"].alike
    ),
    "reads": Coverage(frozenset({"note"}), COVERED["reads"].free, covers=COVERED["reads"].covers),
}
_COLUMNS = {"labels": ("note", "reason"), "reads": ("note",)}


def as_it_was(schema: Inspector, table: SqlTable) -> tuple[SqlTable, Coverage]:
    """A covered table with the columns that a database has, and how its rows were covered there.

    Args:
        schema: of the database.
        table: as it is in this version.
    """
    if schema.has_table(Remark.__tablename__) or table.name not in BEFORE_REMARKS:
        return table, COVERED[table.name]
    former = table.to_metadata(MetaData())
    for name in _COLUMNS.get(table.name, ()):
        former.append_column(Column(name, Text))
    return former, BEFORE_REMARKS[table.name]
