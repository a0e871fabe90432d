"""Whether a twin of a case was selected; which case a remembered answer shows; account names without stray spaces."""

import unicodedata
import uuid

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# as they were when cases were planned before this migration
_NEAR_BITS, _NO_HASH, _MASK = 4, 0, 2**64 - 1


def upgrade() -> None:
    op.add_column("cases", sa.Column("twin_selected", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("idempotency_records", sa.Column("case_id", sa.Uuid(), nullable=True))
    for column in ("case_id", "created_at"):
        op.create_index(op.f(f"ix_idempotency_records_{column}"), "idempotency_records", [column])
    connection = op.get_bind()
    _mark_twins(connection)
    _name_cases(connection)
    _normalise_names(connection)


def _mark_twins(connection: sa.Connection) -> None:
    """Mark the cases with an earlier near-duplicate of the same patient that was selected for a second read."""
    cases = sa.table("cases", *(sa.column(name) for name in ("patient", "image_hash", "pi", "twin_selected")))
    cases.append_column(sa.column("id", sa.Uuid()))  # type: ignore[arg-type]
    hashed = (cases.c.patient.is_not(None), cases.c.image_hash.is_not(None), cases.c.image_hash != _NO_HASH)
    rows = connection.execute(
        sa.select(cases.c.id, cases.c.patient, cases.c.image_hash, cases.c.pi)
        .where(*hashed)
        .order_by(cases.c.patient, cases.c.id)
    ).all()
    patient, selected, marked = None, [], []
    for case_id, its_patient, image_hash, pi in rows:
        if its_patient != patient:
            patient, selected = its_patient, []
        if any(((image_hash ^ other) & _MASK).bit_count() <= _NEAR_BITS for other in selected):
            marked.append({"marked": case_id})
        if pi >= 1:
            selected.append(image_hash)
    if marked:
        statement = sa.update(cases).where(cases.c.id == sa.bindparam("marked")).values(twin_selected=True)
        connection.execute(statement, marked)


def _name_cases(connection: sa.Connection) -> None:
    """Write the case beside each remembered answer that shows one."""
    records = sa.table(
        "idempotency_records",
        sa.column("account_id", sa.Uuid()),
        sa.column("key", sa.String()),
        sa.column("body", sa.JSON()),
        sa.column("case_id", sa.Uuid()),
    )
    shown = [
        {"whose": account_id, "which": key, "case": uuid.UUID(body["id"])}
        for account_id, key, body in connection.execute(sa.select(*list(records.c)[:3]))
        if isinstance(body, dict) and "external_id" in body
    ]
    if shown:
        mine = (records.c.account_id == sa.bindparam("whose"), records.c.key == sa.bindparam("which"))
        connection.execute(sa.update(records).where(*mine).values(case_id=sa.bindparam("case")), shown)


def _normalise_names(connection: sa.Connection) -> None:
    """Rename accounts whose name begins or ends in a space, or is not composed (NFC): nobody could sign in to one.

    Where the normal name is taken, a number is added.
    """
    accounts = sa.table("accounts", sa.column("id", sa.Uuid()), sa.column("name", sa.String()))
    annotators = sa.table("annotators", sa.column("account_id", sa.Uuid()), sa.column("name", sa.String()))
    rows = connection.execute(sa.select(accounts.c.id, accounts.c.name)).all()
    taken = {name for _, name in rows} | set(connection.execute(sa.select(annotators.c.name)).scalars())
    for account_id, name in rows:
        normal = unicodedata.normalize("NFC", name).strip()
        if name == normal:
            continue
        wanted, number = normal, 2
        while wanted in taken:
            wanted, number = f"{normal[:90]} ({number})", number + 1
        taken.add(wanted)
        connection.execute(sa.update(accounts).where(accounts.c.id == account_id).values(name=wanted))
        connection.execute(sa.update(annotators).where(annotators.c.account_id == account_id).values(name=wanted))


def downgrade() -> None:
    for column in ("case_id", "created_at"):
        op.drop_index(op.f(f"ix_idempotency_records_{column}"), "idempotency_records")
    op.drop_column("idempotency_records", "case_id")
    op.drop_column("cases", "twin_selected")
