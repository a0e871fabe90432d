"""The insert of an audit event, compiled once."""

from functools import cache

from sqlalchemy import Table as SqlTable
from sqlalchemy import bindparam, insert

from app.database.sql.compiled_statements import PreparedStatement
from app.database.tables import BaseTable


@cache
def prepare_insert(table: type[BaseTable], names: tuple[str, ...]) -> PreparedStatement:
    """Prepare the statement that inserts a row."""
    rows = table.__table__
    if not isinstance(rows, SqlTable):
        raise TypeError(f"{table.__name__} is not one table")
    values = {name: bindparam(name, type_=rows.columns[name].type) for name in names}
    return PreparedStatement(insert(rows).values(values))
