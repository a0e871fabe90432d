"""Calls of pages and of their forms."""

import uuid
from datetime import date, tzinfo
from functools import partial
from typing import Annotated, Any

from anyio import from_thread
from fastapi import Request, Response
from pydantic import Field
from starlette.datastructures import FormData

from app.accounts.service import SignInTooOld, WrongPassword
from app.context import Call, reading_call, writing_call
from app.http.errors import BadRequest, Conflict, InvalidValue, PreconditionFailed, Problem, StorageFull, TooLarge
from app.web.forms import TypedForm, page_of_form
from app.web.render import problem_page, render_page

#: A day with midnights in every time zone.
Day = Annotated[date, Field(gt=date.min, lt=date.max)]


class Page(Call):
    """A call of a page, or of a form of one."""

    @property
    def zone(self) -> tzinfo:
        """Time zone of the laboratory."""
        return self.context.settings.zone

    @property
    def refused(self) -> TypedForm:
        """The form that was refused, which the page shows again; none of any path otherwise."""
        refused: TypedForm = getattr(self.request.state, "refused", TypedForm())
        return refused

    def render(self, name: str, status: int = 200, **values: Any) -> Response:
        """Render a template for the caller."""
        return render_page(self.request, name, self.principal, status, **values)


#: What a guard never answers, so that the caller may see the page of the form.
_OF_FORMS = (
    *(BadRequest, Conflict, InvalidValue, PreconditionFailed, StorageFull, TooLarge),
    *(SignInTooOld, WrongPassword),
)


def answer_with_page(request: Request, problem: Problem) -> Response | None:
    """A problem as a page where a person asked for one: that of the form with what was typed, or one of its own."""
    try:
        page = _refused_form_page(request, problem)
    except (Problem, ValueError):  # what the form is about is not there
        page = None
    return page or problem_page(request, problem)


async def _read_form(request: Request) -> FormData:
    return await request.form()


def _refused_form_page(request: Request, problem: Problem) -> Response | None:
    form_page = page_of_form(request) if isinstance(problem, _OF_FORMS) else None
    if form_page is None or "text/html" not in request.headers.get("accept", ""):
        return None
    show, renamed = form_page
    faults = {renamed.get(name, name): what for name, what in problem.faults.items()}
    plain = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    typed = from_thread.run(_read_form, request) if plain else FormData()  # the route has read it
    request.state.refused = TypedForm(request.url.path, typed, faults)
    context, about = request.app.state.context, {name: uuid.UUID(text) for name, text in request.path_params.items()}
    with context.database.read() as session:
        response = show(page=Page(request, context, request.state.caller, session), **about)
    if f'action="{request.url.path}"'.encode() not in response.body:  # the page has no such form any more
        return None
    response.status_code = problem.status
    return response


_reading, _writing = partial(reading_call, kind=Page), partial(writing_call, kind=Page)
ViewerPage = Annotated[Page, _reading("metrics:read")]
LeadPage = Annotated[Page, _reading("cases:read")]
ManagerPage = Annotated[Page, _reading("manage")]
ManagerForm = Annotated[Page, _writing("manage")]
AnnotatorPage = Annotated[Page, _reading("reads:own")]
AnnotatorForm = Annotated[Page, _writing("reads:own")]
ImporterPage = Annotated[Page, _reading("cases:write")]
ImporterForm = Annotated[Page, _writing("cases:write")]
PeoplePage = Annotated[Page, _reading("cases:read", "reads:own")]
PeopleForm = Annotated[Page, _writing("cases:read", "reads:own")]
CommentForm = Annotated[Page, _writing("manage", "reads:own")]
PracticePage = Annotated[Page, _reading("reads:own", "manage")]
