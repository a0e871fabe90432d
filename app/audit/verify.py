"""Verification of the chain, of row digests, of coins and partitions, and of files (`db verify`)."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Row, exists, func, literal, select, union_all
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased

from app.audit.anchor import RESTORE, list_restores, missing_heads, split_head
from app.audit.chain import events
from app.audit.chain.covered_rows import COVERED, NOT_COVERED, covered_tables
from app.audit.chain.keys import AuditKeys, InstallationKeys
from app.audit.chain.verify_proof import CASE_CHANGES, ProofChecker
from app.audit.proof import ProofLine, build_case_lines, build_event_lines, build_first_line, build_row_lines
from app.cases.service import partition_of, stored_image_names
from app.context import ServiceContext
from app.database.tables import AuditHead, Case, CaseTwin, Evaluation, ReleaseRow
from app.http.errors import NotFound, ServiceUnavailable
from app.metrics.service import damaged_snapshots
from app.releases.service import all_releases
from app.reports.service import shared_folder_name, snapshot_sha256
from app.triage.service import uniform_draw
from ml.release.artifact import ReleaseError, read_release

_ROWS_PER_CHECK = 1000


def check_audit(session: Session, keys: AuditKeys) -> ProofChecker:
    """Check the chain, and each row against the newest event that wrote it, as anybody checks a proof."""
    checker = ProofChecker(keys.public_key)
    checker.take(build_first_line(session, keys))
    _take_lines(checker, "audit_events", build_event_lines(session))
    checker.faults += _check_chain_end(session, keys, checker)
    for table in covered_tables():
        expected = checker.expected.get(table.name, {})
        _take_lines(checker, table.name, build_row_lines(session, keys.rows, table, expected))
    _take_lines(checker, CASE_CHANGES, build_case_lines(session))
    checker.end([])
    return checker


def _take_lines(checker: ProofChecker, table: str, lines: Iterable[ProofLine]) -> None:
    """Give lines to a checker; of a table that cannot be read no row is missing."""

    def take_each() -> Iterator[str]:
        for line in lines:
            checker.take(line)
        yield from ()

    if faults := collect_faults(f"rows of {table}", take_each):
        checker.faults += faults
        checker.expected.pop(table, None)


def _check_chain_end(session: Session, keys: AuditKeys, checker: ProofChecker) -> Iterator[str]:
    """Compare the keys of the chain with those of the ring, and its end with the head and the count that are stored."""
    ring = [signer.public for signer in keys.signers]
    n_keys = len(checker.keys)
    if checker.keys != ring[:n_keys]:
        yield "the audit chain rotates to a key that is not the next one of the ring"
    elif n_keys != len(ring):
        yield f"the audit chain knows {n_keys} keys, the key ring has {len(ring)}"
    heads = session.execute(select(AuditHead.id, AuditHead.sequence, AuditHead.digest, AuditHead.n_keys)).all()
    if [tuple(head) for head in heads] != [(1, checker.n_events, checker.previous, n_keys)]:
        stored = ", ".join(str(head.sequence) for head in heads) or "nothing"
        yield f"the audit chain ends at {checker.n_events}, its head says {stored}"


def check_key_columns(session: Session, keys: InstallationKeys) -> Iterator[str]:
    """Compare partition and coin of each case with the key, from which no digest can show that they follow."""
    first = aliased(Case)
    columns = (Case.id, Case.external_id, Case.patient, Case.partition, Case.u, first.partition)
    cases = select(*columns).outerjoin(first, first.id == Case.same_image_as).where(Case.erased_at.is_(None))
    rows = session.execute(cases.order_by(Case.id).execution_options(yield_per=_ROWS_PER_CHECK))
    for case_id, external_id, patient, partition, u, inherited in rows:
        own = partition_of(keys.partition, patient, external_id)
        # without a patient a case is where the first one with its pixels is
        if partition != own and (patient is not None or partition != inherited):
            yield f"case {case_id}: partition is not that of its patient"
        if u != uniform_draw(keys.coin, external_id):
            yield f"case {case_id}: its coin u is not that of its external id"


_MISSING = "missing"
_Wrong = Row[uuid.UUID, uuid.UUID, str]


def wrong_pairs(session: Session) -> Iterator[str]:
    """Name cases with the same pixels that are no pair, and pairs of which somebody was erased."""
    stored_pairs = {
        _MISSING: "are the same picture, and nobody is kept from reading both",
        "erased": "are a pair, although one of them was erased",
    }
    named = {(*sorted((row.case_id, row.twin_id)), row.what) for row in _wrong(session)}  # each is two rows
    for first, other, what in sorted(named):
        yield f"cases {first} and {other} {stored_pairs[what]}"


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
    # of the head, by the newest key
    signature: str
    # with which anybody can check the chain's signatures
    public_key: str
    # a sentence for each backup that was brought back, and each older database that was accepted
    restores: list[str]
    # why no head shows that the chain is complete; None if one does
    unproven: str | None
    # what no event says, so that a change would not be found
    not_compared: tuple[str, ...] = NOT_COMPARED

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


def verify_all(session: Session, context: ServiceContext, against: str | None = None) -> IntegrityReport:
    """Check the audit chain, the rows that its events explain, and every image, release and evaluation."""
    checker = check_audit(session, context.keys.audit)
    outside, lost, unproven = _check_anchored_heads(session, context, against)
    faults = [*checker.faults, *outside]
    faults += collect_faults("cases", lambda: check_key_columns(session, context.keys))
    faults += collect_faults("pairs of the same picture", lambda: wrong_pairs(session))
    digests = sorted(stored_image_names(session))
    faults += collect_faults("images", lambda: _damaged_images(context, digests))
    n_releases = session.execute(select(func.count()).select_from(ReleaseRow)).scalar_one()
    faults += collect_faults("releases", lambda: _damaged_releases(session, context))
    n_evaluations = session.execute(select(func.count()).select_from(Evaluation)).scalar_one()
    faults += collect_faults("evaluations", lambda: _damaged_evaluations(session, context))
    faults += collect_faults("snapshots", lambda: _damaged_snapshots(context))
    whole = COMPLETE if unproven is None else CONSISTENT
    return IntegrityReport(
        checker.n_events,
        len(digests),
        n_releases,
        n_evaluations,
        faults,
        verdict=f"not consistent: {len(faults)} faults" if faults else whole,
        head=checker.own_head,
        signature=checker.signature,
        public_key=context.keys.audit.public_key,
        restores=[*lost, *_describe_restores(session)],
        unproven=unproven,
    )


def _describe_restores(session: Session) -> Iterator[str]:
    for event, last in list_restores(session):
        what = (
            "a backup was brought back, which" if event["action"] == RESTORE else "an older database was accepted; it"
        )
        yield f"audit event {event['sequence']}: {what} ended at {last}"


def _check_anchored_heads(
    session: Session, context: ServiceContext, against: str | None
) -> tuple[list[str], list[str], str | None]:
    """Faults by kept heads, a sentence about a given head that a restore removed, and why completeness is not shown."""
    path, is_chosen = context.settings.head_file, context.settings.audit_anchor is not None
    paths = [path] if is_chosen or path.is_file() else []
    faults: list[str] = []
    lost: list[str] = []
    unproven = None
    if against is None and not paths:
        unproven = f"no head was kept outside the database; servers and workers write {path}, and --against takes one"
    elif against is None and not is_chosen and session.get_bind().dialect.name == "sqlite":
        unproven = (
            f"{path} lies next to the database, so that one person can shorten both; compare with a head from "
            "elsewhere by --against, or keep the file elsewhere by SECONDREAD_AUDIT_ANCHOR"
        )
    if against is not None and Path(against).is_file():
        paths.append(Path(against))
    elif against is not None:
        sequence, digest = split_head(against)
        if not events.contains_head(session, sequence, digest):
            by = [event["sequence"] for event, last in list_restores(session) if last < sequence]
            sentence = f"the audit chain does not contain the head {sequence}: "
            if by:
                lost.append(f"{sentence}audit event {by[0]} says that an older backup was brought back")
                unproven = "the given head went when the database became older"
            else:
                faults.append(f"{sentence}it was cut or written anew")
    for path in paths:
        faults += missing_heads(path, session, context.keys.audit)
    return faults, lost, unproven


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
