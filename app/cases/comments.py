"""Comments on a case: added once, shown with the case in full, deleted with an erased patient."""

import uuid

from sqlalchemy import select

from app.audit.chain import events
from app.cases.blindness import ResolvedCase, case_handle, ensure_discussed
from app.cases.queries import case_by_id
from app.cases.schemas import CommentIn, CommentOut
from app.context import Call
from app.database.tables import Account, Case, Comment
from app.http.errors import Conflict


def add_comment(call: Call, case: ResolvedCase, body: CommentIn) -> tuple[int, CommentOut]:
    """Add a comment of the caller."""
    session, principal = call.session, call.principal
    case_by_id(session, case.id)
    ensure_discussed(session, principal, case)
    # locked: an erasure of the patient comes before, or finds the comment
    if session.get_one(Case, case.id, with_for_update=True, populate_existing=True).erased_at is not None:
        raise Conflict("the patient of this cell was erased")
    comment = Comment(case_id=case.id, account_id=principal.account_id, **body.model_dump())
    session.add(comment)
    session.flush()
    details = {"comment": str(comment.id)}
    keys = call.context.keys.audit
    events.record_event(session, keys, actor=principal.name, action="comment.add", object_id=case.id, details=details)
    return 201, _comment_out(call, case, comment, principal.name)


def list_comments(call: Call, case: ResolvedCase) -> list[CommentOut]:
    """The comments on a case, oldest first; to be called where an exposure is recorded."""
    case_by_id(call.session, case.id)
    ensure_discussed(call.session, call.principal, case)
    statement = (
        select(Comment, Account.name)
        .join(Account, Account.id == Comment.account_id)
        .where(Comment.case_id == case.id)
        .order_by(Comment.id)
    )
    return [_comment_out(call, case, comment, author) for comment, author in call.session.execute(statement)]


def _comment_out(call: Call, case: ResolvedCase, comment: Comment, author: str) -> CommentOut:
    named: uuid.UUID = case_handle(call.keys, call.principal, case.named)
    fields = {name: getattr(comment, name) for name in ("text", "x", "y", "created_at")}
    return CommentOut(id=str(comment.id), case_id=str(named), author=author, **fields)
