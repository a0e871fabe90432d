"""Make every table, with its triggers, its first policy and the head of the audit chain.

Until 0.2.0 is tagged, a change of the tables edits this migration and gives it another revision, so that a database of
before is refused and not taken for a current one.
"""

import uuid
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from app.audit.chain.events import GENESIS
from app.database.tables.append_only import APPEND_ONLY, create_replace_trigger, create_triggers, drop_triggers

revision = "20261126"
down_revision = None
branch_labels = None
depends_on = None

# in the order in which they refer to each other
_TABLES = (
    "accounts",
    "audit_events",
    "audit_head",
    "erasures",
    "installation",
    "releases",
    "aliases",
    "annotators",
    "answer_sets",
    "api_keys",
    "browser_sessions",
    "cases",
    "class_definitions",
    "idempotency_records",
    "jobs",
    "policies",
    "practice_sets",
    "published_estimates",
    "published_reports",
    "reader_models",
    "report_targets",
    "case_changes",
    "case_twins",
    "daily_thresholds",
    "evaluations",
    "held_back",
    "import_rows",
    "job_batches",
    "labels",
    "looks",
    "network_outputs",
    "practice_cells",
    "practice_runs",
    "predictions",
    "reader_model_in_use",
    "reference_cells",
    "remarks",
    "exposures",
    "practice_items",
    "qualifications",
    "read_requests",
    "repeats",
    "practice_answers",
    "reader_draws",
    "reads",
    "provisional_labels",
    "workers",
)
# keys of the append-only tables: by them SQLite would replace a row without asking a trigger of DELETE
_KEYS = {
    "labels": (
        "id = NEW.id",
        "supersedes_id = NEW.supersedes_id",
        "NEW.supersedes_id IS NULL AND supersedes_id IS NULL AND case_id = NEW.case_id "
        "AND annotator_id = NEW.annotator_id AND purpose = NEW.purpose",
    ),
    "predictions": ("id = NEW.id", "case_id = NEW.case_id AND release_id = NEW.release_id"),
    "audit_events": ("sequence = NEW.sequence",),
    "policies": ("id = NEW.id", "version = NEW.version"),
    "looks": (
        "id = NEW.id",
        "case_id = NEW.case_id AND policy_version = NEW.policy_version AND release_id = NEW.release_id",
    ),
    "exposures": ("id = NEW.id", "case_id = NEW.case_id AND annotator_id = NEW.annotator_id"),
    "case_changes": ("sequence = NEW.sequence AND case_id = NEW.case_id",),
    "installation": ("id = NEW.id",),
    "held_back": ("id = NEW.id", "annotator_id = NEW.annotator_id AND case_id = NEW.case_id"),
    "reader_draws": ("id = NEW.id", "request_id = NEW.request_id AND position = NEW.position"),
    "practice_cells": ("id = NEW.id", "set_id = NEW.set_id AND case_id = NEW.case_id"),
    "practice_items": ("id = NEW.id", "run_id = NEW.run_id AND position = NEW.position"),
    "practice_answers": ("id = NEW.id", "item_id = NEW.item_id"),
    "qualifications": ("id = NEW.id", "run_id = NEW.run_id"),
    "report_targets": ("id = NEW.id", "version = NEW.version"),
    "reference_cells": ("id = NEW.id", "class_code = NEW.class_code AND case_id = NEW.case_id AND number = NEW.number"),
    "class_definitions": ("id = NEW.id", "class_code = NEW.class_code AND number = NEW.number"),
}
# what PostgreSQL must keep no statistics of, since they would outlive a patient who is erased
_NO_STATISTICS = {
    "audit_events": ("reason",),
    "cases": (
        "external_id",
        "patient",
        "image_sha256",
        "stored_sha256",
        "u",
        "image_hash",
        "digest_key",
        "pixels_sha256",
        "field_sha256",
        "stored_field_sha256",
        "field_pixels_sha256",
    ),
    "idempotency_records": (
        "key",
        "request_sha256",
    ),
    "import_rows": (
        "external_id",
        "detail",
        "patient",
        "digest_key",
    ),
    "network_outputs": (
        "logits",
        "features",
        "digest_key",
        "appearance",
    ),
    "read_requests": ("u",),
    "remarks": (
        "note",
        "reason",
        "digest_key",
    ),
}


