"""Pages of annotator models and of an annotator's own reading."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Path, Request, Response

from app.accounts.annotators import annotator_of_account
from app.accounts.permissions import GuardedRoute, Policy
from app.annotators.history import annotator_named, class_names
from app.annotators.models import service
from app.annotators.models.schemas import ReaderFitIn, ReaderSwitchIn
from app.annotators.service import ME, own_reading
from app.cases.blindness import note_exposure
from app.cases.queries import flagged_labels
from app.context import Parts
from app.database.engine import Reader, Writer
from app.database.tables import Case
from app.http.errors import Invalid
from app.http.languages import gettext
from app.http.models import Line, PageText
from app.http.principal import Principal
from app.metrics.annotator_drift import reader_drift
from app.releases.queries import champion
from app.web.charts import week_chart
from app.web.closed_cases import MOST, settled_since
from app.web.forms import checked
from app.web.render import go, page

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


#: Flags shown at once.
_FLAGGED = 200


@router.get("/me")
def my_reading(
    request: Request, principal: Annotated[Principal, Depends(Policy("reads:own"))], session: Reader
) -> Response:
    """How the caller reads."""
    known = annotator_of_account(session, principal.account_id) is not None
    view = own_reading(session, principal, ME) if known else None
    return page(request, "reading.html", principal, view=view, title=gettext("My reading"), names=class_names(session))


@router.get("/settled")
def settled(
    request: Request, context: Parts, principal: Annotated[Principal, Depends(Policy("reads:own"))], session: Reader
) -> Response:
    """Where the caller stood with the others in cases that were settled since they last looked; recorded as shown."""
    cases = settled_since(session, context.keys.readers, principal)
    for case in cases:
        note_exposure(context.database, session, principal, case.id)
    return page(request, "settled.html", principal, cases=cases, most=MOST)


@router.get("/flagged")
def flagged(request: Request, principal: Annotated[Principal, Depends(Policy("manage"))], session: Reader) -> Response:
    """Cases that annotators want an admin to look at, newest first."""
    rows = [(session.get_one(Case, row.label.case_id), row) for row in flagged_labels(session, _FLAGGED)]
    return page(request, "flagged.html", principal, rows=rows, most=_FLAGGED, names=class_names(session))


@router.get("/annotators/{name}")
def reading_of(
    name: Line, request: Request, principal: Annotated[Principal, Depends(Policy("manage"))], session: Reader
) -> Response:
    """How an annotator reads, for admins."""
    view = None if annotator_named(session, name) is None else own_reading(session, principal, name)
    title = gettext("How %(name)s reads", name=name)
    return page(request, "reading.html", principal, view=view, title=title, names=class_names(session))
