"""API page, rendered from the OpenAPI document without a script, for the service and the docs."""

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse

from app.accounts.service import GuardedRoute, allow_everyone
from app.http.middleware import POLICY
from app.web.render import ENVIRONMENT

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
#: The viewer styles its elements in place. Only this page allows that, and it shows nothing that a user wrote.
_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")


@router.get("/v1/docs", dependencies=[Depends(allow_everyone)])
def show_api() -> HTMLResponse:
    """Every operation with its access, fields, errors and an example."""
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": _POLICY}
    return HTMLResponse(ENVIRONMENT.get_template("api.html").render(), headers=headers)
