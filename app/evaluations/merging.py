"""Putting the fresh rows of changed cases in the place of their old ones: arrays in, arrays out."""

import uuid

import numpy as np
import numpy.typing as npt

from app.evaluations.columns import Columns

# identifiers as byte strings, which NumPy compares and sorts
_ID = "S16"


def identifiers(columns: Columns) -> npt.NDArray[np.bytes_]:
    """Identifiers of the cases (N,) as byte strings."""
    return np.ascontiguousarray(columns.case_id).view(_ID).ravel()


def merged(columns: Columns, by_id: npt.NDArray[np.intp], changed: list[uuid.UUID], fresh: Columns) -> Columns:
    """Columns in which the changed cases have their fresh rows, cases of one patient together.

    Say cases A, B, C, D are of the patients 1, 4, 4, 9. B now belongs to patient 9, E of patient 4 is new, and D is
    gone. Then ``changed`` is B, D, E, ``fresh`` has the rows of B and E, and the steps are:

    1. *outdated*, old positions of changed cases: 1 and 3 (E has none); *kept* are 0 and 2, that is A and C;
    2. fresh rows by patient: E (4), B (9);
    3. *target*, their positions in the result, each before the first kept row of the same or a later patient, moved on
       by the fresh rows before it: E at 1 + 0, B at 2 + 1;
    4. *source*, the old position that fills each other position: A at 0, C at 2. The result is A, E, C, B of the
       patients 1, 4, 4, 9.

    Args:
        columns: N cases, ordered by patient.
        by_id: (N,) positions of the cases in the order of their identifiers.
        changed: cases whose rows are outdated; new ones and those that are gone too.
        fresh: the current rows of those of them that exist, in any order.
    """
    outdated = _positions(_bytes_of(changed), identifiers(columns), by_id)
    kept = np.delete(np.arange(len(columns)), outdated)
    fresh = fresh.take(np.argsort(fresh.cluster, kind="stable"))
    target = np.searchsorted(columns.cluster[kept], fresh.cluster) + np.arange(len(fresh))
    source = np.zeros(kept.size + len(fresh), dtype=np.intp)
    source[np.delete(np.arange(source.size), target)] = kept
    arrays = {}
    for name, old in columns.arrays().items():
        new = getattr(fresh, name)
        # the default mode of `take` makes a copy first
        result = np.take(old, source, axis=0, mode="clip") if len(old) else np.empty_like(new)
        result[target] = new
        arrays[name] = result
    return Columns(columns.classes, columns.sites | fresh.sites, **arrays)


def replaced(columns: Columns, by_id: npt.NDArray[np.intp], changed: list[uuid.UUID], fresh: Columns) -> Columns | None:
    """The same by writing into the old rows, which nobody else may have; None where cases came, went or moved.

    Most changes are labels: of each case that changed there is a row before and after, of the same patient.

    Args:
        columns: N cases, ordered by patient; their arrays are written to.
        by_id: as in ``merged``.
        changed: as in ``merged``.
        fresh: as in ``merged``.
    """
    ids, new = identifiers(columns), identifiers(fresh)
    outdated = _positions(_bytes_of(changed), ids, by_id)
    target = _positions(new, ids, by_id)
    if not outdated.size == target.size == len(fresh) or (columns.cluster[target] != fresh.cluster).any():
        return None
    for name, old in columns.arrays().items():
        old[target] = getattr(fresh, name)
    return Columns(columns.classes, columns.sites | fresh.sites, **columns.arrays())


def _bytes_of(case_ids: list[uuid.UUID]) -> npt.NDArray[np.bytes_]:
    return np.frombuffer(b"".join(case_id.bytes for case_id in case_ids), dtype=_ID)


def _positions(
    wanted: npt.NDArray[np.bytes_], ids: npt.NDArray[np.bytes_], by_id: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Positions in ``ids`` of those of the wanted identifiers that are there."""
    if not len(ids):
        return np.empty(0, dtype=np.intp)
    nearest = by_id[np.minimum(np.searchsorted(ids, wanted, sorter=by_id), len(ids) - 1)]
    return np.asarray(nearest[ids[nearest] == wanted])
