"""Describes audit events in sentences with links to cases, people and releases."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.events import AuditEventOut
from app.database.tables import Account, Annotator, ApiKey, Case, Job, PracticeSet, ReleaseRow
from app.http.errors import NoRelease
from app.releases.service import class_names
from ml.messages import Message, messages

#: Puts an English sentence into another language.
Say = Callable[[str], str]
#: What each action says, after who did it. In braces what the event is about.
WORDS: Mapping[str, str] = messages(
    {
        "label.add": "labelled {case}: {label}{by}",
        "label.correct": "corrected the label of {case}, still blinded: {label}{by}",
        "label.revise": "changed the label of {case}: {label}{by}",
        "label.retract": "withdrew the label of {case}{by}",
        "label.final": "finalized {labels}",
        "label.batch": "stored {labels} of another system",
        "repeat.add": "labelled {case} a second time: {label}",
        "repeat.correct": "corrected the second label of {case}: {label}",
        "repeat.revise": "changed the second label of {case}: {label}",
        "repeat.retract": "took back the second label of {case}",
        "repeat.final": "finalized {labels}",
        "repeat.decline": "skipped a second read of {case}: {reason}",
        "read.decline": "skipped {case}: {reason}",
        "request.ask": "requested {requests}",
        "request.assign": "assigned {requests} to {annotator}",
        "request.due": "changed the due date of {requests}",
        "outcome.settle": "settled {case} as {outcome}",
        "outcome.conclude": "settled {case} by rule as {outcome}",
        "outcome.reopen": "reopened {case}",
        "case.add": "stored {case}",
        "specimen.add": "stored a specimen",
        "specimen.sign": "signed a specimen as {meaning}, version {number}",
        "specimen.erase": "erased a specimen",
        "specimen.plan": "requested second reads of {n_cells} cells of a specimen",
        "specimens.fit": "learned version {version} of what specimens have in common",
        "patient.erase": "erased a patient: {n_cases} cells, {n_remarks} notes, {n_import_rows} rows of imports",
        "predictions.add": "added predictions of {release} for {n_cases} cells",
        "release.add": "added the release {release}",
        "alias.move": "set {release} as {alias}",
        "gate.attempt": "began attempt {number} on {champion}",
        "gate.judge": "ran the promotion check on {release}",
        "policy.change": "created version {policy} of the reading policy",
        "targets.change": "set version {targets} of the laboratory's targets",
        "classes.change": "created version {classes} of the class settings",
        "readers.fit": "fitted version {version} of the annotator model",
        "readers.switch": "switched the annotator model: {before} → {after}",
        "job.submit": "requested {job}",
        "job.cancel": "stopped {job}",
        "job.retry": "retried {job}",
        "account.add": "added {account} as {role}",
        "account.disable": "disabled the account {account}",
        "account.enable": "enabled the account {account}",
        "account.link": "linked {account} to single sign-on",
        "account.one_time_password": "created a one-time password for {account}",
        "account.password": "chose a new password",
        "account.throttle": "was slowed down after wrong passwords",
        "session.start": "signed in",
        "key.add": "created an API key for {account}",
        "key.revoke": "revoked an API key of {account}",
        "key.rotate": "rotated the service's key",
        "practice.set": "created the set {set}",
        "practice.retire": "retired the set {set}",
        "practice.begin": "began a run of {set}",
        "practice.answer": "answered a cell of a training or qualification run",
        "practice.finish": "finished a training or qualification run",
        "reference.choose": "chose reference cells: {n_chosen} new, {n_dropped} dropped",
        "reference.chosen": "chose {case} as a reference cell of {class}",
        "reference.pinned": "pinned {case} as a reference cell of {class}",
        "reference.excluded": "excluded {case} from the reference cells of {class}",
        "definition.change": "defined {class}",
        "annotator.qualified": "qualified {annotator}",
        "annotator.withdrawn": "withdrew the qualification of {annotator}",
        "annotator.renewed": "allowed {annotator} further attempts",
        "comment.add": "commented on {case}",
        "invitation.create": "invited {account} to read {cells}",
        "invitation.use": "signed in by an invitation",
        "db.backup": "created a backup",
        "db.restore": "restored a backup",
        "db.accept_older_head": "accepted a database that had lost events",
        "rows.baseline": "recorded the digests of the first rows",
        "rows.write": "recorded the digests of rows",
    }
)


#: Jobs by their kind.
_JOBS: Mapping[str, str] = messages(
    {
        "check": "a check of an import",
        "evaluation": "a frozen evaluation",
        "import": "an import",
        "judgement": "the promotion check of a model release",
        "prediction": "predictions for existing cells",
        "readers": "an annotator model",
        "recalibration": "a recalibration",
        "report": "a report",
    }
)

_ONE = messages({"labels": "{n} label", "requests": "{n} further read", "cells": "{n} cell"})
_MANY = messages({"labels": "{n} labels", "requests": "{n} further reads", "cells": "{n} cells"})


@dataclass(frozen=True)
class SentencePart:
    """A piece of a sentence, and where it leads."""

    text: str
    link: str | None = None
    # what the event is about, not words of the sentence itself
    of_event: bool = False


def summarize_action(action: str, say: Say = str) -> str:
    """Text of an action without its object.

    >>> summarize_action("label.add"), summarize_action("unheard.of")
    ('labelled …: …', 'unheard.of')
    """
    template = say(WORDS.get(action, action))
    parts = ((text, name) for text, name, _, _ in Formatter().parse(template))
    return "".join(text + ("" if name in {None, "by"} else "…") for text, name in parts)


def describe_events(session: Session, events: Sequence[AuditEventOut], say: Say = str) -> dict[int, list[SentencePart]]:
    """Describe each event, by its number, in the language of ``say``."""
    names = _EventNames(session, events, say)
    return {event.sequence: list(_build_sentence(event, names)) for event in events}


def strip_links(parts: Iterable[SentencePart]) -> str:
    """Return a sentence without its links."""
    return "".join(part.text for part in parts)


def _build_sentence(event: AuditEventOut, known: "_EventNames") -> Iterable[SentencePart]:
    for text, name, _, _ in Formatter().parse(known.say(WORDS.get(event.action, event.action))):
        if text:
            yield SentencePart(text)
        if name is not None:
            yield replace(known.part(name, event), of_event=True)


def _parse_uuid(value: object) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(value))
    except ValueError:
        return None


class _EventNames:
    """Names of what some events are about, read in one statement per kind."""

    def __init__(self, session: Session, events: Sequence[AuditEventOut], say: Say) -> None:
        self.say = say
        named = [event.object for event in events]
        for event in events:
            named += [str(event.details[name]) for name in _REFERRING if event.details.get(name) is not None]
        ids = {object_id for object_id in map(_parse_uuid, named) if object_id is not None}
        self.cases = {
            row[0]: say(Message("an erased cell")) if row[2] is not None else row[1]
            for row in session.execute(select(Case.id, Case.external_id, Case.erased_at).where(Case.id.in_(ids)))
        }
        of_keys = session.execute(select(ApiKey.id, ApiKey.account_id).where(ApiKey.id.in_(ids)))
        keys = {row[0]: row[1] for row in of_keys}
        accounts = select(Account.id, Account.name).where(Account.id.in_(ids | set(keys.values())))
        self.accounts = {row[0]: row[1] for row in session.execute(accounts)}
        self.of_keys = {key: (account, self.accounts.get(account, "")) for key, account in keys.items()}
        self.annotators = _by_id(session, Annotator, ids)
        self.releases = _by_id(session, ReleaseRow, ids)
        self.sets = _by_id(session, PracticeSet, ids)
        self.jobs = {row[0]: row[1] for row in session.execute(select(Job.id, Job.kind).where(Job.id.in_(ids)))}
        try:
            self.classes = {code: say(name) for code, name in class_names(session).items()}
        except NoRelease:
            self.classes = {}

    def part(self, name: str, event: AuditEventOut) -> SentencePart:
        """What stands for a name in braces."""
        details, own = event.details, _parse_uuid(event.object)
        match name:
            case "case":
                return self._case(_parse_uuid(details.get("case")) or own)
            case "release" | "champion":
                return self._release(_parse_uuid(details.get("champion")) if name == "champion" else own)
            case "account":
                return self._account(own, str(details.get("account", self.say(Message("an account")))))
            case "job":
                kind = str(details.get("kind") or (own and self.jobs.get(own)))
                pages = {"check": f"/imports/checks/{own}", "import": f"/imports/{own}"}
                return SentencePart(self.say(_JOBS.get(kind, f"a job ({kind})")), pages.get(kind, "/jobs"))
            case "policy" | "targets" | "classes":
                pages = {"policy": "/policy", "targets": "/report", "classes": "/classes"}
                return SentencePart(event.object, pages[name])
            case _:
                return SentencePart(self._text(name, event, own))

    def _text(self, name: str, event: AuditEventOut, own: uuid.UUID | None) -> str:
        details = event.details
        match name:
            case "label":
                return self.classes.get(details["label"], details["label"] or self.say("nothing"))
            case "class":
                return self.classes.get(details["class"], str(details["class"]))
            case "outcome":
                return self.classes.get(details["class"], details["class"] or self.say(Message("split")))
            case "by":
                by = self.annotators.get(_parse_uuid(details.get("annotator")), "")
                return "" if by in {"", event.actor} else self.say(Message(" (read by {by})", by=by))
            case "annotator":
                return self.annotators.get(own, str(details.get("annotator", self.say(Message("an annotator")))))
            case "set":
                return str(details.get("name") or self.sets.get(_parse_uuid(details.get("set")) or own, ""))
            case "labels" | "requests" | "cells":
                n = len(details.get(name, ()))
                return self.say(Message((_ONE if n == 1 else _MANY)[name], n=n))
            case _:
                return self.say(_as_text(details.get(name)))

    def _case(self, case_id: uuid.UUID | None) -> SentencePart:
        name = self.cases.get(case_id) if case_id is not None else None
        return SentencePart(self.say(Message("a cell"))) if name is None else SentencePart(name, f"/cases/{case_id}")

    def _release(self, release_id: uuid.UUID | None) -> SentencePart:
        name = self.releases.get(release_id) if release_id is not None else None
        return (
            SentencePart(self.say(Message("a release")))
            if name is None
            else SentencePart(name, f"/releases/{release_id}")
        )

    def _account(self, own: uuid.UUID | None, otherwise: str) -> SentencePart:
        account_id, name = self.of_keys.get(own, (own, self.accounts.get(own, ""))) if own else (None, "")
        return SentencePart(name or otherwise, f"/people/{account_id}" if account_id in self.accounts else None)


_REFERRING = ("case", "annotator", "champion", "set")


def _as_text(value: object) -> str:
    return "none" if value is None else str(value).replace("_", " ")


def _by_id(
    session: Session, table: type[Annotator | ReleaseRow | PracticeSet], ids: set[uuid.UUID]
) -> dict[uuid.UUID | None, str]:
    rows = session.execute(select(table.id, table.name).where(table.id.in_(ids)))
    return {row[0]: row[1] for row in rows}
