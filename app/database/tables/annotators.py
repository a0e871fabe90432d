"""Accounts and sessions; annotator models, reference cells, practice and qualification."""

import uuid
from datetime import datetime
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, IdentifiedRow, UtcDateTime
from app.database.tables.values import PracticePurpose, QualificationKind, Role, RunState

ROLES = get_args(Role)


class Account(IdentifiedRow, BaseTable):
    """A person or a machine that may call."""

    __tablename__ = "accounts"
    __table_args__ = (sa.CheckConstraint(f"role IN {ROLES}", name="role"),)

    name: Mapped[str] = mapped_column(sa.String(100), unique=True)
    role: Mapped[str] = mapped_column(sa.String(20))
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # SHA-256 of a random one-time password, cleared by its first use
    one_time_sha256: Mapped[str | None] = mapped_column(sa.String(64))
    # argon2id; None for those who sign in elsewhere, and until the first password is chosen
    password_hash: Mapped[str | None] = mapped_column(sa.String(200))
    # «issuer subject» of an OpenID provider
    oidc_subject: Mapped[str | None] = mapped_column(sa.String(500), index=True, unique=True)
    # of the pages; None for what the browser asks for
    language: Mapped[str | None] = mapped_column(sa.String(10))
    # an invited annotator, who is given the reads that are assigned to them and no others
    guest: Mapped[bool] = mapped_column(sa.Boolean, default=False, server_default=sa.false())


class ApiKey(IdentifiedRow, BaseTable):
    """A bearer key ``sr_<id>_<secret>``; only the secret's SHA-256 is kept."""

    __tablename__ = "api_keys"

    account_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"), index=True)
    secret_sha256: Mapped[str] = mapped_column(sa.String(64))
    scopes: Mapped[list[str]] = mapped_column(sa.JSON)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class BrowserSession(IdentifiedRow, BaseTable):
    """A signed-in browser; only the cookie's SHA-256 is kept."""

    __tablename__ = "browser_sessions"

    account_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"), index=True)
    token_sha256: Mapped[str] = mapped_column(sa.String(64), unique=True)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # when the person proved who they are to an OpenID provider, by its clock; null without one
    authenticated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Invitation(IdentifiedRow, BaseTable):
    """A link that signs an annotator in once, for the cells that they are asked to read."""

    __tablename__ = "invitations"

    account_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"), index=True)
    # SHA-256 of the random part of the link
    token_sha256: Mapped[str] = mapped_column(sa.String(64), unique=True)
    # identifiers of the cells
    cases: Mapped[list[str]] = mapped_column(sa.JSON)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_by: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"))


class ReaderModelRow(IdentifiedRow, BaseTable):
    """A fitted model of the annotators of one release, with what it was judged by; never changed."""

    __tablename__ = "reader_models"

    # from 1, over all releases
    version: Mapped[int] = mapped_column(sa.Integer, unique=True)
    release_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("releases.id"), index=True)
    # ml.annotators.confusions.ReaderModel: names annotators
    document: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    # app.annotators.models.schemas.ReaderFitOut
    report: Mapped[dict[str, Any]] = mapped_column(sa.JSON)


class ReaderModelInUse(BaseTable):
    """Annotator model in use; null: all annotators have equal weight."""

    __tablename__ = "reader_model_in_use"
    __table_args__ = (sa.CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    version: Mapped[int | None] = mapped_column(sa.ForeignKey("reader_models.version"))
    # counts every switch
    revision: Mapped[int] = mapped_column(sa.Integer)


#: What may become of a cell; the first two are shown.
REFERENCE_KINDS = ("chosen", "pinned", "dropped", "excluded")
SHOWN_KINDS = REFERENCE_KINDS[:2]


class ReferenceCell(IdentifiedRow, BaseTable):
    """A decision on a case as a reference cell of a class; of each class and case the newest one holds."""

    # ``dropped``: others took its place; ``excluded``: not to be chosen again.

    __tablename__ = "reference_cells"
    __table_args__ = (
        sa.UniqueConstraint("class_code", "case_id", "number"),
        sa.CheckConstraint(f"kind IN {REFERENCE_KINDS}", name="kind"),
    )

    # random: the address of its image is made of it
    id: Mapped[uuid.UUID] = mapped_column(sa.Uuid, primary_key=True, default=uuid.uuid4)
    class_code: Mapped[str] = mapped_column(sa.String(100))
    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), index=True)
    # of this class and case, from 1
    number: Mapped[int] = mapped_column(sa.Integer)
    kind: Mapped[str] = mapped_column(sa.String(20))
    # final blind readers when it was decided, and how many of them said this class
    n_readers: Mapped[int] = mapped_column(sa.Integer)
    n_same: Mapped[int] = mapped_column(sa.Integer)
    reason: Mapped[str | None] = mapped_column(sa.Text)
    created_by: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"))


