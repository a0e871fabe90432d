"""Cache the champion, triage rule and set thresholds until their revision changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, select
from sqlalchemy.orm import Session

from app.database.engine import Database
from app.database.tables import Alias, AnswerSets, DailyThreshold, PolicyRow, time_of
from app.predictions.service import InferenceEngine, LoadedRelease, PublishedSets, read_published_sets
from app.releases.service import get_champion_alias
from app.triage.service import DAILY, TriageRule, current_policy, rule_of, threshold_of


def _revision_columns() -> tuple[ColumnElement[Any], ...]:
    """Champion, policy, threshold of the day, and when sets of classes were calibrated: each change changes one."""
    of_champion = select(Alias.release_id).where(Alias.name == "champion").scalar_subquery()
    moves = select(Alias.revision).where(Alias.name == "champion").scalar_subquery()
    policy = select(func.max(PolicyRow.version)).scalar_subquery()
    # its identifier too: where an older database was brought back, another one may have come to the same number
    which = select(PolicyRow.id).where(PolicyRow.version == policy).scalar_subquery()
    today = DailyThreshold.day == bindparam("today")
    of_today = [
        select(column).where(DailyThreshold.policy_version == policy, today).scalar_subquery()
        for column in (DailyThreshold.n_cases, DailyThreshold.threshold)
    ]
    sets = [
        select(column).where(AnswerSets.release_id == of_champion).scalar_subquery()
        for column in (AnswerSets.computed_at, AnswerSets.basis)
    ]
    parts = (of_champion, moves, which, *of_today, *sets)
    return tuple(part.label(f"in_force_{number}") for number, part in enumerate(parts))


#: What tells whether that which is held is still in force: columns for the statement that finds a caller. Their
#: parameter ``today`` is the day on which it is sent.
REVISION = _revision_columns()
_REVISION = select(*REVISION)


@dataclass(frozen=True)
class ActiveConfig:
    """Configuration that predicts and triages new cases."""

    served: LoadedRelease
    # of the policy, with the threshold of the day
    rule: TriageRule
    # thresholds of the release, None without any
    sets: PublishedSets | None


class ActiveConfigCache:
    """Cache of the active configuration, reloaded when its revision in the database changes."""

    def __init__(self, inference: InferenceEngine) -> None:
        self._inference = inference
        self._held: tuple[tuple[Any, ...], ActiveConfig] | None = None

    def if_known(self, seen: Sequence[Any] | None) -> ActiveConfig | None:
        """Return the cached configuration if ``seen`` is its revision, without a database query."""
        held = self._held
        return held[1] if held is not None and seen is not None and held[0] == tuple(seen) else None

    def now(self, database: Database, seen: Sequence[Any] | None) -> ActiveConfig:
        """Return the active configuration, never older than the revision in the database."""
        revision, held = None if seen is None else tuple(seen), self._held
        if held is not None and held[0] == revision:
            return held[1]
        with database.read() as session:
            # what is read after a revision is that revision's, or newer
            revision = tuple(session.execute(_REVISION, {"today": time_of(session).date().isoformat()}).one())
            if held is not None and held[0] == revision:
                return held[1]
            config, lasting = self._read(session)
        self._held = (revision, config) if lasting else None
        return config

    def _read(self, session: Session) -> tuple[ActiveConfig, bool]:
        """Return the active configuration, and whether it may be cached until the revision changes."""
        policy, alias = current_policy(session), get_champion_alias(session)
        served = self._inference.served(alias)
        sets = read_published_sets(session, [served.release_id]).get(served.release_id)
        at = time_of(session)
        config = ActiveConfig(served, rule_of(policy, threshold_of(session, policy, at)), sets)
        # a threshold that is not stored yet follows the cases; a release that cannot be loaded is tried again
        day = (policy.version, at.date().isoformat())
        stored = policy.rule not in DAILY or session.get(DailyThreshold, day) is not None
        return config, stored and alias is not None and served.revision == alias.revision
