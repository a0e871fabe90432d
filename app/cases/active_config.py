"""What predictions are made and judged by just now, held in memory for as long as the database says that it is so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, select
from sqlalchemy.orm import Session

from app.database.engine import Database
from app.database.tables import Alias, AnswerSets, DailyThreshold, PolicyRow, time_of
from app.predictions.inference import Inference, Served
from app.predictions.prediction_sets import PublishedSets, published_sets
from app.releases.queries import champion
from app.triage.queries import DAILY, current_policy, rule_of, threshold_of
from app.triage.rules import Rule


def _revision() -> tuple[ColumnElement[Any], ...]:
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
REVISION = _revision()
_REVISION = select(*REVISION)


@dataclass(frozen=True)
class InForce:
    """What predictions are made and judged by.

    Attributes:
        served: the release.
        rule: of the policy, with the threshold of the day.
        sets: thresholds of the release, None without any.
    """

    served: Served
    rule: Rule
    sets: PublishedSets | None


class HeldInForce:
    """What is in force, read anew as soon as its revision in the database is another one.

    Args:
        inference: loads releases.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._held: tuple[tuple[Any, ...], InForce] | None = None

    def if_known(self, seen: Sequence[Any] | None) -> InForce | None:
        """What is held, where ``seen`` says that it is still in force; without asking the database.

        Args:
            seen: ``REVISION`` as the statement that found the caller saw it.
        """
        held = self._held
        return held[1] if held is not None and seen is not None and held[0] == tuple(seen) else None

    def now(self, database: Database, seen: Sequence[Any] | None) -> InForce:
        """What is in force, never older than what the database said when it was asked.

        Args:
            database: of the service.
            seen: ``REVISION`` as the statement that found the caller saw it; None: it is asked for here.

        Raises:
            NoRelease: there is no champion, or the first one cannot be loaded.
            Unavailable: the backend does not answer, or has another network.
        """
        revision, held = None if seen is None else tuple(seen), self._held
        if held is not None and held[0] == revision:
            return held[1]
        with database.read() as session:
            # what is read after a revision is that revision's, or newer
            revision = tuple(session.execute(_REVISION, {"today": time_of(session).date().isoformat()}).one())
            if held is not None and held[0] == revision:
                return held[1]
            found, lasting = self._read(session)
        self._held = (revision, found) if lasting else None
        return found

    def _read(self, session: Session) -> tuple[InForce, bool]:
        """What is in force, and whether it is until the revision changes."""
        policy, alias = current_policy(session), champion(session)
        served = self._inference.served(alias)
        sets = published_sets(session, [served.release_id]).get(served.release_id)
        at = time_of(session)
        found = InForce(served, rule_of(policy, threshold_of(session, policy, at)), sets)
        # a threshold that is not stored yet follows the cases; a release that cannot be loaded is tried again
        day = (policy.version, at.date().isoformat())
        stored = policy.rule not in DAILY or session.get(DailyThreshold, day) is not None
        return found, stored and alias is not None and served.revision == alias.revision
