"""HTML routes of models of annotators: fit, look, switch on and back."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Path, Request, Response

from app.accounts.permissions import GuardedRoute, Policy
from app.annotators.models import service
from app.annotators.models.schemas import ReaderFitIn, ReaderSwitchIn
from app.context import Parts
from app.database.engine import Reader, Writer
from app.http.errors import Invalid
from app.http.models import PageText
from app.http.principal import Principal
from app.metrics.annotator_drift import reader_drift
from app.pages.charts import week_chart
from app.pages.forms import checked
from app.pages.render import go, page
from app.releases.queries import champion

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Manager = Annotated[Principal, Depends(Policy("manage"))]


@router.get("/readers")
def readers(request: Request, context: Parts, principal: _Manager, session: Reader) -> Response:
    """Every version, what was found of it, and the switch; and how annotators went from week to week."""
    models, served = service.list_models(session), champion(session)
    champion_id = None if served is None else str(served.release_id)
    serves = service.switch_position(session).serves
    drift = [] if served is None else reader_drift(session, context.settings.home)
    charts = {row.annotator: week_chart(row.weeks) for row in drift}
    return page(
        request,
        "readers.html",
        principal,
        models=models,
        champion=champion_id,
        serves=serves,
        drift=drift,
        charts=charts,
    )


@router.get("/readers/{version}")
def show_reader_model(
    version: Annotated[int, Path(ge=1, le=2**31 - 1)], request: Request, principal: _Manager, session: Reader
) -> Response:
    """A version, annotator by annotator."""
    model = service.detail(session, version)
    return page(request, "reader_model.html", principal, model=model, names=model.class_names)


@router.post("/readers/fit")
def fit(
    context: Parts, principal: _Manager, session: Writer, experts: Annotated[PageText, Form(max_length=2000)] = ""
) -> Response:
    """Fit a model on the labels collected so far, in a job."""
    named = [name.strip() for name in experts.split(",") if name.strip()]
    service.ask_fit(session, context, principal, checked(ReaderFitIn, experts=named))
    return go("/jobs")


@router.post("/readers/switch")
def switch(
    context: Parts,
    principal: _Manager,
    session: Writer,
    revision: Annotated[int, Form(ge=0)],
    version: Annotated[PageText, Form(max_length=10)] = "",
    reason: Annotated[PageText, Form(max_length=2000)] = "",
) -> Response:
    """Weigh labels by a version, or take annotators as alike again.

    Raises:
        Invalid: no reason was given.
    """
    if not reason.strip():
        raise Invalid("say why")
    body = checked(ReaderSwitchIn, version=version or None, reason=reason)
    service.switch(session, context, principal.name, body, revision)
    return go("/readers")
