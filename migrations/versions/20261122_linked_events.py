"""Each event has a digest and a signature of its own, and its link another signature.

They need the key: ``db upgrade`` fills them in, which leaves an event that names the old and the new head. The way down
forgets them, and with them what the links prove: the next upgrade names every event.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_COLUMNS = {"event_sha256": 64, "link_signature": 128}


def upgrade() -> None:
    for name, length in _COLUMNS.items():
        op.add_column("audit_events", sa.Column(name, sa.String(length=length), nullable=True))


def downgrade() -> None:
    for name in _COLUMNS:
        op.drop_column("audit_events", name)
