"""Predicting without storing, and listing cases."""

import uuid

from sqlalchemy.orm import Session

from app.cases import queries
from app.cases.cursors import decode_cursor, decode_need_cursor, encode_cursor, encode_need_cursor
from app.cases.preparing import predict_upload, read_upload
from app.cases.schemas import CasesOut, PredictionsOut, RequestOut, WorklistOut, WorkOut
from app.cases.showing import case_out, prediction_out, stored_prediction_out
from app.context import Context
from app.platform.values import PredictionOut
from app.tables import ReadRequest
from app.triage.queries import current_rule
from app.triage.rules import triage


def stateless_prediction(context: Context, data: bytes) -> PredictionOut:
    """Predict an image without storing anything."""
    upload = read_upload(data)
    served, prediction = predict_upload(context, upload)
    classes = list(served.predictor.release.classes)
    with context.database.read() as session:
        rule = current_rule(session)
    unusual = bool(prediction.out_of_distribution[0])
    decision = triage(prediction.distribution, rule, out_of_distribution=unusual)
    return prediction_out(
        prediction.distribution,
        served.release_id,
        classes,
        upload.sha256,
        decision,
        rule.target_error,
        out_of_distribution=unusual,
    )


def list_predictions(session: Session, case_id: uuid.UUID) -> PredictionsOut:
    """Every prediction of a case, newest first."""
    case, rule = queries.case_by_id(session, case_id), current_rule(session)
    rows = queries.predictions_of_case(session, case_id)
    return PredictionsOut(items=[stored_prediction_out(session, case, row, rule) for row in rows])


def list_cases(session: Session, chosen: queries.CaseFilter, cursor: str | None, limit: int) -> CasesOut:
    """A page of cases, newest first."""
    after = None if cursor is None else decode_cursor(cursor)
    rows = queries.page_of_cases(session, chosen, after=after, limit=limit + 1)
    ids = [case.id for case in rows[:limit]]
    totals, predictions = queries.label_totals(session, ids), queries.predictions_of(session, ids)
    rule = current_rule(session)
    items = [case_out(session, case, predictions.get(case.id), totals.get(case.id, 0), rule) for case in rows[:limit]]
    return CasesOut(items=items, next_cursor=encode_cursor(rows[limit - 1].id) if len(rows) > limit else None)


def worklist(session: Session, cursor: str | None, limit: int, chosen: queries.CaseFilter | None = None) -> WorklistOut:
    """A page of the cases of which a read is wanted, those in most need first."""
    after = None if cursor is None else decode_need_cursor(cursor)
    rows = queries.page_by_need(session, after=after, limit=limit + 1, chosen=chosen)
    ids = [case.id for case in rows[:limit]]
    totals, predictions = queries.label_totals(session, ids), queries.predictions_of(session, ids)
    requests, rule = queries.requests_of(session, ids), current_rule(session)
    items = [
        WorkOut(
            case=case_out(session, case, predictions.get(case.id), totals.get(case.id, 0), rule),
            need=case.need + (1.0 if case.need < 0 else 0.0),
            near_duplicate=case.need < 0,
            requests=[request_out(*row) for row in requests.get(case.id, [])],
        )
        for case in rows[:limit]
    ]
    last = rows[limit - 1] if len(rows) > limit else None
    return WorklistOut(items=items, next_cursor=None if last is None else encode_need_cursor(last.need, last.id))


def request_out(request: ReadRequest, held_by: str | None) -> RequestOut:
    """A request as those see it who manage reads."""
    fields = ("ordinal", "round", "arm", "u", "pi", "policy_version", "state", "due_at", "closed_at")
    return RequestOut(held_by=held_by, **{name: getattr(request, name) for name in fields})
