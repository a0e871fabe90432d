"""Plans for the reads of a case: the uniform draw, the decision, the requests, and twins, which are one image."""

import hashlib
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy import ColumnElement, and_, bindparam, or_, select
from sqlalchemy.orm import Session

from app.audit.chain.covered_rows import update_columns
from app.audit.chain.keys import DerivedKey
from app.database.tables import (
    Case,
    CasePrediction,
    PolicyRow,
    ReaderDraw,
    ReadRequest,
    Repeat,
    TriageDecision,
    new_id,
    time_of,
)
from app.database.tables.values import Arm
from app.predictions.service import stored_prediction
from app.triage.assignment import draw_for_planned_reads
from app.triage.queries import current_policy, rule_of, set_threshold
from app.triage.rules import NEAR_DUPLICATE_BITS, TriageResult, TriageRule, decide_triage, plan_reads
from ml.distributions.families import PredictiveDistribution
from ml.images.picture import hash_distance

# featureless images share the hash 0 and say nothing about likeness
_NO_HASH = 0


class ImageIdentity(Protocol):
    """Columns of a case, or of a row, that decide whether it is a twin of another one."""

    @property
    def id(self) -> uuid.UUID:
        """Identifier of the case."""

    @property
    def pixels_sha256(self) -> str | None:
        """SHA-256 of the pixels."""

    @property
    def patient(self) -> str | None:
        """Patient of the case."""

    @property
    def image_hash(self) -> int | None:
        """Perceptual hash of the pixels."""


def may_be_twin() -> ColumnElement[bool]:
    """Condition of the cases among which twins are, the case itself included; its parameters: ``identity_values``."""
    # an erased case has no pixels, and a case may have no patient: nothing is equal to a null
    same = Case.pixels_sha256 == bindparam("pixels_sha256")
    of_patient = and_(Case.patient == bindparam("patient"), Case.image_hash.is_not(None))
    return and_(Case.erased_at.is_(None), or_(same, of_patient))


def identity_values(case: ImageIdentity) -> dict[str, str | None]:
    """Values of the parameters of ``may_be_twin``."""
    return {"pixels_sha256": case.pixels_sha256, "patient": case.patient}


def are_near(case: ImageIdentity, other: ImageIdentity) -> bool:
    """Whether two cases of one patient have nearly the same image."""
    if case.patient is None or case.patient != other.patient:
        return False
    if case.image_hash in {None, _NO_HASH} or other.image_hash is None or case.image_hash is None:
        return False
    return hash_distance(case.image_hash, other.image_hash) <= NEAR_DUPLICATE_BITS


def are_twins(case: ImageIdentity, other: ImageIdentity) -> bool:
    """Whether two cases show the same image, or are one case."""
    same = case.pixels_sha256 is not None and case.pixels_sha256 == other.pixels_sha256
    return case.id == other.id or same or are_near(case, other)


_PLACES = 2**31 - 1
# cases planned in one transaction
_BATCH = 500


def uniform_draw(key: DerivedKey, external_id: str) -> float:
    """Return u ~ U(0, 1) of a case, a keyed hash of its external id: the same in every copy."""
    return int.from_bytes(key.digest(external_id.encode())[:7], "big") / 2**56


@dataclass(frozen=True)
class TwinSummary:
    """Summary of other cases with the image of a case."""

    # there is an earlier near-duplicate among the same patient's cases
    exist: bool
    # there is one that the rule selected for a second read
    selected: bool
    # cases with the same pixels, or near-duplicates of the same patient
    ids: list[uuid.UUID]


_PERHAPS_TWINS = (
    select(Case.id, Case.pixels_sha256, Case.patient, Case.image_hash, Case.pi)
    .where(Case.id != bindparam("case_id"), may_be_twin())
    .order_by(Case.id)
)


def twins_of(session: Session, case: Case) -> TwinSummary:
    """Other cases with the image of a case."""
    asking = {"case_id": case.id, **identity_values(case)}
    twins = [row for row in session.execute(_PERHAPS_TWINS, asking) if are_twins(case, row)]
    near = [row.pi for row in twins if row.id < case.id and are_near(case, row)]
    return TwinSummary(bool(near), any(pi >= 1 for pi in near), [row.id for row in twins])


def triage_case(
    case: Case, prediction: CasePrediction, distribution: PredictiveDistribution, rule: TriageRule
) -> TriageResult:
    """Apply a triage rule to a case."""
    return decide_triage(
        distribution,
        rule,
        out_of_distribution=prediction.out_of_distribution,
        near_duplicate=case.twin_selected,
        chosen=case.specimen_id is not None and case.pi >= 1,
    )


@dataclass(frozen=True)
class ActivePolicy:
    """The policy in force and its rule, with the threshold of the day."""

    policy: PolicyRow
    rule: TriageRule


