"""Columns of cases that follow from the key or from other rows: partition, coin, plan, and the picture itself."""

import uuid
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.cases.preparing import partition_of
from app.context import Context
from app.database.tables import Case, CasePrediction, DailyThreshold, Look, PolicyRow, ReaderDraw, ReadRequest
from app.platform.keys import Keys
from app.triage.drawing import drawn
from app.triage.planning import coin
from ml.images.image_statistics import difference_hash, hash_distance
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import ImageRejectedError, decode_image
from ml.metrics.selection_designs import graded_probabilities

# another version of Pillow may round a pixel differently
_NEAR = 4
_ROWS = 500


def wrong_columns(session: Session, context: Context) -> Iterator[str]:
    """Compare what follows from the key, from the plan and from the picture with what the rows say.

    Args:
        session: for reading.
        context: for the key and the image store.
    """
    rules = _Rules(session)
    after = uuid.UUID(int=0)
    while rows := session.execute(select(Case).where(Case.id > after).order_by(Case.id).limit(_ROWS)).scalars().all():
        ids = [case.id for case in rows]
        looks, requests = defaultdict(list), defaultdict(list)
        for look in session.execute(select(Look).where(Look.case_id.in_(ids))).scalars():
            looks[look.case_id].append(look)
        for request in session.execute(select(ReadRequest).where(ReadRequest.case_id.in_(ids))).scalars():
            requests[request.case_id].append(request)
        yield from _from_draws(session, context.keys, ids)
        first_ids = [case.same_image_as for case in rows if case.same_image_as is not None]
        firsts = select(Case.id, Case.partition).where(Case.id.in_(first_ids))
        inherited = {row[0]: row[1] for row in session.execute(firsts)}
        for case in rows:
            if case.erased_at is None:
                twins = None if case.same_image_as is None else inherited.get(case.same_image_as)
                yield from _from_key(context.keys, case, twins)
                yield from _from_picture(context, case)
            yield from _from_plan(case, looks[case.id], requests[case.id], rules)
        after = ids[-1]
        session.expunge_all()


class _Rules:
    """What probabilities of a second read the policies allow.

    Args:
        session: for reading.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._policies = {policy.version: policy for policy in session.execute(select(PolicyRow)).scalars()}
        self._scales = defaultdict[int, list[float]](list)
        for row in session.execute(select(DailyThreshold).where(DailyThreshold.threshold.is_not(None))).scalars():
            self._scales[row.policy_version].append(row.threshold or 0.0)

    def allow(self, look: Look) -> bool:
        """Whether the policy of a look gives this probability, the graded rule on one of its days."""
        policy = self._policies.get(look.policy_version)
        if policy is None:
            return False
        if look.selected or policy.rule != "graded":
            return look.pi == (1.0 if look.selected else policy.audit_rate)
        if look.pi == policy.audit_rate:  # a near-duplicate, or before there was a scale
            return True
        of_case = (CasePrediction.case_id == look.case_id, CasePrediction.release_id == look.release_id)
        known = np.array(
            self._session.execute(select(CasePrediction.disagreement_prob).where(*of_case)).scalars().all()
        )
        if known.size == 0:  # erased
            return policy.audit_rate < look.pi < 1
        return any(
            np.isclose(graded_probabilities(known, scale, policy.audit_rate), look.pi, rtol=1e-9).any()
            for scale in self._scales[look.policy_version]
        )


def _from_key(keys: Keys, case: Case, inherited: str | None) -> Iterator[str]:
    own = partition_of(keys.partition, case.patient, case.external_id)
    # without a patient a case is where the first one with its pixels is
    if case.partition != own and (case.patient is not None or case.partition != inherited):
        yield f"case {case.id}: partition is not that of its patient"
    if case.u != coin(keys.coin, case.external_id):
        yield f"case {case.id}: its coin u is not that of its external id"


def _from_plan(case: Case, looks: list[Look], requests: list[ReadRequest], rules: _Rules) -> Iterator[str]:
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


def _from_draws(session: Session, keys: Keys, case_ids: list[uuid.UUID]) -> Iterator[str]:
    """Whether annotators were drawn by the key, and the newest draw of each request is what the request says."""
    drawn_of = select(ReaderDraw, ReadRequest.ordinal, ReadRequest.annotator_id)
    joined = drawn_of.join(ReadRequest, ReadRequest.id == ReaderDraw.request_id)
    ordered = joined.where(ReaderDraw.case_id.in_(case_ids)).order_by(ReaderDraw.request_id, ReaderDraw.position)
    newest: dict[uuid.UUID, tuple[ReaderDraw, uuid.UUID | None]] = {}
    for row, ordinal, asked in session.execute(ordered):
        newest[row.request_id] = (row, asked)
        by_key = row.probability is None or (
            bool(row.among)
            and row.probability == 1 / len(row.among)
            and str(row.annotator_id) == drawn(keys.draws, row.case_id, ordinal, row.position, row.among)
        )
        if not by_key:
            yield f"case {row.case_id}: read request {ordinal} was asked of another annotator than its draw says"
    for row, asked in newest.values():
        if asked not in {None, row.annotator_id}:
            yield f"case {row.case_id}: a read request is asked of another annotator than its newest draw"


def _from_picture(context: Context, case: Case) -> Iterator[str]:
    """Whether the pictures that the row points to are those that were stored."""
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
