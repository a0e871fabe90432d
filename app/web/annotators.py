"""Pages of annotator models and of an annotator's own reading."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Path, Request, Response

from app.accounts.service import GuardedRoute, RequireScope, annotator_of_account
from app.annotators.models import service
from app.annotators.models.service import ReaderFitIn, ReaderSwitchIn
from app.annotators.service import ME, annotator_named, class_names, own_reading
from app.cases.service import flagged_labels, note_exposure
from app.context import AppContext
from app.database.engine import ReadSession, WriteSession
from app.database.tables import Case
from app.http.errors import InvalidValue
from app.http.languages import gettext
from app.http.models import Line, PageText
from app.http.principal import Principal
from app.metrics.service import reader_drift
from app.releases.service import get_champion_alias
from app.web.charts import week_chart
from app.web.closed_cases import MOST, settled_since
from app.web.forms import validate_form
from app.web.render import redirect_to, render_page

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Manager = Annotated[Principal, Depends(RequireScope("manage"))]


@router.get("/readers")
def show_annotator_models(request: Request, context: AppContext, principal: _Manager, session: ReadSession) -> Response:
    """Every version, what was found of it, and the switch; and how annotators went from week to week."""
    models, served = service.list_models(session), get_champion_alias(session)
    champion_id = None if served is None else str(served.release_id)
    serves = service.switch_position(session).serves
    drift = [] if served is None else reader_drift(session, context.settings.home)
    charts = {row.annotator: week_chart(row.weeks) for row in drift}
    return render_page(
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
def show_annotator_model(
    version: Annotated[int, Path(ge=1, le=2**31 - 1)], request: Request, principal: _Manager, session: ReadSession
) -> Response:
    """A version, annotator by annotator."""
    model = service.show_model_detail(session, version)
    return render_page(request, "reader_model.html", principal, model=model, names=model.class_names)


@router.post("/readers/fit")
def fit_annotator_model(
    context: AppContext,
    principal: _Manager,
    session: WriteSession,
    experts: Annotated[PageText, Form(max_length=2000)] = "",
) -> Response:
    """Fit a model on the labels collected so far, in a job."""
    named = [name.strip() for name in experts.split(",") if name.strip()]
    service.request_model_fit(session, context, principal, validate_form(ReaderFitIn, experts=named))
    return redirect_to("/jobs")


@router.post("/readers/switch")
def switch_annotator_model(
    context: AppContext,
    principal: _Manager,
    session: WriteSession,
    revision: Annotated[int, Form(ge=0)],
    version: Annotated[PageText, Form(max_length=10)] = "",
    reason: Annotated[PageText, Form(max_length=2000)] = "",
) -> Response:
    """Weigh labels by a version, or take annotators as alike again."""
    if not reason.strip():
        raise InvalidValue("say why")
    body = validate_form(ReaderSwitchIn, version=version or None, reason=reason)
    service.switch_model(session, context, principal.name, body, revision)
    return redirect_to("/readers")


#: Flags shown at once.
_FLAGGED = 200


@router.get("/me")
def show_own_reading(
    request: Request, principal: Annotated[Principal, Depends(RequireScope("reads:own"))], session: ReadSession
) -> Response:
    """How the caller reads."""
    is_annotator = annotator_of_account(session, principal.account_id) is not None
    view = own_reading(session, principal, ME) if is_annotator else None
    return render_page(
        request, "reading.html", principal, view=view, title=gettext("My reading"), names=class_names(session)
    )


@router.get("/settled")
def show_settled_cases(
    request: Request,
    context: AppContext,
    principal: Annotated[Principal, Depends(RequireScope("reads:own"))],
    session: ReadSession,
) -> Response:
    """Where the caller stood with the others in cases that were settled since they last looked; recorded as shown."""
    cases = settled_since(session, context.keys.readers, principal)
    for case in cases:
        note_exposure(context.database, session, principal, case.id)
    return render_page(request, "settled.html", principal, cases=cases, most=MOST)


@router.get("/flagged")
def show_flagged_labels(
    request: Request, principal: Annotated[Principal, Depends(RequireScope("manage"))], session: ReadSession
) -> Response:
    """Cases that annotators want an admin to look at, newest first."""
    rows = [(session.get_one(Case, row.label.case_id), row) for row in flagged_labels(session, _FLAGGED)]
    return render_page(request, "flagged.html", principal, rows=rows, most=_FLAGGED, names=class_names(session))


@router.get("/annotators/{name}")
def show_annotator_reading(
    name: Line, request: Request, principal: Annotated[Principal, Depends(RequireScope("manage"))], session: ReadSession
) -> Response:
    """How an annotator reads, for admins."""
    view = None if annotator_named(session, name) is None else own_reading(session, principal, name)
    title = gettext("How %(name)s reads", name=name)
    return render_page(request, "reading.html", principal, view=view, title=title, names=class_names(session))