def policy_for_planning(session: Session) -> ActivePolicy:
    """The policy in force, for a writing session: the first case of a day sets the day's threshold."""
    policy = current_policy(session)
    return ActivePolicy(policy, rule_of(policy, set_threshold(session, policy, time_of(session))))


@dataclass(frozen=True)
class CasePlan:
    """The plan of a case."""

    # what the rule says
    decision: TriageResult
    # the look and the requests, to be stored after the case
    rows: list[TriageDecision | ReadRequest]
    # of whom the requests are asked, to be stored after these; empty where anybody may take them
    draws: list[ReaderDraw]
    # other cases with its image
    twins: list[uuid.UUID]

    def store(self, session: Session) -> None:
        """Store the plan of a stored case."""
        session.add_all(self.rows)
        session.flush()  # draws refer to requests
        session.add_all(self.draws)


def plan_case(
    session: Session, case: Case, prediction: CasePrediction, in_force: ActivePolicy, draws: DerivedKey
) -> CasePlan:
    """Plan the reads of a case about which nothing was asked before, and write the plan on the case."""
    # The policy in force looks once at the case and its prediction, never at a label; the case's coin and the
    # probability of a second read decide how many reads are asked for; where the policy draws annotators, of whom.
    twins, policy = twins_of(session, case), in_force.policy
    case.twin_selected = twins.selected
    decision = triage_case(case, prediction, stored_prediction(prediction), in_force.rule)
    selected = decision.decision == "second_read"
    planned = plan_reads(case.u, selected, decision.pi, case.pi)
    case.pi, case.waiting = planned.pi, True
    case.need = float(prediction.disagreement_prob) - (1.0 if twins.exist else 0.0)
    look = TriageDecision(
        case_id=case.id,
        policy_version=policy.version,
        release_id=prediction.release_id,
        selected=selected,
        pi=decision.pi,
        reason=decision.reason,
    )
    arms: list[Arm] = ["first"] if planned.arm is None else ["first", planned.arm]
    release_id, time = prediction.release_id, time_of(session)
    requests = [new_request(case, policy, release_id, arm, place, time) for place, arm in enumerate(arms, start=1)]
    reader_draws = draw_for_planned_reads(session, draws, case, requests, twins.ids) if policy.draw_readers else []
    return CasePlan(decision, [look, *requests], reader_draws, twins.ids)


def random_queue_place(case_id: uuid.UUID) -> int:
    """Return the random place of a case among those due on one day, the same for all its requests."""
    # With a place per request a case with two of them would come sooner, and its place would tell that it has.
    return int.from_bytes(hashlib.sha256(case_id.bytes).digest()[:4]) % _PLACES


def new_request(
    case: Case, policy: PolicyRow, release_id: uuid.UUID | None, arm: Arm, ordinal: int, at: datetime
) -> ReadRequest:
    """A request that nobody has taken yet."""
    due = at + timedelta(days=policy.due_days)
    return ReadRequest(
        id=new_id(),
        case_id=case.id,
        ordinal=ordinal,
        round="adjudication" if arm == "adjudication" else "planned",
        arm=arm,
        u=case.u,
        pi=1.0 if arm in {"first", "adjudication"} else case.pi,
        policy_version=policy.version,
        release_id=release_id,
        due_at=due,
        due_on=due.date().isoformat(),
        shuffle=random_queue_place(case.id),
        state="open",
    )


def refresh_waiting(session: Session, case: Case) -> None:
    """Record whether a read of the case is still wanted; to be called whenever a request is made or ends."""
    session.flush()
    statement = select(ReadRequest.id).where(ReadRequest.case_id == case.id, ReadRequest.state.in_(("open", "leased")))
    case.waiting = session.execute(statement.limit(1)).first() is not None


def withdraw_adjudications(session: Session, *which: ColumnElement[bool]) -> None:
    """Withdraw the adjudications among locked requests that nobody is reading; planned reads stay as they are."""
    # A planned read is never closed because of labels: that would bias the evaluation. A lease runs its full time: an
    # early end would tell its annotator what was asked for.
    withdrawn = (ReadRequest.round == "adjudication", ReadRequest.state == "open", *which)
    affected = select(Case).where(Case.id.in_(select(ReadRequest.case_id).where(*withdrawn))).order_by(Case.id)
    cases = list(session.execute(affected.with_for_update()).scalars())
    session.execute(update_columns(ReadRequest, state="closed", closed_at=time_of(session)).where(*withdrawn))
    for case in cases:
        refresh_waiting(session, case)


def withdraw_repeats(session: Session, case_ids: Collection[uuid.UUID] | None = None) -> None:
    """Withdraw repeats that nobody has been given, of some cases those that somebody has too."""
    which = [Repeat.state == "open"] if case_ids is None else [Repeat.state.in_(("open", "leased"))]
    if case_ids is not None:
        which.append(Repeat.case_id.in_(case_ids))
    time = time_of(session)
    ended = update_columns(Repeat, state="closed", closed_at=time, back_at=time, lease_expires_at=None)
    session.execute(ended.where(*which))
