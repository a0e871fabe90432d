"""Verification of the chain, of row digests, of derived columns and of files (`db verify`)."""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Row, exists, func, literal, select, union_all
from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased

from app.audit.anchor import list_restores, missing_heads, split_head
from app.audit.chain import events, genesis
from app.audit.chain.coverage import COVERED, NOT_COVERED
from app.audit.chain.keys import DerivedKey, InstallationKeys
from app.audit.chain.row_digests import cases_digest, covered_tables, row_digest, row_key
from app.audit.linking import explain_link_delay
from app.cases.service import partition_of, stored_image_names
from app.context import ServiceContext
from app.database.tables import (
    Case,
    CasePrediction,
    CaseTwin,
    DailyThreshold,
    Evaluation,
    PolicyRow,
    ReaderDraw,
    ReadRequest,
    ReleaseRow,
    TriageDecision,
)
from app.http.errors import NotFound, ServiceUnavailable
from app.jobs.service import count_living_workers
from app.metrics.service import damaged_snapshots
from app.releases.service import all_releases
from app.reports.service import shared_folder_name, snapshot_sha256
from app.triage.service import pick_annotator, uniform_draw
from ml.images.image_statistics import difference_hash, hash_distance
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import ImageRejectedError, decode_image
from ml.metrics.selection_designs import graded_probabilities
from ml.release.artifact import ReleaseError, read_release

# another version of Pillow may round a pixel differently
_NEAR = 4
_ROWS = 500


def check_derived_columns(session: Session, context: ServiceContext) -> Iterator[str]:
    """Compare columns of cases with the key, the plan and the image."""
    rules = _PolicyProbabilities(session)
    after = uuid.UUID(int=0)
    while rows := session.execute(select(Case).where(Case.id > after).order_by(Case.id).limit(_ROWS)).scalars().all():
        ids = [case.id for case in rows]
        looks, requests = defaultdict(list), defaultdict(list)
        for look in session.execute(select(TriageDecision).where(TriageDecision.case_id.in_(ids))).scalars():
            looks[look.case_id].append(look)
        for request in session.execute(select(ReadRequest).where(ReadRequest.case_id.in_(ids))).scalars():
            requests[request.case_id].append(request)
        yield from _check_annotator_draws(session, context.keys, ids)
        first_ids = [case.same_image_as for case in rows if case.same_image_as is not None]
        firsts = select(Case.id, Case.partition).where(Case.id.in_(first_ids))
        inherited = {row[0]: row[1] for row in session.execute(firsts)}
        for case in rows:
            if case.erased_at is None:
                twins = None if case.same_image_as is None else inherited.get(case.same_image_as)
                yield from _check_key_columns(context.keys, case, twins)
                yield from _check_stored_picture(context, case)
            yield from _check_planned_reads(case, looks[case.id], requests[case.id], rules)
        after = ids[-1]
        session.expunge_all()