class ClassDefinition(IdentifiedRow, BaseTable):
    """Definition of a class in the study's guidelines; the highest number holds."""

    __tablename__ = "class_definitions"
    __table_args__ = (sa.UniqueConstraint("class_code", "number"),)

    class_code: Mapped[str] = mapped_column(sa.String(100))
    number: Mapped[int] = mapped_column(sa.Integer)
    text: Mapped[str] = mapped_column(sa.Text)
    created_by: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"))


PURPOSES = get_args(PracticePurpose)
DECISIONS = get_args(QualificationKind)


class PracticeSet(IdentifiedRow, BaseTable):
    """Cells for training, or for qualification; never for both."""

    __tablename__ = "practice_sets"
    __table_args__ = (sa.CheckConstraint(f"purpose IN {PURPOSES}", name="purpose"),)

    name: Mapped[str] = mapped_column(sa.String(100), unique=True)
    purpose: Mapped[PracticePurpose] = mapped_column(sa.String(20))
    # cells of one run; of a qualification fewer than the set has, so that another attempt has other ones
    n_per_run: Mapped[int] = mapped_column(sa.Integer)
    min_labels: Mapped[int] = mapped_column(sa.Integer)
    borderline_share: Mapped[float] = mapped_column(sa.Float(53))
    # app.annotators.practice.schemas.SetReportOut: what was chosen, and who would pass
    report: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    retired_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_by: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"))


class PracticeCell(IdentifiedRow, BaseTable):
    """A case of a set."""

    __tablename__ = "practice_cells"
    __table_args__ = (sa.UniqueConstraint("set_id", "case_id"),)

    set_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("practice_sets.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), index=True)


_OPEN = sa.text("state = 'open'")


class PracticeRun(IdentifiedRow, BaseTable):
    """An annotator's way through cells of a set; of a qualification, an attempt."""

    __tablename__ = "practice_runs"
    __table_args__ = (
        sa.CheckConstraint("state IN ('open', 'finished')", name="state"),
        sa.Index(
            "uq_practice_runs_open", "set_id", "annotator_id", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN
        ),
        sa.Index("ix_practice_runs_annotator_id", "annotator_id"),
    )

    # random: annotators see it
    id: Mapped[uuid.UUID] = mapped_column(sa.Uuid, primary_key=True, default=uuid.uuid4)
    set_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("practice_sets.id"))
    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"))
    state: Mapped[RunState] = mapped_column(sa.String(20), default="open")
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # of a qualification: app.annotators.practice.schemas.ResultOut
    result: Mapped[dict[str, Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    passed: Mapped[bool | None] = mapped_column(sa.Boolean)


class PracticeItem(IdentifiedRow, BaseTable):
    """A cell of a run, dealt when it began; from then on no read of the case or of a twin goes to this annotator."""

    __tablename__ = "practice_items"
    __table_args__ = (
        sa.UniqueConstraint("run_id", "position"),
        sa.Index("ix_practice_items_case_id_annotator_id", "case_id", "annotator_id"),
    )

    # random: the annotator knows the cell by it
    id: Mapped[uuid.UUID] = mapped_column(sa.Uuid, primary_key=True, default=uuid.uuid4)
    run_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("practice_runs.id"))
    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"))
    position: Mapped[int] = mapped_column(sa.Integer)


class PracticeAnswer(IdentifiedRow, BaseTable):
    """Answer of an annotator to a cell of a run; never a label."""

    __tablename__ = "practice_answers"
    __table_args__ = (sa.UniqueConstraint("item_id"),)

    item_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("practice_items.id"))
    class_code: Mapped[str] = mapped_column(sa.String(100))


class Qualification(IdentifiedRow, BaseTable):
    """A decision on whether an annotator may read alone; the newest one holds. ``renewed`` allows further attempts."""

    __tablename__ = "qualifications"
    __table_args__ = (
        sa.CheckConstraint(f"kind IN {DECISIONS}", name="kind"),
        sa.CheckConstraint("(kind = 'passed') = (run_id IS NOT NULL)", name="run_id"),
    )

    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"), index=True)
    kind: Mapped[QualificationKind] = mapped_column(sa.String(20))
    run_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("practice_runs.id"), unique=True)
    # by whom and why; None: the service, by an attempt
    created_by: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("accounts.id"))
    reason: Mapped[str | None] = mapped_column(sa.Text)
