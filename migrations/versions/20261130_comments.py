"""Make the tables of comments and of invitations, and mark the accounts of guests."""

import sqlalchemy as sa
from alembic import op

revision = "20261130"
down_revision = "20261129"
branch_labels = None
depends_on = None

# what PostgreSQL must keep no statistics of, since they would outlive a patient who is erased
_NO_STATISTICS = ("text", "x", "y", "digest_key")


def upgrade() -> None:
    op.create_table(
        "comments",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("x", sa.Float(53), nullable=True),
        sa.Column("y", sa.Float(53), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("digest_key", sa.LargeBinary(length=32), nullable=False),
        sa.CheckConstraint("(x IS NULL) = (y IS NULL)", name=op.f("ck_comments_place")),
        sa.CheckConstraint("x >= 0 AND x <= 1 AND y >= 0 AND y <= 1", name=op.f("ck_comments_inside")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_comments_account_id_accounts")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_comments_case_id_cases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_comments")),
    )
    op.create_index(op.f("ix_comments_case_id"), "comments", ["case_id"])
    op.create_table(
        "invitations",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("cases", sa.JSON(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_invitations_account_id_accounts")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_invitations_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invitations")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_invitations_token_sha256")),
    )
    op.create_index(op.f("ix_invitations_account_id"), "invitations", ["account_id"])
    op.add_column("accounts", sa.Column("guest", sa.Boolean(), server_default=sa.false(), nullable=False))
    if op.get_bind().dialect.name == "postgresql":
        for column in _NO_STATISTICS:
            op.execute(f"ALTER TABLE comments ALTER COLUMN {column} SET STATISTICS 0")


def downgrade() -> None:
    op.drop_column("accounts", "guest")
    op.drop_table("invitations")
    op.drop_table("comments")
