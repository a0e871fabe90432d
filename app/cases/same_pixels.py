"""Digests of pixels that become known later than their case: of images of earlier versions, and of damaged ones."""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import permutations

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from app.tables import UNKNOWN_PIXELS, Case, CaseTwin


@dataclass(frozen=True)
class Pixels:
    """Digests of the pixels of a case's image and of the field around the cell; None where it is unknown, or absent."""

    image: str | None
    field: str | None


def any_unknown(session: Session) -> bool:
    """Whether the pixels of any image or field are not known."""
    return session.execute(select(Case.id).where(UNKNOWN_PIXELS).limit(1)).first() is not None


@dataclass(frozen=True)
class Replacement:
    """A file that takes the place of a damaged one, with the digest of its pixels."""

    stored_sha256: str
    pixels_sha256: str


def know_pixels(
    session: Session,
    cases: Collection[Case],
    known: Mapping[uuid.UUID, Pixels],
    unproven: Collection[uuid.UUID] = (),
) -> int:
    """Write down digests of pixels where there are none, and link the cases with twins that this shows.

    Partition, place in the worklist and what else followed from a case when it was stored stay as they are.

    Args:
        session: writing session.
        cases: locked.
        known: of each of them.
        unproven: those that are not as their audit events say; none vouches for them now, so that they stay named.

    Returns:
        Number of cases of which something new is known.
    """
    told: dict[uuid.UUID, str | None] = {}
    for case in cases:
        image = case.pixels_sha256 or known[case.id].image
        field = case.field_pixels_sha256 or (None if case.stored_field_sha256 is None else known[case.id].field)
        if (image, field) == (case.pixels_sha256, case.field_pixels_sha256):
            continue
        told[case.id] = image
        if case.id in unproven:  # past the unit of work, which would tell the next event
            values = {"pixels_sha256": image, "field_pixels_sha256": field}
            unseen = update(Case).where(Case.id == case.id).values(values)
            session.execute(unseen.execution_options(synchronize_session=False))
        else:
            case.pixels_sha256, case.field_pixels_sha256 = image, field
    session.flush()
    _link_twins(session, told)
    return len(told)


def _link_twins(session: Session, told: Mapping[uuid.UUID, str | None]) -> None:
    """Store the pairs of these cases with others of the same pixels, as far as they are not stored."""
    digests = {digest for digest in told.values() if digest is not None}
    alike: dict[str, list[uuid.UUID]] = {}
    wanted = select(Case.pixels_sha256, Case.id).where(Case.pixels_sha256.in_(digests), Case.erased_at.is_(None))
    for digest, case_id in session.execute(wanted.order_by(Case.id)):
        alike.setdefault(str(digest), []).append(case_id)
    known = select(CaseTwin.case_id, CaseTwin.twin_id).where(CaseTwin.case_id.in_(told))
    stored = {pair for first, other in session.execute(known) for pair in ((first, other), (other, first))}
    new = [pair for cases in alike.values() for pair in permutations(cases, 2) if pair[0] in told or pair[1] in told]
    session.add_all([CaseTwin(case_id=pair[0], twin_id=pair[1]) for pair in new if pair not in stored])
    session.flush()


def take_place(session: Session, damaged: Mapping[str, Replacement]) -> None:
    """Give every case with a damaged file another file of the same picture, which something else has encoded.

    Args:
        session: writing session.
        damaged: names of files in the store, with what takes the place of each.
    """
    own, field = Case.stored_sha256.in_(damaged), Case.stored_field_sha256.in_(damaged)
    cases = session.execute(select(Case).where(or_(own, field)).order_by(Case.id).with_for_update()).scalars().all()
    known = {}
    for case in cases:
        image, around = damaged.get(case.stored_sha256), damaged.get(case.stored_field_sha256 or "")
        known[case.id] = Pixels(
            None if image is None else image.pixels_sha256, None if around is None else around.pixels_sha256
        )
        if image is not None:
            case.stored_sha256 = image.stored_sha256
        if around is not None:
            case.stored_field_sha256 = around.stored_sha256
    know_pixels(session, cases, known)
