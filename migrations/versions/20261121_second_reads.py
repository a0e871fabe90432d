"""Second reads: policies, requests, leases and exposures; jobs, imports and frozen evaluations; passwords.

What a network made of an image moves from the predictions to a table of its own, because several releases share
one network. Cases that are here already get a coin of their own; their reads are planned by `secondread db upgrade`.
"""

import random
import uuid
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from app.tables.append_only import create_triggers, drop_triggers

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_APPEND_ONLY = ("policies", "looks", "exposures")


def upgrade() -> None:
    _create_tables()
    _change_tables()
    _move_outputs()
    dialect = op.get_bind().dialect.name
    for table in _APPEND_ONLY:
        for statement in create_triggers(dialect, table):
            op.execute(statement)


def _create_tables() -> None:
    op.create_table(
        "jobs",
        sa.Column("kind", sa.String(length=30), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("progress", sa.Float(precision=53), nullable=False),
        sa.Column("message", sa.String(length=500), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_jobs_state")
        ),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_jobs_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"], unique=False)
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
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("reveal IN ('after_commit', 'after_case_closed', 'never')", name=op.f("ck_policies_reveal")),
        sa.CheckConstraint("rule IN ('disagreement', 'expected_gain', 'capacity')", name=op.f("ck_policies_rule")),
        sa.CheckConstraint("audit_rate > 0 AND audit_rate <= 1", name=op.f("ck_policies_audit_rate")),
        sa.ForeignKeyConstraint(["created_by"], ["accounts.id"], name=op.f("fk_policies_created_by_accounts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policies")),
        sa.UniqueConstraint("version", name=op.f("uq_policies_version")),
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
        "import_rows",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("row", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("external_id", sa.String(length=200), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.CheckConstraint("status IN ('created', 'known', 'failed')", name=op.f("ck_import_rows_status")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_import_rows_case_id_cases")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_import_rows_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "row", name=op.f("pk_import_rows")),
    )
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
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_network_outputs_case_id_cases")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_network_outputs")),
        sa.UniqueConstraint("case_id", "network_sha256", name=op.f("uq_network_outputs_case_id_network_sha256")),
    )
    op.create_index(op.f("ix_network_outputs_network_sha256"), "network_outputs", ["network_sha256"], unique=False)
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
    op.create_index(op.f("ix_read_requests_lease_expires_at"), "read_requests", ["lease_expires_at"], unique=False)
    op.create_index("ix_read_requests_queue", "read_requests", ["state", "due_on", "shuffle"], unique=False)
    op.create_table(
        "reads",
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("annotator_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("decline_reason", sa.String(length=20), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('leased', 'committed', 'declined', 'released', 'expired')", name=op.f("ck_reads_state")
        ),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"], name=op.f("fk_reads_annotator_id_annotators")),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name=op.f("fk_reads_case_id_cases")),
        sa.ForeignKeyConstraint(["request_id"], ["read_requests.id"], name=op.f("fk_reads_request_id_read_requests")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reads")),
    )
    op.create_index("ix_reads_annotator_id_state", "reads", ["annotator_id", "state"], unique=False)
    op.create_index(op.f("ix_reads_case_id"), "reads", ["case_id"], unique=False)
    op.create_index(op.f("ix_reads_request_id"), "reads", ["request_id"], unique=False)
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
        sqlite_where=sa.text("state IN ('leased', 'committed')"),
        postgresql_where=sa.text("state IN ('leased', 'committed')"),
    )


def _change_tables() -> None:
    op.add_column("accounts", sa.Column("password_hash", sa.String(length=200), nullable=True))
    op.add_column("accounts", sa.Column("failed_sign_ins", sa.Integer(), server_default="0", nullable=False))
    op.add_column("accounts", sa.Column("locked_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column("accounts", sa.Column("oidc_subject", sa.String(length=500), nullable=True))
    op.create_index(op.f("ix_accounts_oidc_subject"), "accounts", ["oidc_subject"], unique=True)
    op.add_column("cases", sa.Column("u", sa.Float(precision=53), server_default="0", nullable=False))
    op.add_column("cases", sa.Column("pi", sa.Float(precision=53), server_default="0", nullable=False))
    op.add_column("cases", sa.Column("need", sa.Float(precision=53), server_default="1", nullable=False))
    op.add_column("cases", sa.Column("waiting", sa.Boolean(), server_default=sa.true(), nullable=False))
    op.add_column("cases", sa.Column("image_hash", sa.BigInteger(), nullable=True))
    op.add_column("cases", sa.Column("stain", sa.JSON(), nullable=True))
    op.add_column("cases", sa.Column("erased_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_index(op.f("ix_cases_patient"), table_name="cases")
    op.create_index("ix_cases_partition_id", "cases", ["partition", "id"], unique=False)
    op.create_index("ix_cases_patient_id", "cases", ["patient", "id"], unique=False)
    op.create_index("ix_cases_site_id", "cases", ["site", "id"], unique=False)
    op.create_index("ix_cases_worklist", "cases", ["waiting", "need", "id"], unique=False)
    op.add_column("labels", sa.Column("position", sa.Integer(), server_default="0", nullable=False))
    op.add_column("labels", sa.Column("post_reveal", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("labels", sa.Column("reason", sa.Text(), nullable=True))
    op.add_column("labels", sa.Column("reading_seconds", sa.Float(precision=53), nullable=True))
    op.add_column(
        "predictions", sa.Column("out_of_distribution", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    cases = sa.table("cases", sa.column("id", sa.Uuid()), sa.column("u", sa.Float()))
    bind, coin = op.get_bind(), random.SystemRandom()
    for (case_id,) in bind.execute(sa.select(cases.c.id)).all():
        bind.execute(sa.update(cases).where(cases.c.id == case_id).values(u=coin.random()))
    op.execute(
        "UPDATE cases SET need = COALESCE((SELECT p.disagreement_prob FROM predictions p "
        "WHERE p.case_id = cases.id ORDER BY p.id DESC LIMIT 1), need)"
    )
    op.bulk_insert(
        sa.table(
            "policies",
            sa.column("id", sa.Uuid()),
            sa.column("created_at", sa.DateTime(timezone=True)),
            *[
                sa.column(name)
                for name in (
                    "version",
                    "rule",
                    "threshold",
                    "audit_rate",
                    "target_error",
                    "adjudicate_below",
                    "max_labels",
                    "reveal",
                    "lease_seconds",
                    "due_days",
                    "reason",
                )
            ],
        ),
        [
            {
                "id": uuid.uuid4(),
                "created_at": datetime.now(UTC),
                "version": 1,
                "rule": "disagreement",
                "threshold": 0.20,
                "audit_rate": 0.10,
                "target_error": 0.02,
                "adjudicate_below": 0.90,
                "max_labels": 5,
                "reveal": "after_case_closed",  # 0.1.0: after_commit, which its databases keep
                "lease_seconds": 600,
                "due_days": 7,
                "reason": "the first policy, made with the database",
            }
        ],
    )


def _move_outputs() -> None:
    bind = op.get_bind()
    releases = sa.table("releases", sa.column("id", sa.Uuid()), sa.column("card", sa.JSON()))
    insert = sa.text(
        "INSERT INTO network_outputs (id, created_at, case_id, network_sha256, logits, features) "
        "SELECT p.id, p.created_at, p.case_id, :network, p.logits, p.features FROM predictions p "
        "WHERE p.release_id = :release ON CONFLICT DO NOTHING"
    ).bindparams(sa.bindparam("release", type_=sa.Uuid()))
    for release_id, card in bind.execute(sa.select(releases.c.id, releases.c.card).order_by(releases.c.id)).all():
        bind.execute(insert, {"network": card["files"]["network.onnx"], "release": release_id})
    op.drop_column("predictions", "logits")
    op.drop_column("predictions", "features")


def downgrade() -> None:
    bind = op.get_bind()
    for table in _APPEND_ONLY:
        for statement in drop_triggers(bind.dialect.name, table):
            op.execute(statement)
    _return_outputs()
    op.drop_column("predictions", "out_of_distribution")
    op.drop_column("labels", "reading_seconds")
    op.drop_column("labels", "reason")
    op.drop_column("labels", "post_reveal")
    op.drop_column("labels", "position")
    op.drop_index("ix_cases_worklist", table_name="cases")
    op.drop_index("ix_cases_site_id", table_name="cases")
    op.drop_index("ix_cases_patient_id", table_name="cases")
    op.drop_index("ix_cases_partition_id", table_name="cases")
    op.create_index(op.f("ix_cases_patient"), "cases", ["patient"], unique=False)
    op.drop_column("cases", "erased_at")
    op.drop_column("cases", "stain")
    op.drop_column("cases", "image_hash")
    op.drop_column("cases", "waiting")
    op.drop_column("cases", "need")
    op.drop_column("cases", "pi")
    op.drop_column("cases", "u")
    op.drop_index(op.f("ix_accounts_oidc_subject"), table_name="accounts")
    op.drop_column("accounts", "oidc_subject")
    op.drop_column("accounts", "locked_until")
    op.drop_column("accounts", "failed_sign_ins")
    op.drop_column("accounts", "password_hash")
    op.drop_index(
        "uq_reads_once",
        table_name="reads",
        sqlite_where=sa.text("state IN ('leased', 'committed')"),
        postgresql_where=sa.text("state IN ('leased', 'committed')"),
    )
    op.drop_index(
        "uq_reads_lease",
        table_name="reads",
        sqlite_where=sa.text("state = 'leased'"),
        postgresql_where=sa.text("state = 'leased'"),
    )
    op.drop_index(op.f("ix_reads_request_id"), table_name="reads")
    op.drop_index(op.f("ix_reads_case_id"), table_name="reads")
    op.drop_index("ix_reads_annotator_id_state", table_name="reads")
    op.drop_table("reads")
    op.drop_index("ix_read_requests_queue", table_name="read_requests")
    op.drop_index(op.f("ix_read_requests_lease_expires_at"), table_name="read_requests")
    op.drop_table("read_requests")
    op.drop_table("exposures")
    op.drop_index(op.f("ix_network_outputs_network_sha256"), table_name="network_outputs")
    op.drop_table("network_outputs")
    op.drop_table("looks")
    op.drop_table("import_rows")
    op.drop_table("evaluations")
    op.drop_table("daily_thresholds")
    op.drop_table("policies")
    op.drop_index(op.f("ix_jobs_state"), table_name="jobs")
    op.drop_table("jobs")


def _return_outputs() -> None:
    """Give each prediction its outputs back, those of the newest network where there are several."""
    bind = op.get_bind()
    for statement in drop_triggers(bind.dialect.name, "predictions"):
        op.execute(statement)
    for name in ("logits", "features"):
        empty = "''" if bind.dialect.name == "sqlite" else "''::bytea"
        op.add_column("predictions", sa.Column(name, sa.LargeBinary(), server_default=sa.text(empty), nullable=False))
        op.execute(
            f"UPDATE predictions SET {name} = COALESCE((SELECT o.{name} FROM network_outputs o "  # noqa: S608
            f"WHERE o.case_id = predictions.case_id ORDER BY o.id DESC LIMIT 1), {name})"
        )
    for statement in create_triggers(bind.dialect.name, "predictions"):
        op.execute(statement)
