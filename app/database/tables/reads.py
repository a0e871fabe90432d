"""Policies, triage decisions, requests, reads (leases), exposures, and whom each read was asked of."""

import uuid
from datetime import datetime
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, IdentifiedRow, UtcDateTime
from app.database.tables.values import Arm, ReadState, RequestState, Reveal, Round, Rule, SpecimenGoal


class ReaderDraw(IdentifiedRow, BaseTable):
    """Assignment of a request to an annotator; the newest row of a request holds."""

    __tablename__ = "reader_draws"
    __table_args__ = (
        sa.UniqueConstraint("request_id", "position"),
        sa.CheckConstraint("probability IS NULL OR (probability >= 0.1 AND probability <= 1)", name="probability"),
    )

    request_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("read_requests.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), index=True)
    # 0 when the read was planned, then one more each time the one before declined or may not read any more
    position: Mapped[int] = mapped_column(sa.Integer)
    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"))
    # of this annotator among those who were left; None: not drawn but preferred
    probability: Mapped[float | None] = mapped_column(sa.Float(53))
    # identifiers of those who were left, in the order from which the keyed number chose
    among: Mapped[list[str]] = mapped_column(sa.JSON)
    # of the one who was preferred: expected gain of their label, and reads that waited for them
    gain: Mapped[float | None] = mapped_column(sa.Float(53))
    load: Mapped[int | None] = mapped_column(sa.Integer)


RULES, REVEALS, ARMS = get_args(Rule), get_args(Reveal), get_args(Arm)
REQUEST_STATES, READ_STATES = get_args(RequestState), get_args(ReadState)


class PolicyRow(IdentifiedRow, BaseTable):
    """One version of the reading policy; the highest version is in force."""

    __tablename__ = "policies"
    __table_args__ = (
        sa.CheckConstraint(f"rule IN {RULES}", name="rule"),
        sa.CheckConstraint(f"reveal IN {REVEALS}", name="reveal"),
        sa.CheckConstraint("audit_rate > 0 AND audit_rate <= 1", name="audit_rate"),
    )

    version: Mapped[int] = mapped_column(sa.Integer, unique=True)
    rule: Mapped[Rule] = mapped_column(sa.String(20))
    # of the rules by disagreement and by expected gain
    threshold: Mapped[float | None] = mapped_column(sa.Float(53))
    # second reads per day, of the rule by capacity and of the graded one
    capacity_per_day: Mapped[int | None] = mapped_column(sa.Integer)
    audit_rate: Mapped[float] = mapped_column(sa.Float(53))
    target_error: Mapped[float] = mapped_column(sa.Float(53))
    adjudicate_below: Mapped[float | None] = mapped_column(sa.Float(53))
    max_labels: Mapped[int] = mapped_column(sa.Integer)
    reveal: Mapped[Reveal] = mapped_column(sa.String(20))
    lease_seconds: Mapped[int] = mapped_column(sa.Integer)
    due_days: Mapped[int] = mapped_column(sa.Integer)
    # share of an annotator's reads that are hidden repeats; 0: no repeats, and no case is held back for them
    repeat_rate: Mapped[float] = mapped_column(sa.Float(53), default=0.0)
    # whether planned reads are asked of annotators who are drawn at random
    draw_readers: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    # new annotators are given no read before they are qualified
    require_qualification: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    # app.triage.schemas.ReportingGroupIn of each group of classes that is reported of a specimen; None for none
    reporting_groups: Mapped[list[dict[str, Any]] | None] = mapped_column(sa.JSON(none_as_null=True))
    # cells of a specimen that the rule by specimen value reads twice, and for what
    reads_per_specimen: Mapped[int | None] = mapped_column(sa.Integer)
    specimen_goal: Mapped[SpecimenGoal | None] = mapped_column(sa.String(20))
    # app.triage.schemas.UrgentClassIn of each class that brings a patient's cells forward; None for none
    urgent: Mapped[list[dict[str, Any]] | None] = mapped_column(sa.JSON(none_as_null=True))
    reason: Mapped[str] = mapped_column(sa.Text)
    # None: the version that set-up made
    created_by: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("accounts.id"))


