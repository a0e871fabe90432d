"""Labels of an import: stored in chunks that a resumed job does not repeat, or looked at by a check."""

import time
import uuid
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal, TypedDict, TypeVar, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.database.tables import Case, ImportRow, JobBatch
from app.http.principal import Principal
from app.imports.label_rows import ArchiveLabels, ImportLabel
from app.imports.zip_contents import ImportArchive
from app.jobs.service import RunningJob
from app.labels.service import LabelResultOut, LabelReview, OutsideLabelIn, store_labels
from app.releases.service import get_champion_alias, named_release_classes
from ml.messages import Message

T = TypeVar("T")

#: Labels of a transaction, for which others wait.
LABELS_AT_ONCE = 100
# between two such transactions on SQLite, in which another process that waits to write looks again
_PAUSE_SECONDS = 0.1
# names of the chunks that a job has stored begin with it
_CHUNK = "labels "
LabelStatus = Literal["stored", "known", "failed"]


class LabelCounts(TypedDict):
    """Labels of an import by what became of them."""

    stored: int
    known: int
    failed: int


def of_part(rows: Sequence[T], part: Sequence[int] | None) -> Sequence[T]:
    """Every n-th row of an archive, from the i-th on, where the job does the part i of n.

    >>> of_part("abcdefg", [2, 3])
    'be'
    """
    if part is None:
        return rows
    number, count = part
    return rows[number - 1 :: count]


def labels_of_archive(context: ServiceContext, archive: ImportArchive, *, class_folders: bool = False) -> ArchiveLabels:
    """Labels of an archive, by the classes of the champion."""
    with context.database.read() as session:
        champion = get_champion_alias(session)
        classes = [] if champion is None else named_release_classes(session, champion.release_id)
    return ArchiveLabels(archive, classes, class_folders=class_folders)


def store_labels_of_job(
    job: RunningJob,
    principal: Principal,
    archive: ImportArchive,
    labels: ArchiveLabels,
    part: Sequence[int] | None,
) -> None:
    """Store the labels that no earlier attempt has stored; of a part those of its cells."""
    with job.context.database.read() as session:
        stored = {name for name, _ in _stored_chunks(session, job.job_id)}
    n_rows = len(of_part(archive.rows, part))
    n_labels = len(labels) if part is None else sum(1 for _ in _labels_of_part(labels, part))
    n_done = 0
    for number, chunk in enumerate(_in_chunks(_labels_of_part(labels, part))):
        n_done += len(chunk)
        if (name := f"{_CHUNK}{number}") not in stored:
            message = Message("{count:,} of {labels:,} labels", count=n_done, labels=n_labels)
            if number and job.context.database.writers is not None:
                time.sleep(_PAUSE_SECONDS)
            at = (n_rows + n_done) / (n_rows + n_labels), message
            job.batch(name, partial(_store_chunk, job, principal, chunk, number_before(archive), at))


def number_before(archive: ImportArchive) -> int:
    """Number of the last row of an archive that is no label."""
    return len(archive.rows) + len(archive.ignored)


def _in_chunks(labels: Iterator[ImportLabel]) -> Iterator[list[ImportLabel]]:
    while chunk := list(islice(labels, LABELS_AT_ONCE)):
        yield chunk


def _labels_of_part(labels: ArchiveLabels, part: Sequence[int] | None) -> Iterator[ImportLabel]:
    number, count = part or (1, 1)
    return (label for label in labels if ((label.row or label.number) - number) % count == 0)


@dataclass(frozen=True)
class ImportLabelResult:
    """What became, or would become, of a row of a label file."""

    label: ImportLabel
    # external id of the cell, or what the row names
    external_id: str
    # of the cell, if it is stored
    case_id: uuid.UUID | None
    status: LabelStatus
    # why it failed
    detail: str


def _store_chunk(
    job: RunningJob,
    principal: Principal,
    chunk: Sequence[ImportLabel],
    number_before: int,
    progress: tuple[float, str],
    session: Session,
) -> LabelCounts:
    """Store some labels, and the rows that failed."""
    stored = _find_cells(session, chunk)
    bodies = [_body_of_cell(label, stored) for label in chunk]
    sent = [body for body in bodies if body is not None]
    results = store_labels(session, job.context, principal, sent, by_class=True)
    counts: LabelCounts = {"stored": 0, "known": 0, "failed": 0}
    for one in _join_results(chunk, bodies, results, stored):
        counts[one.status] += 1
        if one.status == "failed":
            session.add(
                ImportRow(
                    job_id=job.job_id,
                    row=number_before + one.label.number,
                    external_id=one.external_id,
                    status="failed",
                    case_id=one.case_id,
                    detail=one.detail,
                    place=one.label.place,
                )
            )
    job.report_in(session, *progress)
    return counts


def review_labels(
    context: ServiceContext, labels: ArchiveLabels, new_cells: Container[str]
) -> Iterator[ImportLabelResult]:
    """What an import would do with each label, after it has stored new cells; nothing is stored."""
    review = LabelReview()
    for chunk in _in_chunks(iter(labels)):
        with context.database.read() as session:
            stored = _find_cells(session, chunk)
            bodies = [_body_of_cell(label, stored) for label in chunk]
            results = review.review(session, [body for body in bodies if body is not None], new_cells)
        yield from _join_results(chunk, bodies, results, stored)


def _find_cells(session: Session, chunk: Sequence[ImportLabel]) -> dict[str, uuid.UUID]:
    """Stored cells that labels may name, by their external ids."""
    names = {name for label in chunk for name in label.names}
    statement = select(Case.external_id, Case.id).where(Case.external_id.in_(names))
    return {external_id: case_id for external_id, case_id in session.execute(statement)}


def _body_of_cell(label: ImportLabel, stored: Container[str]) -> OutsideLabelIn | None:
    """The label of a row for the first cell that is stored of those that it may name."""
    external_id = next((name for name in label.names if name in stored), None)
    if label.body is None or external_id is None:
        return label.body
    return label.body.model_copy(update={"external_id": external_id})


def _join_results(
    chunk: Sequence[ImportLabel],
    bodies: Sequence[OutsideLabelIn | None],
    results: Sequence[LabelResultOut],
    stored: Mapping[str, uuid.UUID],
) -> Iterator[ImportLabelResult]:
    """Results of all rows, of which some were no labels."""
    rest = iter(results)
    for label, body in zip(chunk, bodies, strict=True):
        if body is None:
            external_id = next((name for name in label.names if name in stored), "".join(label.names[:1]))
            yield ImportLabelResult(label, external_id, stored.get(external_id), "failed", label.problem)
            continue
        result, case_id = next(rest), stored.get(body.external_id)
        status = "failed" if result.status == "refused" else result.status
        yield ImportLabelResult(label, body.external_id, case_id, status, result.detail or "")


def _stored_chunks(session: Session, job_id: uuid.UUID) -> Iterator[tuple[str, LabelCounts]]:
    chunks = select(JobBatch.name, JobBatch.result).where(JobBatch.job_id == job_id, JobBatch.name.startswith(_CHUNK))
    return ((name, cast(LabelCounts, result)) for name, result in session.execute(chunks))


def label_counts_of(session: Session, job_id: uuid.UUID) -> LabelCounts:
    """Labels of an import by what has become of them so far."""
    chunks = [counts for _, counts in _stored_chunks(session, job_id)]
    return {
        "stored": sum(counts["stored"] for counts in chunks),
        "known": sum(counts["known"] for counts in chunks),
        "failed": sum(counts["failed"] for counts in chunks),
    }
