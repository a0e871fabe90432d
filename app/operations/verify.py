"""Integrity of everything that is kept: audit chain, images, releases."""

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations.freezing import folder_of, snapshot_sha256
from app.platform import audit_chain
from app.releases.queries import all_releases
from app.tables import Case, Evaluation
from ml.release.artifact import ReleaseError, read_release


@dataclass(frozen=True)
class Integrity:
    """What a check of everything that is kept came to: counts, and a sentence for each fault."""

    n_events: int
    n_images: int
    n_releases: int
    n_evaluations: int
    faults: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def verify_all(session: Session, context: Context) -> Integrity:
    """Check the audit chain, the digest of every image that a case names, every release and every evaluation."""
    n_events, faults = audit_chain.verify(session, context.secret)
    n_images = 0
    for digest in session.execute(select(Case.stored_sha256).where(Case.erased_at.is_(None)).distinct()).scalars():
        n_images += 1
        if not context.images.intact(digest):
            faults.append(f"image {digest} is missing or was changed")
    releases = all_releases(session)
    for row in releases:
        try:
            release = read_release(context.settings.releases_folder / str(row.id))
            if release.card_sha256 != row.card_sha256:
                faults.append(f"release {row.id}: card.json was changed")
        except ReleaseError as exc:
            faults.append(f"release {row.id}: {exc}")
    evaluations = session.execute(select(Evaluation)).scalars().all()
    for evaluation in evaluations:
        try:
            intact = snapshot_sha256(folder_of(context.settings.home, evaluation.id)) == evaluation.snapshot_sha256
        except OSError:
            intact = False
        if not intact:
            faults.append(f"evaluation {evaluation.id}: its tables are missing or were changed")
    return Integrity(n_events, n_images, len(releases), len(evaluations), faults)
