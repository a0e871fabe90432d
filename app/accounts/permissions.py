"""Route guards: each route declares its scopes; a route without a guard stops the start-up."""

import hmac
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import fastapi
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import SecretStr
from sqlalchemy import ColumnElement
from starlette.concurrency import run_in_threadpool

from app.accounts.people import principal_of_cookie, principal_of_key, touch_session
from app.accounts.sign_in import refuse_cross_site
from app.database.engine import Database
from app.http.errors import Forbidden, Unauthenticated
from app.http.principal import SCOPES, Principal, session_token
from app.http.routing import walk_routes

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
#: What paths of the API begin with; those of pages do not.
API = "/v1/"
#: How many of the query parameters that there are not an answer names.
_NAMED = 20
#: The FastAPI of which a test says that the walk over routes finds every operation of the OpenAPI document.
WALKED = "0.165.0"
_NO_QUERY = "there is no such query parameter; there are none"


def caller_of(request: Request, also: tuple[ColumnElement[Any], ...] = ()) -> Principal | None:
    """Caller of a request, or None; looked up and counted once per request."""
    if not hasattr(request.state, "caller"):
        request.state.caller = _identify_caller(request, also)
        if request.state.caller is not None:
            request.app.state.rate_limit.count(str(request.state.caller.account_id))
    caller: Principal | None = request.state.caller
    return caller


def _identify_caller(request: Request, also: tuple[ColumnElement[Any], ...]) -> Principal | None:
    database: Database = request.app.state.database
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        principal, request.state.seen = principal_of_key(database, token.strip(), also)
        return principal
    if scheme:
        raise Unauthenticated("use the scheme Bearer with an API key")
    cookie = session_token(request)
    if cookie is None:
        return None
    with database.read() as session:
        principal, session_id, write_back = principal_of_cookie(session, cookie)
    if request.method not in _SAFE_METHODS:
        refuse_cross_site(request)
    if write_back:
        with database.write() as session:
            touch_session(session, session_id)
    return principal


class RequireScope:
    """Dependency that requires one of the scopes, or admits every caller."""

    def __init__(self, *scopes: str, also: tuple[ColumnElement[Any], ...] = ()) -> None:
        unknown = set(scopes) - set(SCOPES)
        if unknown:
            raise ValueError(f"unknown scopes {sorted(unknown)}")
        self.scopes, self.wanted = frozenset(scopes), " or ".join(scopes)
        self._also = also

    async def __call__(self, request: Request) -> Principal | None:
        """Caller of a request; only where nobody has been looked up yet this takes a thread, for the database."""
        if not self.scopes:
            return None
        is_identified = hasattr(request.state, "caller")
        principal = caller_of(request) if is_identified else await run_in_threadpool(caller_of, request, self._also)
        if principal is None:
            raise Unauthenticated("send an API key as `Authorization: Bearer …`, or sign in")
        if not principal.scopes & self.scopes:
            raise Forbidden("this needs the scope {wanted}, which your role or key does not have", wanted=self.wanted)
        return principal


class RequireServiceScope(RequireScope):
    """Requires the key of a service account with one of the scopes."""

    async def __call__(self, request: Request) -> Principal | None:
        """Caller of a request."""
        principal = await super().__call__(request)
        if principal is None or principal.role != "service":
            raise Forbidden("this is for keys of service accounts with the scope {wanted}", wanted=self.wanted)
        return principal


class _AllowEveryone(RequireScope):
    """Admits every caller, without a thread."""

    async def __call__(self, request: Request) -> None:
        """Nobody is asked for."""


#: For routes that everybody may use.
allow_everyone = _AllowEveryone()


class _RequireMonitoringToken(_AllowEveryone):
    """Requires the monitoring token of the settings; works without the database."""

    async def __call__(self, request: Request) -> None:
        token: SecretStr | None = request.app.state.context.settings.metrics_token
        if token is None:
            raise Forbidden("monitoring only: set SECONDREAD_METRICS_TOKEN and send it as a bearer token")
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(sent.encode(), token.get_secret_value().encode()):
            raise Unauthenticated("send the token of SECONDREAD_METRICS_TOKEN as `Authorization: Bearer …`")


