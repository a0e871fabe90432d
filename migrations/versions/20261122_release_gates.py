"""The gate's verdict as a column of the release, filled in from the card."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    # before the column: a card that cannot be read leaves the database as it was
    verdicts = [
        {"release": row[0], "verdict": _verdict(str(row[0]), row[1])}
        for row in connection.execute(sa.text("SELECT id, card FROM releases"))
    ]
    op.add_column(
        "releases",
        sa.Column(
            "gate",
            sa.String(20),
            sa.CheckConstraint("gate IN ('passed', 'refused', 'not_judged')", name=op.f("ck_releases_gate")),
            server_default="not_judged",
            nullable=False,
        ),
    )
    if verdicts:
        connection.execute(sa.text("UPDATE releases SET gate = :verdict WHERE id = :release"), verdicts)


def _verdict(release: str, stored: Any) -> str:
    """The verdict of a stored card.

    Raises:
        ValueError: the card's gate is missing or malformed.
    """
    card = json.loads(stored) if isinstance(stored, str) else stored
    if "recalibration" not in card:
        return "not_judged"
    recalibration = card["recalibration"]
    gate = recalibration.get("gate") if isinstance(recalibration, dict) else None
    passed = gate.get("passed") if isinstance(gate, dict) else None
    if not isinstance(passed, bool):
        raise ValueError(f"release {release}: its card says that it was recalibrated, but not how the gate judged it")
    return "passed" if passed else "refused"


def downgrade() -> None:
    op.drop_column("releases", "gate")
