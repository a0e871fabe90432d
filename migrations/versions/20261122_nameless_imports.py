"""Remembered answers about a label know its case, and imports of the command line forget the name of the file.

Both would outlive an erased patient: an answer has the note, and a file may be named like them; nothing reads its name.
"""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _name_cases_of_answers()
    connection = op.get_bind()
    jobs = sa.table(
        "jobs", sa.column("id", sa.Uuid()), sa.column("kind", sa.String()), sa.column("parameters", sa.JSON())
    )
    rows = connection.execute(sa.select(jobs.c.id, jobs.c.parameters).where(jobs.c.kind == "import")).all()
    for job_id, parameters in rows:
        if "source" in parameters:
            rest = {name: value for name, value in parameters.items() if name != "source"}
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(parameters=rest))
    if connection.dialect.name == "postgresql":  # no statistics of what events of earlier versions gave as reasons
        op.execute("ALTER TABLE audit_events ALTER COLUMN reason TYPE text")
        op.execute("ALTER TABLE audit_events ALTER COLUMN reason SET STATISTICS 0")


def _name_cases_of_answers() -> None:
    connection = op.get_bind()
    labels = sa.table("labels", sa.column("id", sa.Uuid()), sa.column("case_id", sa.Uuid()))
    answers = sa.table(
        "idempotency_records",
        *(sa.column("account_id", sa.Uuid()), sa.column("key", sa.String())),
        *(sa.column("body", sa.JSON()), sa.column("case_id", sa.Uuid())),
    )
    wanted = sa.select(answers).where(answers.c.case_id.is_(None))
    for answer in connection.execute(wanted).all():
        label = answer.body.get("label") if isinstance(answer.body, dict) else None
        if not isinstance(label, dict):
            continue
        of_label = sa.select(labels.c.case_id).where(labels.c.id == uuid.UUID(label["id"]))
        same = (answers.c.account_id == answer.account_id, answers.c.key == answer.key)
        connection.execute(sa.update(answers).where(*same).values(case_id=of_label.scalar_subquery()))


def downgrade() -> None:
    """Nothing needs the names."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE audit_events ALTER COLUMN reason SET STATISTICS -1")
