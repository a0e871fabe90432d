"""Integrity of everything that is kept: audit chain, rows, images, releases, evaluations."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations.freezing import folder_of, snapshot_sha256
from app.evaluations.snapshots import damaged_snapshots
from app.operations.derived import wrong_columns
from app.operations.explained import NOT_COMPARED, unexplained_rows
from app.platform import audit_chain
from app.releases.queries import all_releases
from app.tables import Case, Evaluation
from ml.release.artifact import ReleaseError, read_release

#: Answers of a check without faults: the chain cannot say itself that nobody cut it or wrote it anew.
CONSISTENT = "consistent, not proven complete"
COMPLETE = "consistent, and it contains the given head"


@dataclass(frozen=True)
class Integrity:
    """What a check of everything that is kept came to: counts, and a sentence for each fault.

    Attributes:
        n_events: audit events.
        n_images: images that cases name.
        n_releases: releases.
        n_evaluations: frozen evaluations.
        faults: a sentence for each.
        verdict: one line.
        head: number and digest of the newest event, to be kept outside and given to a later check.
        not_compared: what no event says, so that a change would not be found.
    """

    n_events: int
    n_images: int
    n_releases: int
    n_evaluations: int
    faults: list[str]
    verdict: str
    head: str
    not_compared: tuple[str, ...] = NOT_COMPARED

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def verify_all(session: Session, context: Context, against: str | None = None) -> Integrity:
    """Check the audit chain, the rows that its events explain, and every image, release and evaluation.

    Args:
        session: for reading.
        context: parts of the service.
        against: head of an earlier check, which was kept outside the database.

    Raises:
        ValueError: that is not a head.
    """
    n_events, faults = audit_chain.verify(session, context.secret)
    if against is not None:
        faults += _missing_head(session, against)
    rows, cases = unexplained_rows(session)
    faults += rows
    session.expunge_all()
    faults += wrong_columns(session, context, cases)
    n_images = 0
    for digest in session.execute(select(Case.stored_sha256).where(Case.erased_at.is_(None)).distinct()).scalars():
        n_images += 1
        if not context.images.intact(digest):
            faults.append(f"image {digest} is missing or was changed")
    releases = all_releases(session)
    faults += _damaged_releases(session, context)
    evaluations = session.execute(select(Evaluation)).scalars().all()
    faults += _damaged_evaluations(context, evaluations)
    whole = CONSISTENT if against is None else COMPLETE
    faults += [
        f"snapshot {path}: damaged; the worker writes it anew" for path in damaged_snapshots(context.settings.home)
    ]
    head = "{}:{}".format(*audit_chain.head_of(session))
    verdict = f"not consistent: {len(faults)} faults" if faults else whole
    return Integrity(n_events, n_images, len(releases), len(evaluations), faults, verdict, head)


def _missing_head(session: Session, against: str) -> Iterator[str]:
    sequence, _, digest = against.partition(":")
    if not sequence.isdecimal() or len(digest) != len(audit_chain.GENESIS):
        raise ValueError(f"{against!r} is not a head: it is the number of an event, a colon and its digest")
    if not audit_chain.holds(session, int(sequence), digest):
        yield f"the audit chain does not contain the head {sequence}: it was cut or written anew"


def _damaged_releases(session: Session, context: Context) -> Iterator[str]:
    for row in all_releases(session):
        try:
            release = read_release(context.settings.releases_folder / str(row.id))
            if release.card_sha256 != row.card_sha256:
                yield f"release {row.id}: card.json was changed"
        except ReleaseError as exc:
            yield f"release {row.id}: {exc}"


def _damaged_evaluations(context: Context, evaluations: Sequence[Evaluation]) -> Iterator[str]:
    for evaluation in evaluations:
        try:
            intact = snapshot_sha256(folder_of(context.settings.home, evaluation.id)) == evaluation.snapshot_sha256
        except OSError:
            intact = False
        if not intact:
            yield f"evaluation {evaluation.id}: its tables are missing or were changed"
