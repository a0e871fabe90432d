"""Worklist: the cases of which another read is wanted, those in most need first."""

from dataclasses import asdict

from sqlalchemy.orm import Session

from app.cases import queries
from app.cases.presenters import cases_out
from app.cases.queries import decode_need_cursor, encode_need_cursor
from app.cases.schemas import RequestOut, WorklistOut, WorkOut
from app.database.tables import ReadRequest


def get_worklist_page(
    session: Session, cursor: str | None, limit: int, chosen: queries.CaseFilter | None = None
) -> WorklistOut:
    """A page of the cases of which a read is wanted, those in most need first."""
    after = None if cursor is None else decode_need_cursor(cursor)
    rows = queries.page_by_need(session, after=after, limit=limit + 1, chosen=chosen)
    requests = queries.requests_of(session, [case.id for case in rows[:limit]])
    items = [
        WorkOut(
            case=case_response,
            need=case.need + (1.0 if case.need < 0 else 0.0),
            near_duplicate=case.need < 0,
            requests=[request_out(*row) for row in requests.get(case.id, [])],
        )
        for case, case_response in zip(rows[:limit], cases_out(session, rows[:limit]), strict=True)
    ]
    last = rows[limit - 1] if len(rows) > limit else None
    return WorklistOut(items=items, next_cursor=None if last is None else encode_need_cursor(last.need, last.id))


def request_out(request: ReadRequest, people: queries.RequestPeople) -> RequestOut:
    """A request as those see it who manage reads."""
    fields = ("ordinal", "round", "arm", "u", "pi", "policy_version", "state", "due_at", "closed_at")
    return RequestOut(**asdict(people), **{name: getattr(request, name) for name in fields})