class _PolicyProbabilities:
    """Selection probabilities that the policies allow."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._policies = {policy.version: policy for policy in session.execute(select(PolicyRow)).scalars()}
        self._scales = defaultdict[int, list[float]](list)
        for row in session.execute(select(DailyThreshold).where(DailyThreshold.threshold.is_not(None))).scalars():
            self._scales[row.policy_version].append(row.threshold or 0.0)

    def allow(self, look: TriageDecision) -> bool:
        """Whether the policy of a look gives this probability, the graded rule on one of its days."""
        policy = self._policies.get(look.policy_version)
        if policy is None:
            return False
        if look.selected or policy.rule != "graded":
            return look.pi == (1.0 if look.selected else policy.audit_rate)
        if look.pi == policy.audit_rate:  # a near-duplicate, or before there was a scale
            return True
        of_case = (CasePrediction.case_id == look.case_id, CasePrediction.release_id == look.release_id)
        disagreement_probs = np.array(
            self._session.execute(select(CasePrediction.disagreement_prob).where(*of_case)).scalars().all()
        )
        if disagreement_probs.size == 0:  # erased
            return policy.audit_rate < look.pi < 1
        return any(
            np.isclose(graded_probabilities(disagreement_probs, scale, policy.audit_rate), look.pi, rtol=1e-9).any()
            for scale in self._scales[look.policy_version]
        )


def _check_key_columns(keys: InstallationKeys, case: Case, inherited: str | None) -> Iterator[str]:
    own = partition_of(keys.partition, case.patient, case.external_id)
    # without a patient a case is where the first one with its pixels is
    if case.partition != own and (case.patient is not None or case.partition != inherited):
        yield f"case {case.id}: partition is not that of its patient"
    if case.u != uniform_draw(keys.coin, case.external_id):
        yield f"case {case.id}: its coin u is not that of its external id"


def _check_planned_reads(
    case: Case, looks: list[TriageDecision], requests: list[ReadRequest], rules: _PolicyProbabilities
) -> Iterator[str]:
    for look in looks:
        if not rules.allow(look):
            yield f"case {case.id}: π of a look is not that of its policy"
    if looks and case.pi != max(look.pi for look in looks):
        yield f"case {case.id}: π is not that of its looks"
    second = "triage" if case.pi >= 1 else "audit"
    for request in requests:
        chosen = request.arm in {"triage", "audit"}
        if request.u != case.u or request.pi != (case.pi if chosen else 1.0) or (chosen and request.arm != second):
            yield f"case {case.id}: read request {request.ordinal} has another u, π or arm than its plan"
    n_second = sum(request.arm in {"triage", "audit"} for request in requests)
    if looks and n_second != (case.u < case.pi):
        yield f"case {case.id}: {n_second} second reads are planned, its coin and π say {int(case.u < case.pi)}"


def _check_annotator_draws(session: Session, keys: InstallationKeys, case_ids: list[uuid.UUID]) -> Iterator[str]:
    """Check that annotators were drawn by the key and match their requests."""
    drawn_of = select(ReaderDraw, ReadRequest.ordinal, ReadRequest.annotator_id)
    joined = drawn_of.join(ReadRequest, ReadRequest.id == ReaderDraw.request_id)
    ordered = joined.where(ReaderDraw.case_id.in_(case_ids)).order_by(ReaderDraw.request_id, ReaderDraw.position)
    newest: dict[uuid.UUID, tuple[ReaderDraw, uuid.UUID | None]] = {}
    for row, ordinal, requested_id in session.execute(ordered):
        newest[row.request_id] = (row, requested_id)
        by_key = row.probability is None or (
            bool(row.among)
            and row.probability == 1 / len(row.among)
            and str(row.annotator_id) == pick_annotator(keys.draws, row.case_id, ordinal, row.position, row.among)
        )
        if not by_key:
            yield f"case {row.case_id}: read request {ordinal} was asked of another annotator than its draw says"
    for row, requested_id in newest.values():
        if requested_id not in {None, row.annotator_id}:
            yield f"case {row.case_id}: a read request is asked of another annotator than its newest draw"


def _check_stored_picture(context: ServiceContext, case: Case) -> Iterator[str]:
    """Check that the row refers to the images that were stored."""
    data = context.images.find(case.stored_sha256)
    if data is None:  # the missing or changed file is named elsewhere
        return
    try:
        picture = decode_image(data)
        field = None if case.stored_field_sha256 is None else context.images.find(case.stored_field_sha256)
        around = None if field is None else pixel_digest(decode_image(field)).hex()
    except ImageRejectedError:
        yield f"case {case.id}: its image cannot be read"
        return
    near = case.image_hash is None or hash_distance(case.image_hash, difference_hash(picture)) <= _NEAR
    same = case.pixels_sha256 == pixel_digest(picture).hex() and around in {None, case.field_pixels_sha256}
    if picture.size != (case.width, case.height) or not near or not same:
        yield f"case {case.id}: points to another picture than the one that was stored"


_MISSING = "missing"
_Wrong = Row[uuid.UUID, uuid.UUID, str]


def wrong_pairs(session: Session) -> Iterator[str]:
    """Name cases with the same pixels that are no pair, and pairs of which somebody was erased."""
    said = {
        _MISSING: "are the same picture, and nobody is kept from reading both",
        "erased": "are a pair, although one of them was erased",
    }
    named = {(*sorted((row.case_id, row.twin_id)), row.what) for row in _wrong(session)}  # each is two rows
    for first, other, what in sorted(named):
        yield f"cases {first} and {other} {said[what]}"


def _wrong(session: Session) -> Sequence[_Wrong]:
    """Rows of pairs that are missing or of somebody erased, by one statement."""
    one, other = aliased(Case), aliased(Case)
    # found first: whoever plans the statement knows nothing of how often a digest comes
    several = select(Case.pixels_sha256).where(Case.pixels_sha256.is_not(None), Case.erased_at.is_(None))
    same = several.group_by(Case.pixels_sha256).having(func.count() > 1).cte("same").prefix_with("MATERIALIZED")
    pair = exists().where(CaseTwin.case_id == one.id, CaseTwin.twin_id == other.id)
    missing = (
        select(one.id.label("case_id"), other.id.label("twin_id"), literal(_MISSING).label("what"))
        .join(same, same.c.pixels_sha256 == one.pixels_sha256)
        .join(other, other.pixels_sha256 == same.c.pixels_sha256)
        .where(one.id != other.id, one.erased_at.is_(None), other.erased_at.is_(None), ~pair)
    )
    columns = (CaseTwin.case_id, CaseTwin.twin_id, literal("erased"))
    erased = [
        select(*columns).join(Case, Case.id == column).where(Case.erased_at.is_not(None))
        for column in (CaseTwin.case_id, CaseTwin.twin_id)
    ]
    return session.execute(union_all(missing, *erased)).all()


_ROWS_PER_CHECK = 1000


@dataclass
class ExpectedRows:
    """Expected rows: for each row the newest event that wrote it."""

    # table → key → what the event is called and digest, None for a row that was deleted
    rows: dict[str, dict[str, tuple[str, str | None]]] = field(default_factory=dict)
    # sentences about the events themselves
    faults: list[str] = field(default_factory=list)


def replay_expected_rows(session: Session) -> ExpectedRows:
    """Replay the chain, and what waits to be linked to it: which rows there must be."""
    expected = ExpectedRows()
    for place, event in enumerate(events.read_all_events(session)):
        if event.action == genesis.ACTION and place > 0:
            expected.faults.append(f"audit event {event.number} is a baseline, and not the first event")
        for table, leaves in (event.row_digests or {}).items():
            rows = expected.rows.setdefault(table, {})
            for key, digest in leaves.items():
                rows[key or str(event.stamp)] = (event.number, digest)
    return expected


def check_row_digests(session: Session, private: DerivedKey) -> Iterator[str]:
    """Check each row against its newest event; yield a sentence for each fault."""
    expected = replay_expected_rows(session)
    yield from expected.faults
    for table in covered_tables():
        rows = expected.rows.pop(table.name, {})
        yield from collect_faults(f"rows of {table.name}", partial(_check_table_rows, session, private, table, rows))
    changes = expected.rows.pop(events.CASE_CHANGES, {})
    yield from collect_faults("rows of case_changes", partial(_check_case_changes, session, changes))
    for table_name in expected.rows:
        yield f"audit events name rows of {table_name}, a table that is not covered"


def collect_faults(what: str, check: Callable[[], Iterable[str]]) -> list[str]:
    """Collect the faults of a check; a failure of the check is a fault too."""
    faults: list[str] = []
    try:
        faults.extend(check())
    except Exception as exc:
        if isinstance(exc, DBAPIError) and exc.connection_invalidated:
            raise
        faults.append(f"{what} cannot be checked ({type(exc).__name__}): they contain what the service never writes")
    return faults


def _check_table_rows(
    session: Session, private: DerivedKey, table: SqlTable, rows: dict[str, tuple[str, str | None]]
) -> Iterator[str]:
    stored = session.connection().execute(select(table).execution_options(yield_per=_ROWS_PER_CHECK)).mappings()
    for row in stored:
        key = row_key(table, row)
        expected = rows.pop(key, None)
        if expected is not None:
            if expected[1] != row_digest(private, table, row):
                yield _describe_changed_row(f"{table.name} {key}", expected)
        elif COVERED[table.name].covers(row):
            yield f"{table.name} {key}: no audit event wrote it"
    yield from _list_missing_rows(table.name, rows)


def _describe_changed_row(what: str, said: tuple[str, str | None]) -> str:
    return f"{what}: " + (
        f"there again, although audit event {said[0]} deleted it"
        if said[1] is None
        else f"not as audit event {said[0]} wrote it"
    )


def _list_missing_rows(table: str, rows: dict[str, tuple[str, str | None]]) -> Iterator[str]:
    for key, (event, digest) in rows.items():
        if digest is not None:
            yield f"{table} {key}: missing, although audit event {event} wrote it"


def _check_case_changes(session: Session, rows: dict[str, tuple[str, str | None]]) -> Iterator[str]:
    for stamp, cases in genesis.case_changes(session):
        expected = rows.pop(str(stamp), None)
        if expected is None or expected[1] != cases_digest(cases):
            event = f"with stamp {stamp}" if expected is None else expected[0]
            yield f"case_changes {stamp}: not the cases that audit event {event} named"
    yield from _list_missing_rows(events.CASE_CHANGES, rows)


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
class IntegrityReport:
    """Report of an integrity check: counts, and a sentence for each fault."""

    n_events: int
    # images that cases name, and their fields
    n_images: int
    n_releases: int
    n_evaluations: int
    # a sentence for each
    faults: list[str]
    verdict: str
    # number and digest of the newest event, to be kept outside and given to a later check
    head: str
    # with which anybody can check the chain's signatures
    public_key: str
    # a sentence for each backup that was brought back
    restores: list[str]
    # why audit events have waited to be linked for more than a second; None where none has
    waiting: str | None = None
    # what no event says, so that a change would not be found
    not_compared: tuple[str, ...] = NOT_COMPARED

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def verify_all(session: Session, context: ServiceContext, against: str | None = None) -> IntegrityReport:
    """Check the audit chain, the rows that its events explain, and every image, release and evaluation."""
    n_events, faults = events.verify_chain(session, context.keys.audit)
    outside, lost = _check_anchored_heads(session, context, against)
    faults += outside
    faults += collect_faults("audit events", lambda: check_row_digests(session, context.keys.audit.rows))
    session.expunge_all()
    faults += collect_faults("cases", lambda: check_derived_columns(session, context))
    faults += collect_faults("pairs of the same picture", lambda: wrong_pairs(session))
    digests = sorted(stored_image_names(session))
    faults += collect_faults("images", lambda: _damaged_images(context, digests))
    n_releases = session.execute(select(func.count()).select_from(ReleaseRow)).scalar_one()
    faults += collect_faults("releases", lambda: _damaged_releases(session, context))
    n_evaluations = session.execute(select(func.count()).select_from(Evaluation)).scalar_one()
    faults += collect_faults("evaluations", lambda: _damaged_evaluations(session, context))
    faults += collect_faults("snapshots", lambda: _damaged_snapshots(context))
    back = list_restores(session)
    anchored = against is not None or context.settings.audit_anchor is not None
    whole = COMPLETE if anchored and not lost else CONSISTENT
    return IntegrityReport(
        n_events,
        len(digests),
        n_releases,
        n_evaluations,
        faults,
        verdict=f"not consistent: {len(faults)} faults" if faults else whole,
        head=events.read_head_text(session),
        public_key=context.keys.audit.public_key,
        restores=lost
        + [f"audit event {event}: a backup was brought back, which ended at {last}" for event, last in back],
        waiting=explain_link_delay(session, count_living_workers(session)),
    )


def _check_anchored_heads(
    session: Session, context: ServiceContext, against: str | None
) -> tuple[list[str], list[str]]:
    """Faults by what was kept outside, and a sentence about a given head that went when a backup was brought back."""
    paths = [] if context.settings.audit_anchor is None else [context.settings.audit_anchor]
    faults: list[str] = []
    lost: list[str] = []
    if against is not None and Path(against).is_file():
        paths.append(Path(against))
    elif against is not None:
        sequence, digest = split_head(against)
        if not events.contains_head(session, sequence, digest):
            by = [event for event, last in list_restores(session) if last < sequence]
            sentence = f"the audit chain does not contain the head {sequence}: "
            if by:
                lost.append(f"{sentence}audit event {by[0]} says that an older backup was brought back")
            else:
                faults.append(f"{sentence}it was cut or written anew")
    for path in paths:
        faults += missing_heads(path, session, context.keys.audit)
    return faults, lost


def _damaged_images(context: ServiceContext, digests: Sequence[str]) -> Iterator[str]:
    for digest in digests:
        try:
            if not context.images.intact(digest):
                yield f"image {digest} is missing or was changed"
        except ServiceUnavailable:
            context.images.store.check()  # else it is this one alone
            yield f"image {digest} cannot be read"


def _damaged_releases(session: Session, context: ServiceContext) -> Iterator[str]:
    for row in all_releases(session):
        name = f"releases/{row.id}"
        if not context.folders.is_stored(name):
            yield f"release {row.id}: missing in the bucket, or damaged there"
        try:
            release = read_release(context.folders.path(name))
            if release.card_sha256 != row.card_sha256:
                yield f"release {row.id}: card.json was changed"
        except (NotFound, ServiceUnavailable, ReleaseError) as exc:
            yield f"release {row.id}: {exc}"


def _damaged_snapshots(context: ServiceContext) -> Iterator[str]:
    for name in damaged_snapshots(context.folders):
        yield f"snapshot {name}: damaged; the worker writes it anew"


def _damaged_evaluations(session: Session, context: ServiceContext) -> Iterator[str]:
    for evaluation in session.execute(select(Evaluation)).scalars():
        name = shared_folder_name(context.folders, evaluation.id, evaluation.snapshot_sha256)
        try:
            intact = context.folders.is_stored(name) and (
                snapshot_sha256(context.folders.path(name)) == evaluation.snapshot_sha256
            )
        except (OSError, ServiceUnavailable):
            intact = False
        if not intact:
            yield f"evaluation {evaluation.id}: its tables are missing or were changed"