def upgrade() -> None:
    _create_tables()
    dialect = op.get_bind().dialect.name
    if dialect == "postgresql":
        for table, columns in _NO_STATISTICS.items():
            for column in columns:
                op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
    _insert_first_rows()
    for table in APPEND_ONLY:
        for statement in create_triggers(dialect, table):
            op.execute(statement)
        if dialect == "sqlite":
            op.execute(create_replace_trigger(table, _KEYS[table]))


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    for table in APPEND_ONLY:
        for statement in drop_triggers(dialect, table):
            op.execute(statement)
    op.execute("DROP VIEW counted_labels")
    for table in reversed(_TABLES):
        op.drop_table(table)
    if dialect == "postgresql":
        op.execute("DROP SCHEMA dbos CASCADE")


def _insert_first_rows() -> None:
    head = sa.text("INSERT INTO audit_head (id, sequence, digest) VALUES (1, 0, :digest)")
    op.execute(head.bindparams(digest=GENESIS))
    policy = {
        "id": uuid.uuid4(),
        "created_at": datetime.now(UTC),
        "version": 1,
        "rule": "disagreement",
        "threshold": 0.20,
        "audit_rate": 0.10,
        "target_error": 0.02,
        "adjudicate_below": 0.90,
        "max_labels": 5,
        "reveal": "after_case_closed",
        "lease_seconds": 600,
        "due_days": 7,
        "repeat_rate": 0.0,
        "draw_readers": False,
        "require_qualification": False,
        "reason": "the first policy, made with the database",
    }
    types = {"id": sa.Uuid(), "created_at": sa.DateTime(timezone=True)}
    op.bulk_insert(sa.table("policies", *(sa.column(name, types.get(name)) for name in policy)), [policy])