#: For routes of a monitoring system.
require_monitoring_token = _RequireMonitoringToken()


def _walk_dependants(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for inner in dependant.dependencies:
        yield from _walk_dependants(inner)


def get_route_guard(route: APIRoute) -> RequireScope | None:
    """Guard of a route, None where it has none."""
    guards = {d.call for d in _walk_dependants(route.dependant) if isinstance(d.call, RequireScope)}
    if len(guards) > 1:
        raise RuntimeError(f"{sorted(route.methods or ())} {route.path} has {len(guards)} guards; name one")
    return next(iter(guards), None)


def openapi_security(route: APIRoute) -> list[dict[str, list[str]]]:
    """Credentials, any one of which opens an operation; none for a public one."""
    policy = get_route_guard(route)
    if policy is require_monitoring_token:
        return [{"metrics_token": []}]
    scopes = sorted(policy.scopes) if policy is not None else []
    return [{scheme: [scope]} for scope in scopes for scheme in ("api_key", "session")]


def _call_in_thread(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    # FastAPI would take a second thread for the check, before the session ends: as soon as all threads wait for a
    # connection, none of those who hold one could go on.

    @wraps(endpoint)
    async def served(**values: Any) -> Any:
        return await run_in_threadpool(endpoint, **values)

    return served


class GuardedRoute(APIRoute):
    """A route that asks its guard before a byte of the body is read: FastAPI itself parses the body first."""

    # One of the API refuses query parameters that it does not have: a misspelt filter would answer another question.

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint if iscoroutinefunction(endpoint) else _call_in_thread(endpoint), **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What serves a request of this route."""
        handle, guard = super().get_route_handler(), get_route_guard(self)
        if guard is None:
            return handle
        first = bool(guard.scopes) and not (self.methods or set()) <= _SAFE_METHODS
        parameter_names = {field.alias for inner in _walk_dependants(self.dependant) for field in inner.query_params}
        of_the_api = self.path.startswith(API)

        async def guarded(request: Request) -> Response:
            query_string = of_the_api and request.scope.get("query_string")
            unknown = sorted(set(request.query_params) - parameter_names) if query_string else []
            if guard.scopes and (first or unknown):
                await guard(request)  # the caller is kept for the guard among the parameters
            if unknown:
                what = (
                    f"there is no such query parameter; there are {', '.join(sorted(parameter_names))}"
                    if parameter_names
                    else _NO_QUERY
                )
                raise RequestValidationError([{"loc": ("query", name), "msg": what} for name in unknown[:_NAMED]])
            return await handle(request)

        return guarded


def require_route_guards(app: FastAPI, routers: Sequence[APIRouter] = ()) -> None:
    """Refuse to start with a route that has no guard or reads the body first."""
    routes = list(walk_routes(app))
    bare = [f"{sorted(route.methods or ())} {route.path}" for route in routes if get_route_guard(route) is None]
    if bare:
        raise RuntimeError(f"routes without a policy: {', '.join(bare)}")
    late = [route.path for route in routes if not isinstance(route, GuardedRoute)]
    if late:
        raise RuntimeError(f"routes that read the body before they ask their guard (GuardedRoute): {', '.join(late)}")
    checked = {(method, route.path) for route in routes for method in route.methods or ()}
    # with another FastAPI the walk may find less; making the document to see that takes longer than all the rest
    expected = _list_included_operations(routers) | (
        set() if fastapi.__version__ == WALKED else list_documented_operations(app)
    )
    unseen = sorted(expected - checked)
    if unseen or not checked:
        raise RuntimeError(f"routes whose policy cannot be checked with this FastAPI: {unseen or 'all'}")


def list_documented_operations(app: FastAPI) -> set[tuple[str, str]]:
    """Method and path of every operation of the OpenAPI document."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    return {(verb.upper(), path) for path, operations in document["paths"].items() for verb in operations}


def _list_included_operations(routers: Sequence[APIRouter]) -> set[tuple[str, str]]:
    """Method and path of every route of the routers; one of an unknown kind counts too, and is then missed."""
    routes = [route for router in routers for route in router.routes]
    return {
        (method, getattr(route, "path", repr(route)))
        for route in routes
        for method in getattr(route, "methods", None) or ["unknown"]
    }
