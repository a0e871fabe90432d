"""Predicting without storing, storing, and listing cases."""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.cases import queries
from app.cases.active_config import HeldInForce, InForce
from app.cases.ingest import CaseForm, NewCase, prepare_case, store_case
from app.cases.presenters import Likeness, cases_out, judging_of, prediction_out, stored_prediction_out
from app.cases.queries import decode_cursor, decode_need_cursor, encode_cursor, encode_need_cursor
from app.cases.schemas import CaseOut, CasesOut, PredictionsOut, RequestOut, WorklistOut, WorkOut
from app.context import Context
from app.database.idempotency import Once, request_digest
from app.database.tables import ReadRequest
from app.http.errors import Unavailable
from app.http.models import PredictionOut
from app.http.principal import Principal
from app.predictions.stored import finite_or_none
from app.triage.rules import triage
from ml.images.picture import Cost, cost_of


async def predict_in_turn(context: Context, held: HeldInForce, seen: Sequence[Any] | None, data: bytes) -> str:
    """Predict an image without storing anything: a small one at the front, where nobody waits for large ones.

    Args:
        context: parts of the service.
        held: what predictions are made and judged by.
        seen: ``REVISION`` as the statement that found the caller saw it.
        data: the image as it was uploaded.

    Returns:
        The ``PredictionOut`` as JSON.

    Raises:
        Problem: as ``stateless_prediction``, or as ``HeldInForce.now``.
    """
    known = held.if_known(seen)
    if known is not None and known.served.is_small:
        answer = await context.front.run(lambda: _small_prediction(context, known, data))
        if answer is not None:
            return answer

    def predicted() -> str:
        in_force = held.now(context.database, seen)
        return stateless_prediction(context, in_force, data, cost_of(data)).model_dump_json()

    return await run_in_threadpool(predicted)


def _small_prediction(context: Context, in_force: InForce, data: bytes) -> str | None:
    """The answer, None where decoding would take longer than those who wait should."""
    cost = cost_of(data)
    return stateless_prediction(context, in_force, data, cost).model_dump_json() if cost.cheap else None


def stateless_prediction(context: Context, in_force: InForce, data: bytes, cost: Cost) -> PredictionOut:
    """Predict an image without storing anything.

    Args:
        context: parts of the service.
        in_force: what it is predicted and judged by.
        data: the image as it was uploaded.
        cost: of decoding it.

    Raises:
        TooLarge: too many pixels.
        UnsupportedImage: not a format that is read.
        BrokenImage: empty, damaged, too small or with several frames.
        Overloaded: too many pictures are being decoded, or predictions wait.
    """
    served, release = in_force.served, in_force.served.predictor.release
    with context.pictures.opened(data, release.preprocessing, cost=cost) as picture:
        prediction = context.inference.predict(served, picture.pixels)
    classes = list(release.classes)
    unlike = prediction.unlikeness
    likeness = Likeness(
        bool(unlike.flagged[0]),
        unlike.reasons[0],
        finite_or_none(unlike.distance[0]),
        finite_or_none(unlike.percentile[0]),
    )
    decision = triage(prediction.distribution, in_force.rule, out_of_distribution=likeness.out_of_distribution)
    return prediction_out(
        prediction.distribution,
        served.release_id,
        classes,
        hashlib.sha256(data).hexdigest(),
        decision,
        likeness,
        in_force.sets,
    )


def upload_digest(form: CaseForm) -> str:
    """Digest of what is sent to store a case."""
    files = [form.image] if form.field is None else [form.image, form.field]
    digests = [hashlib.sha256(data).hexdigest() for data in files]
    return request_digest(form.fields, *digests)


def prepare_unless_answered(context: Context, once: Once, form: CaseForm) -> NewCase | None:
    """Decode, predict and store the image before the writing transaction begins; a retry costs none of that.

    Returns:
        What is to be stored; None where the key has its answer already.
    """
    with context.database.read() as session:
        if once.answered(session):
            return None
    return prepare_case(context, form.fields, form.image, form.field)


def add_case(session: Session, context: Context, principal: Principal, new: NewCase | None) -> tuple[int, CaseOut]:
    """Store a prepared case.

    Returns:
        201 and the new case, or 200 and the one that was there.

    Raises:
        OtherImage: the external id belongs to another image or field.
        Unavailable: the answer that made preparing needless was removed meanwhile.
    """
    if new is None:
        raise Unavailable("the first answer to this key is gone; send the request again")
    return store_case(session, context, principal, new)


def list_predictions(session: Session, case_id: uuid.UUID) -> PredictionsOut:
    """Every prediction of a case, newest first."""
    case, predictions = queries.case_by_id(session, case_id), queries.predictions_of_case(session, case_id)
    judging = judging_of(session, predictions)
    return PredictionsOut(items=[stored_prediction_out(case, prediction, judging) for prediction in predictions])


def list_cases(session: Session, chosen: queries.CaseFilter, cursor: str | None, limit: int) -> CasesOut:
    """A page of cases, newest first."""
    after = None if cursor is None else decode_cursor(cursor)
    rows = queries.page_of_cases(session, chosen, after=after, limit=limit + 1)
    next_cursor = encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
    return CasesOut(items=cases_out(session, rows[:limit]), next_cursor=next_cursor)


def worklist(session: Session, cursor: str | None, limit: int, chosen: queries.CaseFilter | None = None) -> WorklistOut:
    """A page of the cases of which a read is wanted, those in most need first."""
    after = None if cursor is None else decode_need_cursor(cursor)
    rows = queries.page_by_need(session, after=after, limit=limit + 1, chosen=chosen)
    requests = queries.requests_of(session, [case.id for case in rows[:limit]])
    items = [
        WorkOut(
            case=shown,
            need=case.need + (1.0 if case.need < 0 else 0.0),
            near_duplicate=case.need < 0,
            requests=[request_out(*row) for row in requests.get(case.id, [])],
        )
        for case, shown in zip(rows[:limit], cases_out(session, rows[:limit]), strict=True)
    ]
    last = rows[limit - 1] if len(rows) > limit else None
    return WorklistOut(items=items, next_cursor=None if last is None else encode_need_cursor(last.need, last.id))


def request_out(request: ReadRequest, people: queries.People) -> RequestOut:
    """A request as those see it who manage reads."""
    fields = ("ordinal", "round", "arm", "u", "pi", "policy_version", "state", "due_at", "closed_at")
    return RequestOut(**asdict(people), **{name: getattr(request, name) for name in fields})
