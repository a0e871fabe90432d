"""Second reads that the policy in force requests among the evaluated cells."""

import math
import uuid
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.database.tables import Case
from app.metrics import service as metric_service
from app.triage.service import current_policy, current_rule, second_read_probabilities
from ml.util.arrays import FloatArray

ScoreName = Literal["disagreement", "expected_gain", "specimen_value"]


@dataclass(frozen=True)
class RequestedReads:
    """The cells of a cohort (N,) under one version of the policy."""

    policy_version: int
    # what the rule goes by; ``score`` is the disagreement of a rule that chooses by specimen
    by: ScoreName
    # cells that are unlike the training cells come first, near-duplicates last
    score: FloatArray
    # Probability that the rule selects the cell: 0 or 1 but for cells at its threshold, since random-sample reads are
    # extra: π = s + ε (1 − s). Of graded reads π, which has no random sample beside it. None while a daily rule has no
    # threshold, and of a rule that chooses by specimen
    selected: FloatArray | None


def apply_policy(session: Session, release_id: uuid.UUID, cohort: metric_service.Cohort) -> RequestedReads:
    """Apply the rule in force to the stored predictions of a cohort."""
    rule, data, ids = current_rule(session), cohort.columns, cohort.columns.ids()
    by: ScoreName = "disagreement" if rule.score == "graded" else rule.score
    gain = np.full(len(data), np.nan)
    if by == "expected_gain":
        gain = metric_service.load_expected_gains(session, release_id, ids)
    twins = set(session.execute(select(Case.id).where(Case.twin_selected)).scalars())
    near = np.array([case_id in twins for case_id in ids], dtype=bool)
    unlike = np.asarray(data.out_of_distribution != 0)
    pi = second_read_probabilities(rule, data.disagreement_probs, gain, unlike, near)
    beyond_audit = (pi - rule.audit_rate) / (1 - rule.audit_rate) if rule.audit_rate < 1 else pi
    score = np.where(np.isnan(gain), data.disagreement_probs, gain)
    return RequestedReads(
        policy_version=current_policy(session).version,
        by=by,
        score=np.where(unlike, 1.0, np.where(near, 0.0, score)),
        selected=None if math.isinf(rule.threshold) else pi if rule.score == "graded" else beyond_audit,
    )
