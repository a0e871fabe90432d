"""Digests of pixels that become known later than their case: of images of earlier versions, and of damaged ones."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from sqlalchemy import or_, select, text, update
from sqlalchemy.orm import Session

from app.tables import Case, CaseTwin


@dataclass(frozen=True)
class Pixels:
    """Digests of the pixels of a case's image and of the field around the cell; None where it is unknown, or absent."""

    image: str | None
    field: str | None


@dataclass(frozen=True)
class Replacement:
    """A file that takes the place of a damaged one, with the digest of its pixels."""

    stored_sha256: str
    pixels_sha256: str


# PostgreSQL guesses that each digest is that of many cases, and would go through all of them
_ALIKE = text(
    "SELECT alike.id FROM unnest(CAST(:digests AS varchar[])) AS digest, "
    "LATERAL (SELECT id FROM cases WHERE pixels_sha256 = digest OFFSET 0) AS alike"
).columns(Case.id)


def locked_cases(session: Session, case_ids: Collection[uuid.UUID], digests: Collection[str]) -> Sequence[Case]:
    """Some cases, and those with some pixels, which nobody changes or erases before this transaction ends.

    All are locked by one statement in the order of their ids, in which an erasure locks them too: else each could wait
    for the other. Whoever was erased meanwhile is not among them.

    Args:
        session: writing session, which holds the digests: nobody else stores another case with these pixels.
        case_ids: of cases.
        digests: of pixels.
    """
    if session.get_bind().dialect.name == "postgresql":
        alike = session.execute(_ALIKE, {"digests": sorted(digests)}).scalars()
    else:
        alike = session.execute(select(Case.id).where(Case.pixels_sha256.in_(digests))).scalars()
    statement = select(Case).where(Case.id.in_({*case_ids, *alike}), Case.erased_at.is_(None)).order_by(Case.id)
    # rows that refer to these cases may come meanwhile: no key changes
    locking = statement.with_for_update(key_share=True).execution_options(populate_existing=True)
    return session.execute(locking).scalars().all()


def not_erased(session: Session, case_ids: Collection[uuid.UUID]) -> list[uuid.UUID]:
    """Those of some cases that nobody has erased, nor will before this transaction ends."""
    if not case_ids or session.get_bind().dialect.name != "postgresql":  # SQLite has one writer
        return list(case_ids)
    statement = select(Case.id).where(Case.id.in_(case_ids), Case.erased_at.is_(None)).order_by(Case.id)
    return list(session.execute(statement.with_for_update(read=True, key_share=True)).scalars())


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
        cases: locked, with all others that have the pixels of one of them.
        known: of some of them.
        unproven: those that are not as their audit events say; none vouches for them now, so that they stay named.

    Returns:
        Number of cases of which something new is known.
    """
    told, pictured = 0, {case.id: case.pixels_sha256 for case in cases}
    new = set()
    for case in cases:
        found = known.get(case.id, Pixels(None, None))
        image = case.pixels_sha256 or found.image
        field = case.field_pixels_sha256 or (None if case.stored_field_sha256 is None else found.field)
        if (image, field) == (case.pixels_sha256, case.field_pixels_sha256):
            continue
        told += 1
        if image != case.pixels_sha256:
            pictured[case.id] = image
            new.add(case.id)
        if case.id in unproven:  # past the unit of work, which would tell the next event
            values = {"pixels_sha256": image, "field_pixels_sha256": field}
            unseen = update(Case).where(Case.id == case.id).values(values)
            session.execute(unseen.execution_options(synchronize_session=False))
        else:
            case.pixels_sha256, case.field_pixels_sha256 = image, field
    session.flush()
    _link_twins(session, pictured, new)
    return told


def _link_twins(session: Session, pictured: Mapping[uuid.UUID, str | None], new: Collection[uuid.UUID]) -> None:
    """Store the pairs of some cases with others of the same pixels, as far as they are not stored.

    Args:
        session: writing session.
        pictured: digests of these and of all others with the same pixels.
        new: cases whose pairs may be missing.
    """
    if not new:
        return
    alike = defaultdict(list)
    for case_id, digest in pictured.items():
        if digest is not None:
            alike[digest].append(case_id)
    known = select(CaseTwin.case_id, CaseTwin.twin_id).where(CaseTwin.case_id.in_(new))
    stored = {pair for first, other in session.execute(known) for pair in ((first, other), (other, first))}
    pairs = {pair for cases in alike.values() for pair in permutations(cases, 2) if pair[0] in new or pair[1] in new}
    session.add_all([CaseTwin(case_id=first, twin_id=other) for first, other in sorted(pairs - stored)])
    session.flush()


def take_place(session: Session, damaged: Mapping[str, Replacement]) -> set[str]:
    """Give every case with a damaged file another file of the same picture, which something else has encoded.

    A picture with other pixels takes nobody's place: another version of a decoder may have made it of the same upload.

    Args:
        session: writing session, which holds the digests of these pixels.
        damaged: names of files in the store, with what takes the place of each.

    Returns:
        Names of those files whose pixels are known to be others; where there are any, nothing is replaced.
    """
    named = or_(Case.stored_sha256.in_(damaged), Case.stored_field_sha256.in_(damaged))
    case_ids = session.execute(select(Case.id).where(named)).scalars().all()
    cases = locked_cases(session, case_ids, {other.pixels_sha256 for other in damaged.values()})
    shown = defaultdict(set)
    for case in cases:
        shown[case.stored_sha256].add(case.pixels_sha256)
        shown[case.stored_field_sha256 or ""].add(case.field_pixels_sha256)
    refused = {name for name, other in damaged.items() if shown[name] - {None, other.pixels_sha256}}
    if refused:
        return refused
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
    return set()