def _create_tables() -> None:
    op.create_table(
        "accounts",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("one_time_sha256", sa.String(length=64), nullable=True),
        sa.Column("password_hash", sa.String(length=200), nullable=True),
        sa.Column("oidc_subject", sa.String(length=500), nullable=True),
        sa.Column("language", sa.String(length=10), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('viewer', 'annotator', 'admin', 'service')", name=op.f("ck_accounts_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_index(op.f("ix_accounts_oidc_subject"), "accounts", ["oidc_subject"], unique=True)

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
        sa.Column("row_digests", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_audit_events")),
    )
    op.create_index(op.f("ix_audit_events_object"), "audit_events", ["object"])

    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("n_keys", sa.Integer(), server_default="1", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "erasures",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cases", sa.JSON(), nullable=False),
        sa.Column("import_rows", sa.JSON(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_erasures")),
    )
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key_check", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_installation")),
    )
    op.create_table(
        "workers",
        sa.Column("executor_id", sa.String(length=100), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("executor_id", name=op.f("pk_workers")),
    )
    op.create_table(
        "releases",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("card_sha256", sa.String(length=64), nullable=False),
        sa.Column("card", sa.JSON(), nullable=False),
        sa.Column("gate", sa.String(length=20), server_default="not_judged", nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("gate IN ('passed', 'refused', 'not_judged')", name=op.f("ck_releases_gate")),
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
        "answer_sets",
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("basis", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_answer_sets_release_id_releases")),
        sa.PrimaryKeyConstraint("release_id", name=op.f("pk_answer_sets")),
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
    op.create_index(op.f("ix_api_keys_account_id"), "api_keys", ["account_id"])

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
    op.create_index(op.f("ix_browser_sessions_account_id"), "browser_sessions", ["account_id"])

    op.create_table(
        "cases",
        sa.Column("external_id", sa.String(length=200), nullable=False),
        sa.Column("patient", sa.String(length=200), nullable=True),
        sa.Column("site", sa.String(length=200), nullable=True),
        sa.Column("case_metadata", sa.JSON(), nullable=False),
        sa.Column("image_sha256", sa.String(length=64), nullable=False),
        sa.Column("stored_sha256", sa.String(length=64), nullable=False),
        sa.Column("field_sha256", sa.String(length=64), nullable=True),
        sa.Column("stored_field_sha256", sa.String(length=64), nullable=True),
        sa.Column("pixels_sha256", sa.String(length=64), nullable=True),
        sa.Column("field_pixels_sha256", sa.String(length=64), nullable=True),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("same_image_as", sa.Uuid(), nullable=True),
        sa.Column("partition", sa.String(length=20), nullable=False),
        sa.Column("u", sa.Float(precision=53), nullable=False),
        sa.Column("pi", sa.Float(precision=53), nullable=False),
        sa.Column("need", sa.Float(precision=53), server_default="1", nullable=False),
        sa.Column("waiting", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("twin_selected", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("image_hash", sa.BigInteger(), nullable=True),
        sa.Column("stain", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("digest_key", sa.LargeBinary(length=32), nullable=False),
        sa.CheckConstraint("partition IN ('calibration', 'evaluation')", name=op.f("ck_cases_partition")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_cases_created_by_accounts")),
        sa.ForeignKeyConstraint(["same_image_as"], ["cases.id"], name=op.f("fk_cases_same_image_as_cases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cases")),
        sa.UniqueConstraint("external_id", name=op.f("uq_cases_external_id")),
    )
    op.create_index(op.f("ix_cases_field_pixels_sha256"), "cases", ["field_pixels_sha256"])
    op.create_index(op.f("ix_cases_image_sha256"), "cases", ["image_sha256"])
    op.create_index("ix_cases_partition_id", "cases", ["partition", "id"])
    op.create_index("ix_cases_patient_id", "cases", ["patient", "id"])
    op.create_index(op.f("ix_cases_pixels_sha256"), "cases", ["pixels_sha256"])
    op.create_index("ix_cases_site_id", "cases", ["site", "id"])
    op.create_index(op.f("ix_cases_stored_field_sha256"), "cases", ["stored_field_sha256"])
    op.create_index(op.f("ix_cases_stored_sha256"), "cases", ["stored_sha256"])
    op.create_index("ix_cases_worklist", "cases", ["waiting", "need", "id"])

    op.create_table(
        "class_definitions",
        sa.Column("class_code", sa.String(length=100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_class_definitions_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_class_definitions")),
        sa.UniqueConstraint("class_code", "number", name=op.f("uq_class_definitions_class_code_number")),
    )
    op.create_table(
        "idempotency_records",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_idempotency_records_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("account_id", "key", name=op.f("pk_idempotency_records")),
    )
    op.create_index(op.f("ix_idempotency_records_case_id"), "idempotency_records", ["case_id"])
    op.create_index(op.f("ix_idempotency_records_created_at"), "idempotency_records", ["created_at"])

    op.create_table(
        "jobs",
        sa.Column("kind", sa.String(length=30), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("begun", sa.Integer(), nullable=False),
        sa.Column("executor_id", sa.String(length=100), nullable=True),
        sa.Column("traceparent", sa.String(length=100), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_by", sa.String(length=200), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("progress", sa.Float(precision=53), nullable=False),
        sa.Column("message", sa.String(length=500), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_jobs_created_by_accounts")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_jobs_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_open",
        "jobs",
        ["state"],
        postgresql_where=sa.text("state IN ('queued', 'running')"),
        sqlite_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_table(
        "policies",
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("rule", sa.String(length=20), nullable=False),
        sa.Column("threshold", sa.Float(precision=53), nullable=True),
        sa.Column("capacity_per_day", sa.Integer(), nullable=True),
        sa.Column("audit_rate", sa.Float(precision=53), nullable=False),
        sa.Column("target_error", sa.Float(precision=53), nullable=False),
        sa.Column("adjudicate_below", sa.Float(precision=53), nullable=True),
        sa.Column("max_labels", sa.Integer(), nullable=False),
        sa.Column("reveal", sa.String(length=20), nullable=False),
        sa.Column("lease_seconds", sa.Integer(), nullable=False),
        sa.Column("due_days", sa.Integer(), nullable=False),
        sa.Column("repeat_rate", sa.Float(precision=53), nullable=False),
        sa.Column("draw_readers", sa.Boolean(), nullable=False),
        sa.Column("require_qualification", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("reveal IN ('after_commit', 'after_case_closed', 'never')", name=op.f("ck_policies_reveal")),
        sa.CheckConstraint(
            "rule IN ('disagreement', 'expected_gain', 'capacity', 'graded')", name=op.f("ck_policies_rule")
        ),
        sa.CheckConstraint("audit_rate > 0 AND audit_rate <= 1", name=op.f("ck_policies_audit_rate")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_policies_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policies")),
        sa.UniqueConstraint("version", name=op.f("uq_policies_version")),
    )
    op.create_table(
        "practice_sets",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("purpose", sa.String(length=20), nullable=False),
        sa.Column("n_per_run", sa.Integer(), nullable=False),
        sa.Column("min_labels", sa.Integer(), nullable=False),
        sa.Column("borderline_share", sa.Float(precision=53), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("purpose IN ('training', 'qualification')", name=op.f("ck_practice_sets_purpose")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_practice_sets_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_practice_sets")),
        sa.UniqueConstraint("name", name=op.f("uq_practice_sets_name")),
    )
    op.create_table(
        "published_estimates",
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("estimates", sa.JSON(), nullable=False),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("basis", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(
            ["release_id"], ["releases.id"], name=op.f("fk_published_estimates_release_id_releases")
        ),
        sa.PrimaryKeyConstraint("release_id", name=op.f("pk_published_estimates")),
    )
    op.create_table(
        "published_reports",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=True),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("seconds", sa.Float(precision=53), nullable=True),
        sa.Column("basis", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_published_reports_release_id_releases")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_published_reports")),
    )
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
        "report_targets",
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("disagreement_gap", sa.Float(precision=53), nullable=False),
        sa.Column("leading_gap", sa.Float(precision=53), nullable=False),
        sa.Column("caught", sa.Float(precision=53), nullable=False),
        sa.Column("agreement", sa.Float(precision=53), nullable=False),
        sa.Column("hours", sa.Float(precision=53), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_report_targets_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_report_targets")),
        sa.UniqueConstraint("version", name=op.f("uq_report_targets_version")),
    )
    op.create_table(
        "case_changes",
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["sequence"], ["audit_events.sequence"], name=op.f("fk_case_changes_sequence_audit_events")
        ),
        sa.PrimaryKeyConstraint("sequence", "case_id", name=op.f("pk_case_changes")),
    )
    op.create_table(
        "case_twins",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("twin_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_case_twins_case_id_cases")),
        sa.ForeignKeyConstraint(["twin_id"], ["cases.id"], name=op.f("fk_case_twins_twin_id_cases")),
        sa.PrimaryKeyConstraint("case_id", "twin_id", name=op.f("pk_case_twins")),
    )
    op.create_table(
        "daily_thresholds",
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("threshold", sa.Float(precision=53), nullable=True),
        sa.Column("n_cases", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["policy_version"], ["policies.version"], name=op.f("fk_daily_thresholds_policy_version_policies")
        ),
        sa.PrimaryKeyConstraint("policy_version", "day", name=op.f("pk_daily_thresholds")),
    )
    op.create_table(
        "evaluations",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("snapshot_sha256", sa.String(length=64), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_evaluations_job_id_jobs")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_evaluations_release_id_releases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("job_id", name=op.f("uq_evaluations_job_id")),
    )
    op.create_table(
        "held_back",
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"], name=op.f("fk_held_back_annotator_id_annotators")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_held_back_case_id_cases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_held_back")),
        sa.UniqueConstraint("annotator_id", "case_id", name=op.f("uq_held_back_annotator_id_case_id")),
    )
    op.create_table(
        "import_rows",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("row", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("external_id", sa.String(length=200), nullable=False),
        sa.Column("patient", sa.String(length=200), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("digest_key", sa.LargeBinary(length=32), nullable=False),
        sa.CheckConstraint("status IN ('created', 'known', 'failed', 'ignored')", name=op.f("ck_import_rows_status")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_import_rows_case_id_cases")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_import_rows_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "row", name=op.f("pk_import_rows")),
    )
    op.create_table(
        "job_batches",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_batches_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_job_batches")),
    )
    op.create_table(
        "labels",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("purpose", sa.String(length=10), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("supersedes_id", sa.Uuid(), nullable=True),
        sa.Column("position", sa.Integer(), server_default="0", nullable=False),
        sa.Column("class_code", sa.String(length=100), nullable=True),
        sa.Column("confidence", sa.Float(precision=53), nullable=True),
        sa.Column("second_choice", sa.String(length=100), nullable=True),
        sa.Column("flagged", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("blind", sa.Boolean(), nullable=False),
        sa.Column("round", sa.String(length=20), nullable=False),
        sa.Column("late", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("post_reveal", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("reading_seconds", sa.Float(precision=53), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(kind = 'label') = (supersedes_id IS NULL)", name=op.f("ck_labels_chain")),
        sa.CheckConstraint("(kind = 'retraction') = (class_code IS NULL)", name=op.f("ck_labels_class_code")),
        sa.CheckConstraint("kind IN ('label', 'correction', 'revision', 'retraction')", name=op.f("ck_labels_kind")),
        sa.CheckConstraint("purpose IN ('read', 'repeat')", name=op.f("ck_labels_purpose")),
        sa.CheckConstraint("round IN ('planned', 'adjudication')", name=op.f("ck_labels_round")),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"], name=op.f("fk_labels_annotator_id_annotators")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_labels_case_id_cases")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_labels_created_by_accounts")),
        sa.ForeignKeyConstraint(["supersedes_id"], ["labels.id"], name=op.f("fk_labels_supersedes_id_labels")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_labels")),
    )
    op.create_index(op.f("ix_labels_annotator_id"), "labels", ["annotator_id"])
    op.create_index(op.f("ix_labels_case_id"), "labels", ["case_id"])
    op.create_index(
        "uq_labels_first_of_annotator",
        "labels",
        ["case_id", "annotator_id", "purpose"],
        unique=True,
        sqlite_where=sa.text("supersedes_id IS NULL"),
        postgresql_where=sa.text("supersedes_id IS NULL"),
    )
    op.create_index("uq_labels_supersedes_id", "labels", ["supersedes_id"], unique=True)
    op.execute("CREATE VIEW counted_labels AS SELECT * FROM labels WHERE purpose = 'read'")

    op.create_table(
        "looks",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("selected", sa.Boolean(), nullable=False),
        sa.Column("pi", sa.Float(precision=53), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_looks_case_id_cases")),
        sa.ForeignKeyConstraint(
            ["policy_version"], ["policies.version"], name=op.f("fk_looks_policy_version_policies")
        ),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_looks_release_id_releases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_looks")),
        sa.UniqueConstraint(
            "case_id", "policy_version", "release_id", name=op.f("uq_looks_case_id_policy_version_release_id")
        ),
    )
    op.create_table(
        "network_outputs",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("network_sha256", sa.String(length=64), nullable=False),
        sa.Column("logits", sa.LargeBinary(), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=False),
        sa.Column("appearance", sa.LargeBinary(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("digest_key", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_network_outputs_case_id_cases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_network_outputs")),
        sa.UniqueConstraint("case_id", "network_sha256", name=op.f("uq_network_outputs_case_id_network_sha256")),
    )
    op.create_index(op.f("ix_network_outputs_network_sha256"), "network_outputs", ["network_sha256"])

    op.create_table(
        "practice_cells",
        sa.Column("set_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_practice_cells_case_id_cases")),
        sa.ForeignKeyConstraint(["set_id"], ["practice_sets.id"], name=op.f("fk_practice_cells_set_id_practice_sets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_practice_cells")),
        sa.UniqueConstraint("set_id", "case_id", name=op.f("uq_practice_cells_set_id_case_id")),
    )
    op.create_index(op.f("ix_practice_cells_case_id"), "practice_cells", ["case_id"])

    op.create_table(
        "practice_runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("set_id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("passed", sa.Boolean(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('open', 'finished')", name=op.f("ck_practice_runs_state")),
        sa.ForeignKeyConstraint(
            ["annotator_id"], ["annotators.id"], name=op.f("fk_practice_runs_annotator_id_annotators")
        ),
        sa.ForeignKeyConstraint(["set_id"], ["practice_sets.id"], name=op.f("fk_practice_runs_set_id_practice_sets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_practice_runs")),
    )
    op.create_index("ix_practice_runs_annotator_id", "practice_runs", ["annotator_id"])
    op.create_index(
        "uq_practice_runs_open",
        "practice_runs",
        ["set_id", "annotator_id"],
        unique=True,
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )

    op.create_table(
        "predictions",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("class_probs", sa.JSON(), nullable=False),
        sa.Column("log_concentration", sa.Float(precision=53), nullable=True),
        sa.Column("disagreement_prob", sa.Float(precision=53), nullable=False),
        sa.Column("members", sa.LargeBinary(), nullable=True),
        sa.Column("out_of_distribution", sa.Boolean(), nullable=True),
        sa.Column("trained_on", sa.String(length=11), nullable=True),
        sa.Column("unlike_reasons", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("unlike_distance", sa.Float(precision=53), nullable=True),
        sa.Column("unlike_percentile", sa.Float(precision=53), nullable=True),
        sa.Column("feature_distance", sa.Float(precision=53), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_predictions_case_id_cases")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_predictions_release_id_releases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_predictions")),
        sa.UniqueConstraint("case_id", "release_id", name=op.f("uq_predictions_case_id_release_id")),
    )
    op.create_index(op.f("ix_predictions_disagreement_prob"), "predictions", ["disagreement_prob"])
    op.create_index(op.f("ix_predictions_release_id"), "predictions", ["release_id"])

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
    op.create_table(
        "reference_cells",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("class_code", sa.String(length=100), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("n_readers", sa.Integer(), nullable=False),
        sa.Column("n_same", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('chosen', 'pinned', 'dropped', 'excluded')", name=op.f("ck_reference_cells_kind")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_reference_cells_case_id_cases")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_reference_cells_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reference_cells")),
        sa.UniqueConstraint(
            "class_code", "case_id", "number", name=op.f("uq_reference_cells_class_code_case_id_number")
        ),
    )
    op.create_index(op.f("ix_reference_cells_case_id"), "reference_cells", ["case_id"])

    op.create_table(
        "remarks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("digest_key", sa.LargeBinary(length=32), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_remarks_case_id_cases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_remarks")),
    )
    op.create_index(op.f("ix_remarks_case_id"), "remarks", ["case_id"])

    op.create_table(
        "exposures",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=False),
        sa.Column("label_id", sa.Uuid(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"], name=op.f("fk_exposures_annotator_id_annotators")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_exposures_case_id_cases")),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_exposures_label_id_labels")),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_exposures_release_id_releases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_exposures")),
        sa.UniqueConstraint("case_id", "annotator_id", name=op.f("uq_exposures_case_id_annotator_id")),
    )
    op.create_table(
        "practice_items",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["annotator_id"], ["annotators.id"], name=op.f("fk_practice_items_annotator_id_annotators")
        ),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_practice_items_case_id_cases")),
        sa.ForeignKeyConstraint(["run_id"], ["practice_runs.id"], name=op.f("fk_practice_items_run_id_practice_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_practice_items")),
        sa.UniqueConstraint("run_id", "position", name=op.f("uq_practice_items_run_id_position")),
    )
    op.create_index("ix_practice_items_case_id_annotator_id", "practice_items", ["case_id", "annotator_id"])

    op.create_table(
        "qualifications",
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(kind = 'passed') = (run_id IS NOT NULL)", name=op.f("ck_qualifications_run_id")),
        sa.CheckConstraint(
            "kind IN ('passed', 'qualified', 'withdrawn', 'renewed')", name=op.f("ck_qualifications_kind")
        ),
        sa.ForeignKeyConstraint(
            ["annotator_id"], ["annotators.id"], name=op.f("fk_qualifications_annotator_id_annotators")
        ),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_qualifications_created_by_accounts")),
        sa.ForeignKeyConstraint(["run_id"], ["practice_runs.id"], name=op.f("fk_qualifications_run_id_practice_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_qualifications")),
        sa.UniqueConstraint("run_id", name=op.f("uq_qualifications_run_id")),
    )
    op.create_index(op.f("ix_qualifications_annotator_id"), "qualifications", ["annotator_id"])

    op.create_table(
        "read_requests",
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("round", sa.String(length=20), nullable=False),
        sa.Column("arm", sa.String(length=20), nullable=False),
        sa.Column("u", sa.Float(precision=53), nullable=False),
        sa.Column("pi", sa.Float(precision=53), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_on", sa.String(length=10), nullable=False),
        sa.Column("shuffle", sa.Integer(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("label_id", sa.Uuid(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("arm IN ('first', 'triage', 'audit', 'adjudication')", name=op.f("ck_read_requests_arm")),
        sa.CheckConstraint("round IN ('planned', 'adjudication')", name=op.f("ck_read_requests_round")),
        sa.CheckConstraint("state IN ('open', 'leased', 'answered', 'closed')", name=op.f("ck_read_requests_state")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_read_requests_case_id_cases")),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_read_requests_label_id_labels")),
        sa.ForeignKeyConstraint(
            ["policy_version"], ["policies.version"], name=op.f("fk_read_requests_policy_version_policies")
        ),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_read_requests_release_id_releases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_read_requests")),
        sa.UniqueConstraint("case_id", "ordinal", name=op.f("uq_read_requests_case_id_ordinal")),
        sa.UniqueConstraint("label_id", name=op.f("uq_read_requests_label_id")),
    )
    op.create_index("ix_read_requests_annotator_id_state", "read_requests", ["annotator_id", "state"])
    op.create_index(op.f("ix_read_requests_lease_expires_at"), "read_requests", ["lease_expires_at"])
    op.create_index("ix_read_requests_queue", "read_requests", ["state", "due_on", "shuffle"])

    op.create_table(
        "repeats",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("label_id", sa.Uuid(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("in_place_of", sa.Uuid(), nullable=False),
        sa.Column("back_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_on", sa.String(length=10), nullable=False),
        sa.Column("shuffle", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('open', 'leased', 'answered', 'closed')", name=op.f("ck_repeats_state")),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"], name=op.f("fk_repeats_annotator_id_annotators")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_repeats_case_id_cases")),
        sa.ForeignKeyConstraint(["in_place_of"], ["cases.id"], name=op.f("fk_repeats_in_place_of_cases")),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_repeats_label_id_labels")),
        sa.ForeignKeyConstraint(
            ["policy_version"], ["policies.version"], name=op.f("fk_repeats_policy_version_policies")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repeats")),
        sa.UniqueConstraint("annotator_id", "case_id", name=op.f("uq_repeats_annotator_id_case_id")),
    )
    op.create_index(op.f("ix_repeats_case_id"), "repeats", ["case_id"])
    op.create_index(op.f("ix_repeats_lease_expires_at"), "repeats", ["lease_expires_at"])

    op.create_table(
        "practice_answers",
        sa.Column("item_id", sa.Uuid(), nullable=False),
        sa.Column("class_code", sa.String(length=100), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["item_id"], ["practice_items.id"], name=op.f("fk_practice_answers_item_id_practice_items")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_practice_answers")),
        sa.UniqueConstraint("item_id", name=op.f("uq_practice_answers_item_id")),
    )
    op.create_table(
        "reader_draws",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("probability", sa.Float(precision=53), nullable=True),
        sa.Column("among", sa.JSON(), nullable=False),
        sa.Column("gain", sa.Float(precision=53), nullable=True),
        sa.Column("load", sa.Integer(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "probability IS NULL OR (probability >= 0.1 AND probability <= 1)", name=op.f("ck_reader_draws_probability")
        ),
        sa.ForeignKeyConstraint(
            ["annotator_id"], ["annotators.id"], name=op.f("fk_reader_draws_annotator_id_annotators")
        ),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_reader_draws_case_id_cases")),
        sa.ForeignKeyConstraint(
            ["request_id"], ["read_requests.id"], name=op.f("fk_reader_draws_request_id_read_requests")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reader_draws")),
        sa.UniqueConstraint("request_id", "position", name=op.f("uq_reader_draws_request_id_position")),
    )
    op.create_index(op.f("ix_reader_draws_case_id"), "reader_draws", ["case_id"])

    op.create_table(
        "reads",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=True),
        sa.Column("repeat_id", sa.Uuid(), nullable=True),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("displayed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("decline_reason", sa.String(length=20), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(request_id IS NULL) <> (repeat_id IS NULL)", name=op.f("ck_reads_one_request")),
        sa.CheckConstraint(
            "state IN ('leased', 'committed', 'declined', 'released', 'expired')", name=op.f("ck_reads_state")
        ),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"], name=op.f("fk_reads_annotator_id_annotators")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_reads_case_id_cases")),
        sa.ForeignKeyConstraint(["repeat_id"], ["repeats.id"], name=op.f("fk_reads_repeat_id_repeats")),
        sa.ForeignKeyConstraint(["request_id"], ["read_requests.id"], name=op.f("fk_reads_request_id_read_requests")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reads")),
    )
    op.create_index("ix_reads_annotator_id_state", "reads", ["annotator_id", "state"])
    op.create_index(op.f("ix_reads_case_id"), "reads", ["case_id"])
    op.create_index(op.f("ix_reads_request_id"), "reads", ["request_id"])
    op.create_index(
        "uq_reads_lease",
        "reads",
        ["request_id"],
        unique=True,
        sqlite_where=sa.text("state = 'leased'"),
        postgresql_where=sa.text("state = 'leased'"),
    )
    op.create_index(
        "uq_reads_once",
        "reads",
        ["case_id", "annotator_id"],
        unique=True,
        sqlite_where=sa.text("state IN ('leased', 'committed') AND repeat_id IS NULL"),
        postgresql_where=sa.text("state IN ('leased', 'committed') AND repeat_id IS NULL"),
    )
    op.create_index(
        "uq_reads_repeated_once",
        "reads",
        ["repeat_id"],
        unique=True,
        sqlite_where=sa.text("state IN ('leased', 'committed')"),
        postgresql_where=sa.text("state IN ('leased', 'committed')"),
    )

    op.create_table(
        "provisional_labels",
        sa.Column("label_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("purpose", sa.String(length=10), nullable=False),
        sa.Column("read_id", sa.Uuid(), nullable=False),
        sa.Column("final_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("n_since", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["annotator_id"], ["annotators.id"], name=op.f("fk_provisional_labels_annotator_id_annotators")
        ),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_provisional_labels_case_id_cases")),
        sa.ForeignKeyConstraint(["label_id"], ["labels.id"], name=op.f("fk_provisional_labels_label_id_labels")),
        sa.ForeignKeyConstraint(["read_id"], ["reads.id"], name=op.f("fk_provisional_labels_read_id_reads")),
        sa.PrimaryKeyConstraint("label_id", name=op.f("pk_provisional_labels")),
        sa.UniqueConstraint("read_id", name=op.f("uq_provisional_labels_read_id")),
    )
    op.create_index(op.f("ix_provisional_labels_annotator_id"), "provisional_labels", ["annotator_id"])
    op.create_index(op.f("ix_provisional_labels_case_id"), "provisional_labels", ["case_id"])
    op.create_index(op.f("ix_provisional_labels_final_at"), "provisional_labels", ["final_at"])
