"""Rows compared with what audit events say of them: who gave which label, roles, scopes, releases and aliases.

Events carry digests of the rows that they wrote (``app.operations.proven``); those of older versions do not, and a
baseline covers what was there when the digests began. What those events said is compared here.
"""

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.reads.recorded import label_details
from app.tables import (
    Account,
    Alias,
    ApiKey,
    AuditEvent,
    Case,
    CaseChange,
    CasePrediction,
    Label,
    PolicyRow,
    ReleaseRow,
)

_ROWS = 1000
_KINDS = {
    "label.add": "label",
    "label.correct": "correction",
    "label.revise": "revision",
    "label.retract": "retraction",
}


class _Ledger:
    """What the events say, gathered in one pass over the chain.

    Args:
        session: for reading.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.faults: list[str] = []
        self.labels: set[uuid.UUID] = set()
        #: case -> whether its coin follows from the key for sure
        self.cases: dict[uuid.UUID, bool] = {}
        self.erased: set[uuid.UUID] = set()
        self.roles: dict[uuid.UUID, str] = {}
        self.disabled: dict[uuid.UUID, bool] = {}
        self.linked: set[uuid.UUID] = set()
        self.scopes: dict[uuid.UUID, list[str]] = {}
        self.revoked: set[uuid.UUID] = set()
        self.cards: dict[uuid.UUID, str] = {}
        self.aliases: dict[str, tuple[str, int]] = {}
        self.policies: set[int] = {1}  # the first one came with the tables
        #: release -> number of predictions
        self.predictions: Counter[str] = Counter()
        events = session.execute(
            select(AuditEvent)
            .order_by(AuditEvent.sequence.nulls_last(), AuditEvent.stamp)
            .execution_options(yield_per=_ROWS)
        )
        for chunk in events.scalars().partitions():
            self._take_labels([event for event in chunk if event.action in _KINDS])
            self._take_cases([event for event in chunk if event.action == "case.add"])
            for event in chunk:
                self._take(event)

    def _take(self, event: AuditEvent) -> None:
        """Remember an event about something of which there are few."""
        details = event.details
        match event.action:
            case "case.erase":
                self.erased.add(uuid.UUID(event.object))
            case "predictions.add":
                self.predictions[event.object] += details["n_cases"]
            case "policy.change":
                self._take_policy(event)
            case "release.add":
                self.cards[uuid.UUID(event.object)] = details["card_sha256"]
                if "alias" in details:
                    self.aliases[details["alias"]] = (event.object, 1)
            case "alias.move":
                self.aliases[details["alias"]] = (details["after"], details["revision"])
            case _:
                self._take_access(event)

    def _take_access(self, event: AuditEvent) -> None:
        match event.action:
            case "account.add":
                self.roles[uuid.UUID(event.object)] = event.details["role"]
            case "account.disable" | "account.enable":
                self.disabled[uuid.UUID(event.object)] = event.action == "account.disable"
            case "account.link":
                self.linked.add(uuid.UUID(event.object))
            case "key.add":
                self.scopes[uuid.UUID(event.object)] = event.details["scopes"]
            case "key.revoke":
                self.revoked.add(uuid.UUID(event.object))

    def _take_labels(self, events: Sequence[AuditEvent]) -> None:
        statement = select(Label).where(Label.id.in_([uuid.UUID(event.object) for event in events]))
        rows = {label.id: label for label in self.session.execute(statement).scalars()} if events else {}
        for event in events:
            label = rows.get(uuid.UUID(event.object))
            if label is None:
                self.faults.append(f"label {event.object} of audit event {event.number} is missing")
                continue
            self.labels.add(label.id)
            shown = {**label_details(label), "kind": label.kind}
            kind = _KINDS[event.action]
            if event.action == "label.add" and label.supersedes_id is not None:
                kind = "revision"  # labelled again after a retraction, which continues the chain
            said = {"late": False} | event.details | {"kind": kind}
            self._differ(f"label {label.id}", event, [name for name, value in shown.items() if said[name] != value])

    def _take_cases(self, events: Sequence[AuditEvent]) -> None:
        ids = [uuid.UUID(event.object) for event in events]
        rows, keyed = {}, set()
        if events:
            columns = (Case.id, Case.image_sha256, Case.erased_at)
            rows = {row[0]: row for row in self.session.execute(select(*columns).where(Case.id.in_(ids)))}
            noted = select(CaseChange.case_id).where(CaseChange.stamp.in_([event.stamp for event in events]))
            keyed = set(self.session.execute(noted).scalars())
        for event, case_id in zip(events, ids, strict=True):
            self.predictions[event.details["release"]] += 1
            if case_id not in rows:
                self.faults.append(f"case {case_id} of audit event {event.number} is missing")
                continue
            self.cases[case_id] = case_id in keyed
            _, digest, erased_at = rows[case_id]
            if erased_at is None and event.details.get("image_sha256", digest) != digest:
                self._differ(f"case {case_id}", event, ["image_sha256"])

    def _take_policy(self, event: AuditEvent) -> None:
        version = int(event.object)
        self.policies.add(version)
        row = self.session.execute(select(PolicyRow).where(PolicyRow.version == version)).scalar_one_or_none()
        if row is None:
            self.faults.append(f"policy {version} of audit event {event.number} is missing")
            return
        changed = [name for name, (_, after) in event.details.items() if getattr(row, name) != after]
        self._differ(f"policy {version}", event, changed + (["reason"] if row.reason != event.reason else []))

    def _differ(self, what: str, event: AuditEvent, names: list[str]) -> None:
        if names:
            self.faults.append(f"{what}: {', '.join(names)} not as audit event {event.number} says")

    def unexplained(self, what: str, column: InstrumentedAttribute[uuid.UUID], explained: set[uuid.UUID]) -> None:
        """Name the rows that no event made."""
        for row_id in self.session.execute(select(column).order_by(column)).scalars().yield_per(_ROWS):
            if row_id not in explained:
                self.faults.append(f"{what} {row_id} has no audit event")


def unexplained_rows(session: Session) -> tuple[list[str], dict[uuid.UUID, bool]]:
    """Compare what the audit events say with the rows.

    Args:
        session: for reading.

    Returns:
        A sentence for each row that differs, is missing or has no event; and every case that an event explains, with
        whether its coin follows from the key for sure.
    """
    ledger = _Ledger(session)
    ledger.unexplained("label", Label.id, ledger.labels)
    ledger.unexplained("case", Case.id, set(ledger.cases))
    for version in session.execute(select(PolicyRow.version).order_by(PolicyRow.version)).scalars():
        if version not in ledger.policies:
            ledger.faults.append(f"policy {version} has no audit event")
    ledger.faults += [*_erased(ledger), *_people(ledger), *_releases(ledger), *_predictions(ledger)]
    return ledger.faults, ledger.cases


def _erased(ledger: _Ledger) -> Iterator[str]:
    erased = set(ledger.session.execute(select(Case.id).where(Case.erased_at.is_not(None))).scalars())
    for case_id in sorted(erased ^ ledger.erased):
        yield f"case {case_id}: " + (
            "erased without an audit event" if case_id in erased else "not erased, although an audit event says so"
        )


def _people(ledger: _Ledger) -> Iterator[str]:
    for account in ledger.session.execute(select(Account).order_by(Account.id)).scalars():
        said = ledger.roles.get(account.id)
        differs = f"is {account.role}, its audit event says {said}"
        yield from _as_granted(f"account {account.name}", said, account.role, differs)
        if ledger.disabled.get(account.id, False) != (account.disabled_at is not None):
            yield f"account {account.name}: disabled or enabled without an audit event"
        if (account.oidc_subject is not None) != (account.id in ledger.linked):
            yield f"account {account.name}: linked to single sign-on, or unlinked, without an audit event"
    for key in ledger.session.execute(select(ApiKey).order_by(ApiKey.id)).scalars():
        scopes = ledger.scopes.get(key.id)
        yield from _as_granted(f"key {key.id}", scopes, key.scopes, "scopes not as its audit event says")
        if (key.revoked_at is not None) != (key.id in ledger.revoked):
            yield f"key {key.id}: revoked or restored without an audit event"


def _as_granted(who: str, said: object, stored: object, differs: str) -> Iterator[str]:
    """Compare what an event said when somebody was let in with what the row says."""
    if said is None:
        yield f"{who}: no audit event"
    elif said != stored:
        yield f"{who}: {differs}"


def _releases(ledger: _Ledger) -> Iterator[str]:
    for row in ledger.session.execute(select(ReleaseRow).order_by(ReleaseRow.id)).scalars():
        card = ledger.cards.get(row.id)
        if card != row.card_sha256:
            yield f"release {row.id}: " + ("no audit event" if card is None else "card_sha256 not as its event says")
    rows = {row.name: (str(row.release_id), row.revision) for row in ledger.session.execute(select(Alias)).scalars()}
    for name in sorted(rows.keys() | ledger.aliases.keys()):
        if rows.get(name) != ledger.aliases.get(name):
            yield f"alias {name}: is not where its last audit event put it"


def _predictions(ledger: _Ledger) -> Iterator[str]:
    counted = select(CasePrediction.release_id, func.count()).group_by(CasePrediction.release_id)
    stored = Counter({str(release_id): count for release_id, count in ledger.session.execute(counted)})
    for release in sorted(stored.keys() | ledger.predictions.keys()):
        if stored[release] != ledger.predictions[release]:
            yield (
                f"release {release}: {stored[release]} predictions, its audit events say {ledger.predictions[release]}"
            )
