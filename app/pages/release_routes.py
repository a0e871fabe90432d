"""HTML routes of releases: compare, promote, roll back, recalibrate."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response
from sqlalchemy.orm import Session

from app.accounts.people import confirm_password
from app.accounts.permissions import GuardedRoute, Policy
from app.context import Context, Parts
from app.database.engine import Reader, Writer
from app.http.errors import Conflict, Forbidden, Invalid, PreconditionFailed
from app.http.models import PageText
from app.http.principal import Principal
from app.pages import release_views
from app.pages.forms import MoveForm, checked
from app.pages.render import go, page
from app.recalibration.change_plan import ChangePlan
from app.releases.schemas import RecalibrationIn
from app.releases.service import ask_predictions, ask_recalibration, move_alias, submit_judgement

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Viewer = Annotated[Principal, Depends(Policy("metrics:read"))]
_Manager = Annotated[Principal, Depends(Policy("manage"))]


@router.get("/releases")
def releases(request: Request, context: Parts, principal: _Viewer, session: Reader) -> Response:
    """Champion, challengers and candidates."""
    methods = ChangePlan.read(context.settings.change_plan).methods
    return page(request, "releases.html", principal, items=release_views.releases(session), methods=methods)


@router.get("/releases/{release_id}")
def show_release(
    release_id: uuid.UUID, request: Request, context: Parts, principal: _Viewer, session: Reader
) -> Response:
    """A release compared with the champion: what changed, and whether the gate let it through."""
    view = release_views.release(session, context, release_id)
    return page(request, "release.html", principal, view=view, form=None, faults={})


@router.post("/releases/{release_id}/move")
def move(
    release_id: uuid.UUID, request: Request, context: Parts, principal: _Manager, form: Annotated[MoveForm, Form()]
) -> Response:
    """Promote a release, or roll back to an earlier one; what is refused stands beside its field, the rest is kept.

    Raises:
        Conflict: the gate has not let it through, and nobody chose to promote it all the same.
        Forbidden: the password is missing or wrong.
        Invalid: no reason was given.
        PreconditionFailed: somebody else moved the alias meanwhile.
    """
    try:
        with context.database.write() as session:
            _move(session, context, principal, release_id, form)
    except (Conflict, Forbidden, Invalid, PreconditionFailed) as exc:
        if "text/html" not in request.headers.get("accept", ""):
            raise
        with context.database.read() as session:
            view = release_views.release(session, context, release_id)
        field = {Forbidden: "password", Invalid: "reason"}.get(type(exc), "")
        return page(request, "release.html", principal, exc.status, view=view, form=form, faults={field: exc.detail})
    return go("/releases")


def _move(session: Session, context: Context, principal: Principal, release_id: uuid.UUID, form: MoveForm) -> None:
    """Move an alias as a form asks.

    Raises:
        Invalid: no reason was given.
    """
    reason = form.reason.strip()
    if not reason:
        raise Invalid("say why")
    confirm_password(session, principal, form.password)
    named, chosen = form.alias, form.despite_gate
    move_alias(session, context, principal.name, named, release_id, reason, form.revision, despite_gate=chosen)


@router.post("/releases/{release_id}/predict")
def predict_old_cases(release_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Ask for the predictions that old cases lack, so that the release can be compared on them."""
    ask_predictions(session, context, release_id, principal)
    return go("/jobs")


@router.post("/releases/{release_id}/judge")
def judge(release_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Ask the gate to judge a release against the champion, in a job."""
    submit_judgement(session, context, principal, release_id)
    return go("/jobs")


@router.post("/releases/recalibrate")
def recalibrate(
    context: Parts, principal: _Manager, session: Writer, method: Annotated[PageText, Form(max_length=20)] = ""
) -> Response:
    """Fit a candidate on the labels collected so far, in a job."""
    body = checked(RecalibrationIn, **({"method": method} if method else {}))
    ask_recalibration(session, context, principal, body)
    return go("/jobs")
