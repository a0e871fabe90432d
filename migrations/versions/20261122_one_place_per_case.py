"""All open requests of a case have its place among those of their day: a place each told that there are two."""

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_PLACES = 2**31 - 1


def upgrade() -> None:
    connection = op.get_bind()
    requests = sa.table(
        "read_requests",
        sa.column("case_id", sa.Uuid()),
        sa.column("state", sa.String()),
        sa.column("shuffle", sa.Integer()),
    )
    # not IN, whose parameters cannot be expanded for many rows at a time
    waiting = sa.or_(requests.c.state == "open", requests.c.state == "leased")
    cases = connection.execute(sa.select(requests.c.case_id).where(waiting).distinct()).scalars()
    places = [
        {"which": case_id, "place": int.from_bytes(hashlib.sha256(case_id.bytes).digest()[:4]) % _PLACES}
        for case_id in cases
    ]
    if places:
        statement = sa.update(requests).where(waiting, requests.c.case_id == sa.bindparam("which"))
        connection.execute(statement.values(shuffle=sa.bindparam("place")), places)


def downgrade() -> None:
    """Any place was a random one: nothing to put back."""