class DailyThreshold(BaseTable):
    """Threshold of a budgeted rule for one day, computed from the days before."""

    # Of the rule by capacity the score above which it selects, of the graded one the scale of its probabilities.

    __tablename__ = "daily_thresholds"

    policy_version: Mapped[int] = mapped_column(sa.ForeignKey("policies.version"), primary_key=True)
    day: Mapped[str] = mapped_column(sa.String(10), primary_key=True)
    # None: nothing can be selected yet
    threshold: Mapped[float | None] = mapped_column(sa.Float(53))
    # of the rule by capacity, π of a case whose score is the threshold, if above the audit rate
    at_threshold: Mapped[float | None] = mapped_column(sa.Float(53))
    n_cases: Mapped[int] = mapped_column(sa.Integer)


class TriageDecision(IdentifiedRow, BaseTable):
    """Triage decision of one policy on one case and its prediction; never on a label."""

    __tablename__ = "looks"
    __table_args__ = (sa.UniqueConstraint("case_id", "policy_version", "release_id"),)

    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"))
    policy_version: Mapped[int] = mapped_column(sa.ForeignKey("policies.version"))
    release_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("releases.id"))
    selected: Mapped[bool] = mapped_column(sa.Boolean)
    # probability of a second planned read by this look
    pi: Mapped[float] = mapped_column(sa.Float(53))
    reason: Mapped[str] = mapped_column(sa.String(200))


class ReadRequest(IdentifiedRow, BaseTable):
    """A read that is wanted, and why."""

    __tablename__ = "read_requests"
    __table_args__ = (
        sa.UniqueConstraint("case_id", "ordinal"),
        sa.CheckConstraint("round IN ('planned', 'adjudication')", name="round"),
        sa.CheckConstraint(f"arm IN {ARMS}", name="arm"),
        sa.CheckConstraint(f"state IN {REQUEST_STATES}", name="state"),
        sa.Index("ix_read_requests_queue", "state", "due_on", "shuffle"),
        sa.Index("ix_read_requests_annotator_id_state", "annotator_id", "state"),
    )

    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"))
    # 1 is the first read of the case, 2 the second, further ones are adjudications
    ordinal: Mapped[int] = mapped_column(sa.Integer)
    round: Mapped[Round] = mapped_column(sa.String(20))
    arm: Mapped[Arm] = mapped_column(sa.String(20))
    u: Mapped[float] = mapped_column(sa.Float(53))
    pi: Mapped[float] = mapped_column(sa.Float(53))
    policy_version: Mapped[int] = mapped_column(sa.ForeignKey("policies.version"))
    release_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("releases.id"))
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # day of due_at, within which annotators get orders of their own
    due_on: Mapped[str] = mapped_column(sa.String(10))
    shuffle: Mapped[int] = mapped_column(sa.Integer)
    # of whom it is asked, as the newest row of reader_draws says; None: of anybody
    annotator_id: Mapped[uuid.UUID | None] = mapped_column(sa.Uuid)
    state: Mapped[RequestState] = mapped_column(sa.String(20), default="open")
    lease_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # first label of the chain that answered
    label_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("labels.id"), unique=True)

    @property
    def named(self) -> uuid.UUID:
        """What the annotator's handle of the case is made from."""
        return self.case_id


#: A read's state as long as it is leased, for statements of each request: see ``app.database.engine``.
LEASED = sa.literal_column("'leased'", sa.String)
_ACTIVE = sa.text("state = 'leased'")
_TAKEN = sa.text("state IN ('leased', 'committed')")
_TAKEN_FIRST = sa.text("state IN ('leased', 'committed') AND repeat_id IS NULL")


