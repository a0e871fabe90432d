"""Images that earlier versions stored get the digest of their pixels, by which the same picture is found again."""

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sqlalchemy import Row, Select, func, select
from sqlalchemy.orm import Session

from app.cases.same_pixels import Pixels, know_pixels, locked_cases
from app.context import Context
from app.operations.proven import expected_rows
from app.platform.one_at_a_time import hold_digests
from app.platform.patience import write_patiently
from app.platform.plain_rows import table_of
from app.platform.row_digests import row_digest, row_key
from app.tables import UNKNOWN_PIXELS, Case
from ml.cores import cores
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import ImageRejectedError, decode_image

_BATCH = 500
_Say = Callable[[str], object]
_Unknown = tuple[uuid.UUID, str, str | None, str | None, str | None]


def unknown_pixels(after: uuid.UUID) -> Select[uuid.UUID, str, str | None, str | None, str | None]:
    """Cases of which the digest of image or field is not known, behind one of them: the files of both, and digests."""
    columns = (Case.id, Case.stored_sha256, Case.stored_field_sha256, Case.pixels_sha256, Case.field_pixels_sha256)
    return select(*columns).where(UNKNOWN_PIXELS, Case.id > after).order_by(Case.id)


def compare_earlier(context: Context, say: _Say = lambda _: None, batch: int = _BATCH) -> tuple[int, int]:
    """Decode every stored image whose pixels no row knows, and link the twins that this shows.

    To be called before anything is served; what was interrupted goes on where it stopped. An image that is missing or
    damaged, or that alone cannot be read, stays unknown: ``db verify`` names it, and the same file, sent again, is
    found by its name in the store.

    Args:
        context: parts of the service.
        say: told how far it is, after each batch, and whenever it waits.
        batch: cases of one transaction.

    Returns:
        Cases of which something new is known, and those of which image or field cannot be read.

    Raises:
        Unavailable: the store does not answer, or others do not let go of rows.
    """
    with context.database.read() as session:
        total = session.execute(select(func.count()).select_from(Case).where(UNKNOWN_PIXELS)).scalar_one()
    if not total:
        return 0, 0
    context.images.store.check()  # without the patience that each image would get
    after, seen, told, unreadable = uuid.UUID(int=0), 0, 0, 0
    unproven: set[uuid.UUID] | None = None
    while True:
        with context.database.read() as session:
            rows = session.execute(unknown_pixels(after).limit(batch)).all()
        if not rows:
            return told, unreadable
        digests = _decoded(context, rows)  # no transaction is open meanwhile
        known = {row[0]: Pixels(digests.get(row[1]), row[2] and digests.get(row[2])) for row in rows}
        if any(digests.values()):
            unproven = _unproven(context) if unproven is None else unproven
            write = partial(_write, known=known, unproven=unproven)
            told += write_patiently(context.database, write, "others are using the rows of earlier images", say)
        unreadable += sum(any(digests[name] is None for name in _lacking(row)) for row in rows)
        after, seen = rows[-1][0], seen + len(rows)
        rest = f", {unreadable:,} cannot be read" if unreadable else ""
        say(f"{seen:,} of {max(total, seen):,} earlier images are compared{rest}")


def _lacking(row: Row[*_Unknown]) -> list[str]:
    """Files of a case whose pixels its row does not know."""
    _, image, field, image_pixels, field_pixels = row
    files = ((image, image_pixels), (field, field_pixels))
    return [name for name, digest in files if name is not None and digest is None]


def _decoded(context: Context, rows: Sequence[Row[*_Unknown]]) -> dict[str, str | None]:
    """Digests of the pixels that rows lack, by file; None where it cannot be read."""
    names = sorted({name for row in rows for name in _lacking(row)})
    with ThreadPoolExecutor(cores()) as pool:
        return dict(zip(names, pool.map(partial(_digest, context), names), strict=True))


def _digest(context: Context, name: str) -> str | None:
    """Digest of the pixels of a stored image; None where it cannot be read."""
    data = context.images.find(name)
    if data is None:
        return None
    try:
        return pixel_digest(decode_image(data)).hex()
    except ImageRejectedError:
        return None


def _unproven(context: Context) -> set[uuid.UUID]:
    """Those of these cases that are not as their audit events say."""
    table, private = table_of(Case), context.keys.audit.rows
    with context.database.read_moment() as session:
        said = expected_rows(session).rows.get(table.name, {})
        rows = session.connection().execute(select(table).where(UNKNOWN_PIXELS).execution_options(yield_per=_BATCH))
        return {
            row["id"]
            for row in rows.mappings()
            if said.get(row_key(table, row), ("", None))[1] != row_digest(private, table, row)
        }


def _write(session: Session, known: dict[uuid.UUID, Pixels], unproven: set[uuid.UUID]) -> int:
    """Write digests down, unless somebody else has, or the patient was erased, while the images were decoded."""
    digests = {pixels.image for pixels in known.values() if pixels.image is not None}
    hold_digests(session, digests)  # nobody stores or links the same picture meanwhile
    return know_pixels(session, locked_cases(session, known, digests), known, unproven)
