"""Calls of pages and of their forms."""

from datetime import tzinfo
from functools import partial
from typing import Annotated, Any

from fastapi import Response

from app.context import Call, reading_call, writing_call
from app.web.render import render_page


class Page(Call):
    """A call of a page, or of a form of one."""

    @property
    def zone(self) -> tzinfo:
        """Time zone of the laboratory."""
        return self.context.settings.zone

    def render(self, name: str, status: int = 200, **values: Any) -> Response:
        """Render a template for the caller."""
        return render_page(self.request, name, self.principal, status, **values)


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
PracticePage = Annotated[Page, _reading("reads:own", "manage")]
