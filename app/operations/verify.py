"""Integrity of everything that is kept: audit chain, rows, images, releases, evaluations."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.cases.queries import named_images
from app.context import Context
from app.database.tables import Evaluation, ReleaseRow
from app.evaluations.frozen_files import frozen_name, snapshot_sha256
from app.evaluations.snapshots import damaged_snapshots
from app.http.errors import NotFound, Unavailable
from app.jobs.locks import living_workers
from app.operations.anchor import missing_heads, restores, split_head
from app.operations.derived import wrong_columns
from app.operations.proven import guarded, unproven_rows
from app.operations.twin_pairs import wrong_pairs
from app.platform import audit_chain, chain_check
from app.platform.covered_rows import COVERED, NOT_COVERED
from app.platform.sealing import held_up
from app.releases.queries import all_releases
from ml.release.artifact import ReleaseError, read_release

_OF_THE_CHAIN = {"audit_events", "audit_head", "case_changes"}
#: Answers of a check without faults: the chain cannot say itself that nobody cut it or wrote it anew.
CONSISTENT = "consistent, not proven complete"
COMPLETE = "consistent, and it contains the given head"
#: Columns and tables that may change without an event, each with the reason.
NOT_COMPARED = (
    *(f"{table}.{column}: {why}" for table, coverage in COVERED.items() for column, why in coverage.free.items()),
    "reads: leases that are under way, ran out or were given back: they come and go without an event; what a lease "
    "leads to, a label or a declined read, is covered, and a forged one could only choose who reads a case next",
    *(f"{table}: {why}" for table, why in NOT_COVERED.items() if table not in _OF_THE_CHAIN),
)


@dataclass(frozen=True)
class Integrity:
    """What a check of everything that is kept came to: counts, and a sentence for each fault.

    Attributes:
        n_events: audit events.
        n_images: images that cases name, and their fields.
        n_releases: releases.
        n_evaluations: frozen evaluations.
        faults: a sentence for each.
        verdict: one line.
        head: number and digest of the newest event, to be kept outside and given to a later check.
        public_key: with which anybody can check the chain's signatures.
        waiting: why audit events have waited to be linked for more than a second; None where none has.
        restores: a sentence for each backup that was brought back.
        not_compared: what no event says, so that a change would not be found.
    """

    n_events: int
    n_images: int
    n_releases: int
    n_evaluations: int
    faults: list[str]
    verdict: str
    head: str
    public_key: str
    restores: list[str]
    waiting: str | None = None
    not_compared: tuple[str, ...] = NOT_COMPARED

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def verify_all(session: Session, context: Context, against: str | None = None) -> Integrity:
    """Check the audit chain, the rows that its events explain, and every image, release and evaluation.

    Args:
        session: for reading.
        context: parts of the service.
        against: head of an earlier check, or a file of heads, which was kept outside the database; the file that the
            settings name is asked in any case.

    Raises:
        ValueError: that is neither a head nor a file.
    """
    n_events, faults = chain_check.verify(session, context.keys.audit)
    outside, lost = _missing_heads(session, context, against)
    faults += outside
    faults += guarded("audit events", lambda: unproven_rows(session, context.keys.audit.rows))
    session.expunge_all()
    faults += guarded("cases", lambda: wrong_columns(session, context))
    faults += guarded("pairs of the same picture", lambda: wrong_pairs(session))
    digests = sorted(named_images(session))
    faults += guarded("images", lambda: _damaged_images(context, digests))
    n_releases = session.execute(select(func.count()).select_from(ReleaseRow)).scalar_one()
    faults += guarded("releases", lambda: _damaged_releases(session, context))
    n_evaluations = session.execute(select(func.count()).select_from(Evaluation)).scalar_one()
    faults += guarded("evaluations", lambda: _damaged_evaluations(session, context))
    faults += guarded("snapshots", lambda: _damaged_snapshots(context))
    back = restores(session)
    anchored = against is not None or context.settings.audit_anchor is not None
    whole = COMPLETE if anchored and not lost else CONSISTENT
    return Integrity(
        n_events,
        len(digests),
        n_releases,
        n_evaluations,
        faults,
        verdict=f"not consistent: {len(faults)} faults" if faults else whole,
        head=audit_chain.newest(session),
        public_key=context.keys.audit.public_key,
        restores=lost
        + [f"audit event {event}: a backup was brought back, which ended at {last}" for event, last in back],
        waiting=held_up(session, living_workers(session)),
    )


def _missing_heads(session: Session, context: Context, against: str | None) -> tuple[list[str], list[str]]:
    """Faults by what was kept outside, and a sentence about a given head that went when a backup was brought back.

    Raises:
        ValueError: what was given is neither a head nor a file.
    """
    paths = [] if context.settings.audit_anchor is None else [context.settings.audit_anchor]
    faults: list[str] = []
    lost: list[str] = []
    if against is not None and Path(against).is_file():
        paths.append(Path(against))
    elif against is not None:
        sequence, digest = split_head(against)
        if not audit_chain.holds(session, sequence, digest):
            by = [event for event, last in restores(session) if last < sequence]
            sentence = f"the audit chain does not contain the head {sequence}: "
            if by:
                lost.append(f"{sentence}audit event {by[0]} says that an older backup was brought back")
            else:
                faults.append(f"{sentence}it was cut or written anew")
    for path in paths:
        faults += missing_heads(path, session, context.keys.audit)
    return faults, lost


def _damaged_images(context: Context, digests: Sequence[str]) -> Iterator[str]:
    for digest in digests:
        try:
            if not context.images.intact(digest):
                yield f"image {digest} is missing or was changed"
        except Unavailable:
            context.images.store.check()  # else it is this one alone
            yield f"image {digest} cannot be read"


def _damaged_releases(session: Session, context: Context) -> Iterator[str]:
    for row in all_releases(session):
        name = f"releases/{row.id}"
        if not context.folders.is_stored(name):
            yield f"release {row.id}: missing in the bucket, or damaged there"
        try:
            release = read_release(context.folders.path(name))
            if release.card_sha256 != row.card_sha256:
                yield f"release {row.id}: card.json was changed"
        except (NotFound, Unavailable, ReleaseError) as exc:
            yield f"release {row.id}: {exc}"


def _damaged_snapshots(context: Context) -> Iterator[str]:
    for name in damaged_snapshots(context.folders):
        yield f"snapshot {name}: damaged; the worker writes it anew"


def _damaged_evaluations(session: Session, context: Context) -> Iterator[str]:
    for evaluation in session.execute(select(Evaluation)).scalars():
        name = frozen_name(context.folders, evaluation.id, evaluation.snapshot_sha256)
        try:
            intact = context.folders.is_stored(name) and (
                snapshot_sha256(context.folders.path(name)) == evaluation.snapshot_sha256
            )
        except (OSError, Unavailable):
            intact = False
        if not intact:
            yield f"evaluation {evaluation.id}: its tables are missing or were changed"
