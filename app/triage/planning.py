"""How often a case is to be read: looks at its prediction, and the requests that follow."""

import hashlib
import hmac
import math
import secrets
import uuid
from datetime import timedelta

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from app.platform.database import Database
from app.predictions.queries import shown_first
from app.predictions.stored import stored_prediction
from app.tables import Case, CasePrediction, Label, Look, PolicyRow, ReadRequest, now
from app.triage.queries import current_policy, rule_of
from app.triage.rules import NEAR_DUPLICATE_BITS, Arm, Rule, Triage, plan, triage
from ml.images.image_statistics import hash_distance

_SHUFFLE_RANGE = 2**31 - 1
# featureless images share the hash 0 and say nothing about likeness
_NO_HASH = 0
# cases planned in one transaction
_BATCH = 500


def coin(secret: bytes, external_id: str) -> float:
    """The coin u ~ U(0, 1) of a case by a keyed hash of its external id: tossed once, the same in any copy."""
    digest = hmac.new(secret, b"coin:" + external_id.encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def has_twin(session: Session, case: Case, *, selected: bool = False) -> bool:
    """Whether there is an earlier near-duplicate of the same patient, selected for a second read if that is asked."""
    if case.patient is None or case.image_hash is None or case.image_hash == _NO_HASH:
        return False
    earlier = select(Case.image_hash).where(
        Case.patient == case.patient, Case.id < case.id, Case.image_hash.is_not(None)
    )
    if selected:
        earlier = earlier.where(Case.pi >= 1)
    hashes = session.execute(earlier).scalars()
    return any(hash_distance(case.image_hash, other) <= NEAR_DUPLICATE_BITS for other in hashes if other is not None)


def look(session: Session, case: Case, prediction: CasePrediction) -> Triage:
    """Let the policy that holds look at a case and its prediction, and ask for the reads that follow.

    Looking again with the same policy and release changes nothing; with another one the same coin is used and π
    becomes the larger one.
    """
    policy = current_policy(session)
    rule = rule_of(session, policy)
    seen = (
        select(Look.id)
        .where(Look.case_id == case.id, Look.policy_version == policy.version, Look.release_id == prediction.release_id)
        .limit(1)
    )
    found = judge(session, case, prediction, rule)
    if session.execute(seen).first() is not None:
        return found
    selected = found.decision == "second_read"
    planned = plan(case.u, selected, policy.audit_rate, case.pi)
    session.add(
        Look(
            case_id=case.id,
            policy_version=policy.version,
            release_id=prediction.release_id,
            selected=selected,
            pi=1.0 if selected else policy.audit_rate,
            reason=found.reason,
        )
    )
    case.pi = planned.pi
    case.need = float(prediction.disagreement_prob) - (1.0 if has_twin(session, case) else 0.0)
    _ask(session, case, policy, prediction.release_id, planned.arm)
    return found


def judge(session: Session, case: Case, prediction: CasePrediction, rule: Rule) -> Triage:
    """What a rule says about a case."""
    return triage(
        stored_prediction(prediction),
        rule,
        out_of_distribution=prediction.out_of_distribution,
        near_duplicate=not math.isinf(rule.threshold) and has_twin(session, case, selected=True),
    )


def _ask(session: Session, case: Case, policy: PolicyRow, release_id: uuid.UUID, arm: Arm | None) -> None:
    """Ask for the planned reads that a case lacks; a second one never becomes unplanned again."""
    planned = select(func.count()).where(ReadRequest.case_id == case.id, ReadRequest.round == "planned")
    present = session.execute(planned).scalar_one()
    if present == 0:
        session.add(new_request(session, case, policy, release_id, "first"))
        session.flush()
    if present < 2 and arm is not None:
        session.add(new_request(session, case, policy, release_id, arm))
    session.flush()
    refresh_waiting(session, case)


def new_request(session: Session, case: Case, policy: PolicyRow, release_id: uuid.UUID | None, arm: str) -> ReadRequest:
    """A request that nobody has taken yet; its place among those due on the same day is drawn by lot."""
    last = session.execute(
        select(func.coalesce(func.max(ReadRequest.ordinal), 0)).where(ReadRequest.case_id == case.id)
    ).scalar_one()
    due = now() + timedelta(days=policy.due_days)
    return ReadRequest(
        case_id=case.id,
        ordinal=last + 1,
        round="adjudication" if arm == "adjudication" else "planned",
        arm=arm,
        u=case.u,
        pi=1.0 if arm in {"first", "adjudication"} else case.pi,
        policy_version=policy.version,
        release_id=release_id,
        due_at=due,
        due_on=due.date().isoformat(),
        shuffle=secrets.randbelow(_SHUFFLE_RANGE),
        state="open",
    )


def plan_missing(database: Database) -> int:
    """Plan the reads of cases that came before there were plans; doing it again finds none.

    Args:
        database: to write to.

    Returns:
        Number of cases planned.
    """
    done = 0
    while True:
        with database.write() as session:
            rows = cases_without_plan(session, _BATCH)
            for case, prediction in rows:
                look(session, case, prediction)
        if not rows:
            return done
        done += len(rows)


def refresh_waiting(session: Session, case: Case) -> None:
    """Write down whether a read of the case is still wanted; to be called whenever a request is made or ends."""
    session.flush()
    wanted = select(ReadRequest.id).where(ReadRequest.case_id == case.id, ReadRequest.state.in_(("open", "leased")))
    case.waiting = session.execute(wanted.limit(1)).first() is not None


def cases_without_plan(session: Session, limit: int) -> list[tuple[Case, CasePrediction]]:
    """Cases with a prediction, without labels, for which nothing was ever asked, oldest first.

    A case that was labelled before there were plans is left alone: it answers to a selection of its own.
    """
    rows = session.execute(
        select(Case, CasePrediction)
        .join(CasePrediction, CasePrediction.case_id == Case.id)
        .where(
            Case.erased_at.is_(None),
            ~exists().where(ReadRequest.case_id == Case.id),
            ~exists().where(Label.case_id == Case.id),
        )
        .order_by(Case.id, *shown_first())
        .limit(limit)
    )
    shown: dict[uuid.UUID, tuple[Case, CasePrediction]] = {}
    for case, prediction in rows:
        shown.setdefault(case.id, (case, prediction))
    return list(shown.values())
