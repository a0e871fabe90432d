"""The page about the API: made from its OpenAPI document, without a script, the same in the service and in the docs."""

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from app.auth.policy import GuardedRoute, public
from app.description.view import view
from app.pages.assets import FOLDER
from app.pages.render import ENVIRONMENT

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_TEMPLATE, _STYLE = "api.html", "api.css"


def api_page(document: dict[str, Any], *, alone: bool) -> str:
    """The page.

    Args:
        document: OpenAPI.
        alone: with its style inside, as a file that opens without the service.

    Returns:
        HTML.
    """
    style = (FOLDER / _STYLE).read_text() if alone else None
    return ENVIRONMENT.get_template(_TEMPLATE).render(api=view(document), style=style)


@router.get("/v1/docs", dependencies=[Depends(public)])
def show_api(request: Request) -> HTMLResponse:
    """Every operation with its access, fields, errors, an example and a command."""
    state = request.app.state
    if not hasattr(state, "api_page"):
        state.api_page = api_page(request.app.openapi(), alone=False)
    return HTMLResponse(state.api_page, headers={"Cache-Control": "no-cache"})
