"""HTML routes of releases: compare, promote, roll back, recalibrate."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Request, Response

from app.auth.policy import GuardedRoute, Policy
from app.auth.service import confirm_password
from app.context import Parts
from app.pages import release_views
from app.pages.forms import checked
from app.pages.render import go, page
from app.platform.database import Reader, Writer
from app.platform.errors import Invalid
from app.platform.principal import Principal
from app.platform.values import PageText
from app.recalibration.change_plan import ChangePlan
from app.releases.judgements import submit_judgement
from app.releases.schemas import RecalibrationIn
from app.releases.service import ask_predictions, ask_recalibration, move_alias

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
    return page(request, "release.html", principal, view=release_views.release(session, context, release_id))


@router.post("/releases/{release_id}/move")
def move(
    release_id: uuid.UUID,
    context: Parts,
    principal: _Manager,
    session: Writer,
    alias: Annotated[Literal["champion", "challenger"], Form()],
    revision: Annotated[int, Form(ge=0)],
    despite_gate: Annotated[bool, Form()] = False,
    reason: Annotated[PageText, Form(max_length=2000)] = "",
    password: Annotated[PageText, Form(max_length=300)] = "",
) -> Response:
    """Promote a release, or roll back to an earlier one.

    Raises:
        Invalid: no reason was given.
    """
    if not reason.strip():
        raise Invalid("say why")
    confirm_password(session, principal, password)
    move_alias(session, context, principal.name, alias, release_id, reason.strip(), revision, despite_gate=despite_gate)
    return go("/releases")


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
