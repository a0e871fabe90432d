"""Database access of policies, and the threshold of a day."""

import math
from datetime import datetime, timedelta
from typing import NamedTuple, get_args

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.database.engine import insert_if_absent
from app.database.tables import Alias, Case, CasePrediction, DailyThreshold, PolicyRow, ReleaseRow, time_of
from app.predictions.service import champion_first_order
from app.triage.rules import Score, TriageRule, capacity_at_threshold, capacity_scale, capacity_threshold

#: Rules that spend a number of second reads per day: the cases of earlier days set their threshold, or scale.
DAILY = ("capacity", "graded")
#: Days whose cases set it.
CAPACITY_DAYS = 14
# of the newest of those days' cases at most, so that the first case of a day is not kept waiting
_CAPACITY_CASES = 20_000


def current_policy(session: Session) -> PolicyRow:
    """The policy in force: the highest version."""
    return session.execute(select(PolicyRow).order_by(PolicyRow.version.desc()).limit(1)).scalar_one()


def policy_of_version(session: Session, version: int) -> PolicyRow:
    """The policy of a version."""
    return session.execute(select(PolicyRow).where(PolicyRow.version == version)).scalar_one()


def champion_classes(session: Session) -> list[str]:
    """Codes of the classes of the release that predicts new cells; none where there is none yet."""
    champion = select(ReleaseRow.card).join(Alias, Alias.release_id == ReleaseRow.id).where(Alias.name == "champion")
    card = session.execute(champion).scalar_one_or_none()
    return [] if card is None else [str(info["code"]) for info in card["classes"]]


def all_policies(session: Session) -> list[PolicyRow]:
    """Every version, newest first."""
    return list(session.execute(select(PolicyRow).order_by(PolicyRow.version.desc())).scalars())


class DayThreshold(NamedTuple):
    """Threshold of a day, and π of a case whose score it is; None for none."""

    threshold: float | None
    at_threshold: float | None = None


def rule_of(policy: PolicyRow, of_day: DayThreshold) -> TriageRule:
    """A policy as a pure rule."""
    scores: dict[str, Score] = {name: name for name in get_args(Score)}
    return TriageRule(
        score=scores.get(policy.rule, "disagreement"),
        threshold=math.inf if of_day.threshold is None else of_day.threshold,
        audit_rate=policy.audit_rate,
        target_error=policy.target_error,
        adjudicate_below=policy.adjudicate_below,
        max_labels=policy.max_labels,
        at_threshold=of_day.at_threshold or 0.0,
    )


def current_rule(session: Session) -> TriageRule:
    """The rule in force now."""
    policy = current_policy(session)
    return rule_of(policy, threshold_of(session, policy, time_of(session)))


def threshold_of(session: Session, policy: PolicyRow, at: datetime) -> DayThreshold:
    """Return the threshold of a policy on a day, or the scale of a graded rule; None selects no case."""
    # Before the day's threshold of a rule that spends a number of reads is set, this is what it will be.
    if policy.rule not in DAILY:
        return DayThreshold(policy.threshold)
    stored = session.get(DailyThreshold, (policy.version, at.date().isoformat()))
    if stored is None:
        return _threshold_before(session, policy, at)[0]
    return DayThreshold(stored.threshold, stored.at_threshold)


def set_threshold(session: Session, policy: PolicyRow, at: datetime) -> DayThreshold:
    """Threshold of a policy on a day; a rule that spends reads sets it once and keeps it until midnight (UTC)."""
    if policy.rule not in DAILY:
        return DayThreshold(policy.threshold)
    day = at.date().isoformat()
    if session.get(DailyThreshold, (policy.version, day)) is None:
        of_day, n_cases = _threshold_before(session, policy, at)
        values = {"policy_version": policy.version, "day": day, "n_cases": n_cases, **of_day._asdict()}
        insert_if_absent(session, DailyThreshold, values)
    return threshold_of(session, policy, at)


def _threshold_before(session: Session, policy: PolicyRow, at: datetime) -> tuple[DayThreshold, int]:
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    span = (Case.created_at >= midnight - timedelta(days=CAPACITY_DAYS), Case.created_at < midnight)
    n_cases, first = session.execute(select(func.count(), func.min(Case.created_at)).where(*span)).one()
    if not n_cases:
        return DayThreshold(None), 0
    newest = select(Case.id).where(*span).order_by(Case.id.desc()).limit(_CAPACITY_CASES).subquery()
    place = func.row_number().over(partition_by=newest.c.id, order_by=champion_first_order())
    ranked = (
        select(CasePrediction.disagreement_prob, place.label("place"))
        .join(newest, newest.c.id == CasePrediction.case_id)
        .subquery()
    )
    scores_statement = select(ranked.c.disagreement_prob).where(ranked.c.place == 1)
    scores = np.array(session.execute(scores_statement).scalars().all(), dtype=np.float64)
    days = max(1.0, (midnight - first).total_seconds() / 86_400) * scores.size / n_cases
    reads = policy.capacity_per_day or 0
    if policy.rule == "graded":
        threshold, at_threshold = capacity_scale(scores, reads, days, policy.audit_rate), None
    else:
        threshold = capacity_threshold(scores, reads, days, policy.audit_rate)
        tied = capacity_at_threshold(scores, threshold, reads * days, policy.audit_rate)
        at_threshold = tied if tied > policy.audit_rate else None
    return DayThreshold(None if math.isinf(threshold) else threshold, at_threshold), int(n_cases)
