"""Models of named annotators, and which of them weighs labels by who gave them."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reader_models",
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_reader_models_release_id_releases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reader_models")),
        sa.UniqueConstraint("version", name=op.f("uq_reader_models_version")),
    )
    op.create_index(op.f("ix_reader_models_release_id"), "reader_models", ["release_id"])
    op.create_table(
        "reader_model_in_use",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_reader_model_in_use_one_row")),
        sa.ForeignKeyConstraint(
            ["version"], ["reader_models.version"], name=op.f("fk_reader_model_in_use_version_reader_models")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reader_model_in_use")),
    )


def downgrade() -> None:
    op.drop_table("reader_model_in_use")
    op.drop_index(op.f("ix_reader_models_release_id"), table_name="reader_models")
    op.drop_table("reader_models")