class Read(IdentifiedRow, BaseTable):
    """One annotator's visit to a case: a lease that ends in a label, a decline, a release or by itself."""

    __tablename__ = "reads"
    __table_args__ = (
        sa.CheckConstraint(f"state IN {READ_STATES}", name="state"),
        sa.CheckConstraint("(request_id IS NULL) <> (repeat_id IS NULL)", name="one_request"),
        sa.Index("uq_reads_lease", "request_id", unique=True, sqlite_where=_ACTIVE, postgresql_where=_ACTIVE),
        sa.Index(
            "uq_reads_once",
            "case_id",
            "annotator_id",
            unique=True,
            sqlite_where=_TAKEN_FIRST,
            postgresql_where=_TAKEN_FIRST,
        ),
        sa.Index("uq_reads_repeated_once", "repeat_id", unique=True, sqlite_where=_TAKEN, postgresql_where=_TAKEN),
        sa.Index("ix_reads_annotator_id_state", "annotator_id", "state"),
    )

    # random: annotators see it, and the time of a lease is none of its business
    id: Mapped[uuid.UUID] = mapped_column(sa.Uuid, primary_key=True, default=uuid.uuid4)
    # what asked for it: a request, or a repeat
    request_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("read_requests.id"), index=True)
    repeat_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("repeats.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), index=True)
    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"))
    state: Mapped[ReadState] = mapped_column(sa.String(20), default="leased")
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # when a page first showed the case; None: it was leased by another program, or is leased ahead
    displayed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    decline_reason: Mapped[str | None] = mapped_column(sa.String(20))

    @property
    def named(self) -> uuid.UUID:
        """What the annotator's handle of the case is made from."""
        return self.repeat_id or self.case_id

    @property
    def purpose(self) -> str:
        """Purpose of the labels that it ends in."""
        return "read" if self.repeat_id is None else "repeat"


class Exposure(IdentifiedRow, BaseTable):
    """First time that model output or other labels of a case were shown to an annotator."""

    __tablename__ = "exposures"
    __table_args__ = (sa.UniqueConstraint("case_id", "annotator_id"),)

    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"))
    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"))
    release_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("releases.id"))
    # the newest label that was shown
    label_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("labels.id"))


class HeldBack(IdentifiedRow, BaseTable):
    """A case that stays hidden from an annotator who has read it, so that it may come to them a second time."""

    __tablename__ = "held_back"
    __table_args__ = (sa.UniqueConstraint("annotator_id", "case_id"),)

    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"))


class Repeat(IdentifiedRow, BaseTable):
    """A second visit of an annotator to a case that they have read: to them a case like any other, not known before."""

    # It takes the seat of a case that waits for them, which is kept from them until some hours later: so the number of
    # waiting cases falls as it always does when a case is leased.

    __tablename__ = "repeats"
    __table_args__ = (
        sa.UniqueConstraint("annotator_id", "case_id"),
        sa.CheckConstraint(f"state IN {REQUEST_STATES}", name="state"),
    )

    # random: their annotator's handle of the case is made from it
    id: Mapped[uuid.UUID] = mapped_column(sa.Uuid, primary_key=True, default=uuid.uuid4)
    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), index=True)
    # the blind label that its answer is compared with
    label_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("labels.id"))
    policy_version: Mapped[int] = mapped_column(sa.ForeignKey("policies.version"))
    # the case whose seat in the annotator's queue it takes, and until when that one is kept from them; None: not leased
    in_place_of: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"))
    back_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    due_on: Mapped[str] = mapped_column(sa.String(10))
    shuffle: Mapped[int] = mapped_column(sa.Integer)
    state: Mapped[RequestState] = mapped_column(sa.String(20), default="open")
    lease_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    @property
    def round(self) -> Round:
        """The round of its labels, as of the first read."""
        return "planned"

    @property
    def named(self) -> uuid.UUID:
        """What the annotator's handle of the case is made from."""
        return self.id
