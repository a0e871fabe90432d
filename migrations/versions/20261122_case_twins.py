"""Cases with one image are linked: nobody reads two of them as if they had never seen the other."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# as they were when this migration was written
_NEAR_BITS, _NO_HASH, _MASK = 4, 0, 2**64 - 1


def upgrade() -> None:
    op.create_index(op.f("ix_cases_stored_sha256"), "cases", ["stored_sha256"])
    twins = op.create_table(
        "case_twins",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("twin_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_case_twins_case_id_cases")),
        sa.ForeignKeyConstraint(["twin_id"], ["cases.id"], name=op.f("fk_case_twins_twin_id_cases")),
        sa.PrimaryKeyConstraint("case_id", "twin_id", name=op.f("pk_case_twins")),
    )
    pairs = _pairs(op.get_bind())
    if pairs:
        rows = [{"case_id": first, "twin_id": other} for pair in pairs for first, other in (pair, pair[::-1])]
        op.bulk_insert(twins, rows)


def _pairs(connection: sa.Connection) -> set[tuple[uuid.UUID, uuid.UUID]]:
    """Cases of the same pixels, and near-duplicates of one patient, each pair once."""
    columns = ("stored_sha256", "patient", "image_hash", "erased_at")
    cases = sa.table("cases", sa.column("id", sa.Uuid()), *(sa.column(name) for name in columns))
    wanted = sa.select(cases.c.id, *(cases.c[name] for name in columns[:3])).where(cases.c.erased_at.is_(None))
    by_pixels: dict[str, list[uuid.UUID]] = {}
    by_patient: dict[str, list[tuple[uuid.UUID, int]]] = {}
    pairs: set[tuple[uuid.UUID, uuid.UUID]] = set()
    for case_id, pixels, patient, image_hash in connection.execute(wanted.order_by(cases.c.id)):
        pairs |= {(earlier, case_id) for earlier in by_pixels.get(pixels, ())}
        by_pixels.setdefault(pixels, []).append(case_id)
        if patient is None or image_hash in {None, _NO_HASH}:
            continue
        for earlier, other in by_patient.get(patient, ()):
            if ((image_hash ^ other) & _MASK).bit_count() <= _NEAR_BITS:
                pairs.add((earlier, case_id))
        by_patient.setdefault(patient, []).append((case_id, image_hash))
    return pairs


def downgrade() -> None:
    op.drop_table("case_twins")
    op.drop_index(op.f("ix_cases_stored_sha256"), "cases")
