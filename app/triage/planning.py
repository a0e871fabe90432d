"""Plans for the reads of a case: the uniform draw, the decision and the requests."""

import hashlib
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.audit.chain.change_tracking import note_rows
from app.audit.chain.keys import DerivedKey
from app.database.tables import Case, CasePrediction, Look, PolicyRow, ReaderDraw, ReadRequest, Repeat, new_id, time_of
from app.predictions.stored import stored_prediction
from app.triage.assignment import draw_planned
from app.triage.queries import current_policy, rule_of, set_threshold
from app.triage.rules import Arm, Rule, Triage, plan, triage
from app.triage.twins import are_near, are_twins, may_be_twin_of
from ml.distributions.families import PredictiveDistribution

#: Why a read is asked for.
RequestArm = Literal["first", "adjudication"] | Arm

_PLACES = 2**31 - 1
# cases planned in one transaction
_BATCH = 500


def coin(key: DerivedKey, external_id: str) -> float:
    """The coin u ~ U(0, 1) of a case by a keyed hash of its external id: tossed once, the same in any copy."""
    return int.from_bytes(key.digest(external_id.encode())[:7], "big") / 2**56


@dataclass(frozen=True)
class Twins:
    """What is known of other cases with the image of a case.

    Attributes:
        exist: there is an earlier near-duplicate among the same patient's cases.
        selected: there is one that the rule selected for a second read.
        ids: cases with the same pixels, or near-duplicates of the same patient.
    """

    exist: bool
    selected: bool
    ids: list[uuid.UUID]


def twins_of(session: Session, case: Case) -> Twins:
    """Other cases with the image of a case."""
    columns = (Case.id, Case.pixels_sha256, Case.patient, Case.image_hash, Case.pi)
    statement = select(*columns).where(Case.id != case.id, may_be_twin_of(case)).order_by(Case.id)
    twins = [row for row in session.execute(statement) if are_twins(case, row)]
    near = [row.pi for row in twins if row.id < case.id and are_near(case, row)]
    return Twins(bool(near), any(pi >= 1 for pi in near), [row.id for row in twins])


def judge(case: Case, prediction: CasePrediction, distribution: PredictiveDistribution, rule: Rule) -> Triage:
    """What a rule says about a case.

    Args:
        case: for what was found out about its twins when it was planned.
        prediction: of one release.
        distribution: of that prediction.
        rule: with the threshold of the day.
    """
    unlike = prediction.out_of_distribution
    return triage(distribution, rule, out_of_distribution=unlike, near_duplicate=case.twin_selected)


@dataclass(frozen=True)
class InForce:
    """The policy in force and its rule, with the threshold of the day."""

    policy: PolicyRow
    rule: Rule


def policy_for_planning(session: Session) -> InForce:
    """The policy in force, for a writing session: the first case of a day sets the day's threshold."""
    policy = current_policy(session)
    return InForce(policy, rule_of(policy, set_threshold(session, policy, time_of(session))))


@dataclass(frozen=True)
class Planned:
    """The plan of a case.

    Attributes:
        decision: what the rule says.
        rows: the look and the requests, to be stored after the case.
        draws: of whom the requests are asked, to be stored after these; empty where anybody may take them.
        twins: other cases with its image.
    """

    decision: Triage
    rows: list[Look | ReadRequest]
    draws: list[ReaderDraw]
    twins: list[uuid.UUID]

    def store(self, session: Session) -> None:
        """Store the plan of a stored case."""
        session.add_all(self.rows)
        session.flush()  # draws refer to requests
        session.add_all(self.draws)


def plan_case(
    session: Session, case: Case, prediction: CasePrediction, in_force: InForce, draws: DerivedKey
) -> Planned:
    """Plan the reads of a case about which nothing was asked before, and write the plan on the case.

    The policy in force looks once at the case and its prediction, never at a label; the case's coin and the
    probability of a second read decide how many reads are asked for; where the policy draws annotators, of whom.

    Args:
        session: to find earlier near-duplicates.
        case: with its identifier, stored or not.
        prediction: the one that is shown.
        in_force: policy and rule.
        draws: key by which annotators are drawn.
    """
    twins, policy = twins_of(session, case), in_force.policy
    case.twin_selected = twins.selected
    decision = judge(case, prediction, stored_prediction(prediction), in_force.rule)
    selected = decision.decision == "second_read"
    planned = plan(case.u, selected, decision.pi, case.pi)
    case.pi, case.waiting = planned.pi, True
    case.need = float(prediction.disagreement_prob) - (1.0 if twins.exist else 0.0)
    look = Look(
        case_id=case.id,
        policy_version=policy.version,
        release_id=prediction.release_id,
        selected=selected,
        pi=decision.pi,
        reason=decision.reason,
    )
    arms: list[RequestArm] = ["first"] if planned.arm is None else ["first", planned.arm]
    release_id, time = prediction.release_id, time_of(session)
    requests = [new_request(case, policy, release_id, arm, place, time) for place, arm in enumerate(arms, start=1)]
    asked = draw_planned(session, draws, requests, twins.ids) if policy.draw_readers else []
    return Planned(decision, [look, *requests], asked, twins.ids)


def place_of(case_id: uuid.UUID) -> int:
    """Place of a case among those that are due on the same day: random, and the same for all its requests.

    With a place per request a case with two of them would come sooner, and its place would tell that it has.
    """
    return int.from_bytes(hashlib.sha256(case_id.bytes).digest()[:4]) % _PLACES


def new_request(
    case: Case, policy: PolicyRow, release_id: uuid.UUID | None, arm: RequestArm, ordinal: int, at: datetime
) -> ReadRequest:
    """A request that nobody has taken yet.

    Args:
        case: to be read.
        policy: that asks.
        release_id: whose prediction made it ask.
        arm: why.
        ordinal: number of the request among those of the case, 1 for the first.
        at: when it asks.
    """
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
        shuffle=place_of(case.id),
        state="open",
    )


def refresh_waiting(session: Session, case: Case) -> None:
    """Record whether a read of the case is still wanted; to be called whenever a request is made or ends."""
    session.flush()
    wanted = select(ReadRequest.id).where(ReadRequest.case_id == case.id, ReadRequest.state.in_(("open", "leased")))
    case.waiting = session.execute(wanted.limit(1)).first() is not None


def withdraw_repeats(session: Session, case_ids: Collection[uuid.UUID] | None = None) -> None:
    """Withdraw repeats that nobody has been given, of some cases those that somebody has too.

    Args:
        session: writing session.
        case_ids: whose repeats end, leased or not; None: of all cases, those that wait.
    """
    which = [Repeat.state == "open"] if case_ids is None else [Repeat.state.in_(("open", "leased"))]
    if case_ids is not None:
        which.append(Repeat.case_id.in_(case_ids))
    time = time_of(session)
    ended = update(Repeat).where(*which).values(state="closed", closed_at=time, back_at=time, lease_expires_at=None)
    rows = session.execute(ended.returning(*Repeat.__table__.columns)).mappings().all()
    note_rows(session, Repeat, rows)
