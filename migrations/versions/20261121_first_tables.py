"""Make the first tables: access, cases, labels, releases, audit and remembered answers."""

import sqlalchemy as sa
from alembic import op

from app.platform.audit_chain import GENESIS
from app.tables.append_only import create_plain_triggers, drop_plain_triggers

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
APPEND_ONLY = ("labels", "predictions", "audit_events")


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("one_time_sha256", sa.String(length=64), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('viewer', 'annotator', 'admin', 'service')", name=op.f("ck_accounts_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_table(
        "audit_events",
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=50), nullable=False),
        sa.Column("object", sa.String(length=100), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("request_id", sa.String(length=100), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_audit_events")),
    )
    op.create_index(op.f("ix_audit_events_object"), "audit_events", ["object"], unique=False)

    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "releases",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("card_sha256", sa.String(length=64), nullable=False),
        sa.Column("card", sa.JSON(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
        sa.UniqueConstraint("card_sha256", name=op.f("uq_releases_card_sha256")),
    )
    op.create_table(
        "aliases",
        sa.Column("name", sa.String(length=20), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.CheckConstraint("name IN ('champion', 'challenger')", name=op.f("ck_aliases_name")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_aliases_release_id_releases")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_aliases")),
    )
    op.create_table(
        "annotators",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_annotators_account_id_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_annotators")),
        sa.UniqueConstraint("account_id", name=op.f("uq_annotators_account_id")),
        sa.UniqueConstraint("name", name=op.f("uq_annotators_name")),
    )
    op.create_table(
        "api_keys",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_api_keys_account_id_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index(op.f("ix_api_keys_account_id"), "api_keys", ["account_id"], unique=False)

    op.create_table(
        "browser_sessions",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_browser_sessions_account_id_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_browser_sessions")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_browser_sessions_token_sha256")),
    )
    op.create_index(op.f("ix_browser_sessions_account_id"), "browser_sessions", ["account_id"], unique=False)

    op.create_table(
        "cases",
        sa.Column("external_id", sa.String(length=200), nullable=False),
        sa.Column("patient", sa.String(length=200), nullable=True),
        sa.Column("site", sa.String(length=200), nullable=True),
        sa.Column("case_metadata", sa.JSON(), nullable=False),
        sa.Column("image_sha256", sa.String(length=64), nullable=False),
        sa.Column("stored_sha256", sa.String(length=64), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("same_image_as", sa.Uuid(), nullable=True),
        sa.Column("partition", sa.String(length=20), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("partition IN ('calibration', 'evaluation')", name=op.f("ck_cases_partition")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_cases_created_by_accounts")),
        sa.ForeignKeyConstraint(["same_image_as"], ["cases.id"], name=op.f("fk_cases_same_image_as_cases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cases")),
        sa.UniqueConstraint("external_id", name=op.f("uq_cases_external_id")),
    )
    op.create_index(op.f("ix_cases_image_sha256"), "cases", ["image_sha256"], unique=False)
    op.create_index(op.f("ix_cases_patient"), "cases", ["patient"], unique=False)

    op.create_table(
        "idempotency_records",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_idempotency_records_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("account_id", "key", name=op.f("pk_idempotency_records")),
    )
    op.create_table(
        "labels",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("supersedes_id", sa.Uuid(), nullable=True),
        sa.Column("class_code", sa.String(length=100), nullable=True),
        sa.Column("confidence", sa.Float(precision=53), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("blind", sa.Boolean(), nullable=False),
        sa.Column("round", sa.String(length=20), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(kind = 'label') = (supersedes_id IS NULL)", name=op.f("ck_labels_chain")),
        sa.CheckConstraint("(kind = 'retraction') = (class_code IS NULL)", name=op.f("ck_labels_class_code")),
        sa.CheckConstraint("kind IN ('label', 'revision', 'retraction')", name=op.f("ck_labels_kind")),
        sa.CheckConstraint("round IN ('planned', 'adjudication')", name=op.f("ck_labels_round")),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"], name=op.f("fk_labels_annotator_id_annotators")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_labels_case_id_cases")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_labels_created_by_accounts")),
        sa.ForeignKeyConstraint(["supersedes_id"], ["labels.id"], name=op.f("fk_labels_supersedes_id_labels")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_labels")),
    )
    op.create_index(op.f("ix_labels_annotator_id"), "labels", ["annotator_id"], unique=False)
    op.create_index(op.f("ix_labels_case_id"), "labels", ["case_id"], unique=False)
    op.create_index(
        "uq_labels_first_of_annotator",
        "labels",
        ["case_id", "annotator_id"],
        unique=True,
        sqlite_where=sa.text("supersedes_id IS NULL"),
        postgresql_where=sa.text("supersedes_id IS NULL"),
    )
    op.create_index("uq_labels_supersedes_id", "labels", ["supersedes_id"], unique=True)

    op.create_table(
        "predictions",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("logits", sa.LargeBinary(), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=False),
        sa.Column("class_probs", sa.JSON(), nullable=False),
        sa.Column("log_concentration", sa.Float(precision=53), nullable=True),
        sa.Column("disagreement_prob", sa.Float(precision=53), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_predictions_case_id_cases")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_predictions_release_id_releases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_predictions")),
        sa.UniqueConstraint("case_id", "release_id", name=op.f("uq_predictions_case_id_release_id")),
    )
    op.create_index(op.f("ix_predictions_disagreement_prob"), "predictions", ["disagreement_prob"], unique=False)
    op.create_index(op.f("ix_predictions_release_id"), "predictions", ["release_id"], unique=False)

    dialect = op.get_bind().dialect.name
    op.execute(
        sa.text("INSERT INTO audit_head (id, sequence, digest) VALUES (1, 0, :digest)").bindparams(digest=GENESIS)
    )
    for table in APPEND_ONLY:
        for statement in create_plain_triggers(dialect, table):
            op.execute(statement)


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    for table in APPEND_ONLY:
        for statement in drop_plain_triggers(dialect, table):
            op.execute(statement)
    op.drop_index(op.f("ix_predictions_release_id"), table_name="predictions")
    op.drop_index(op.f("ix_predictions_disagreement_prob"), table_name="predictions")

    op.drop_table("predictions")
    op.drop_index("uq_labels_supersedes_id", table_name="labels")
    op.drop_index("uq_labels_first_of_annotator", table_name="labels")
    op.drop_index(op.f("ix_labels_case_id"), table_name="labels")
    op.drop_index(op.f("ix_labels_annotator_id"), table_name="labels")

    op.drop_table("labels")
    op.drop_table("idempotency_records")
    op.drop_index(op.f("ix_cases_patient"), table_name="cases")
    op.drop_index(op.f("ix_cases_image_sha256"), table_name="cases")

    op.drop_table("cases")
    op.drop_index(op.f("ix_browser_sessions_account_id"), table_name="browser_sessions")

    op.drop_table("browser_sessions")
    op.drop_index(op.f("ix_api_keys_account_id"), table_name="api_keys")

    op.drop_table("api_keys")
    op.drop_table("annotators")
    op.drop_table("aliases")
    op.drop_table("releases")
    op.drop_table("audit_head")
    op.drop_index(op.f("ix_audit_events_object"), table_name="audit_events")

    op.drop_table("audit_events")
    op.drop_table("accounts")
