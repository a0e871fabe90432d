"""Statements as SQLite keeps them: prepared once per connection, not with each execution.

SQLite plans a statement by the value of a parameter where the value may change the plan: of a number of rows, and of
what is compared with a column by which an index is partial. It then prepares the statement anew for each execution,
which takes longer than to execute it.
"""

from typing import Any

from sqlalchemy import Engine, GenerativeSelect
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler


class _KeptPlans(SQLiteCompiler):
    """Makes numbers of rows expressions, whose values SQLite does not ask for while it plans."""

    def limit_clause(self, select: GenerativeSelect, **kw: Any) -> str:
        """``LIMIT`` and ``OFFSET`` of a statement."""
        clause = str(super().limit_clause(select, **kw))  # type: ignore[no-untyped-call]
        return clause.replace(" LIMIT ", " LIMIT +", 1)


def keep_plans(engine: Engine) -> None:
    """Let the statements of an engine for SQLite be prepared once, however many rows they ask for."""
    engine.dialect.statement_compiler = _KeptPlans
