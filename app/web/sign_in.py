"""HTML routes: sign in, sign out, password."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request, Response

from app.accounts import people as auth
from app.accounts import single_sign_on
from app.accounts.permissions import GuardedRoute, Policy, public
from app.accounts.sign_in import (
    COOKIE,
    SECURE_COOKIE,
    is_secure,
    refuse_cross_site,
    session_cookie,
    session_token,
    sign_in,
)
from app.cases import correction_window
from app.context import Context, Parts
from app.database.engine import Reader, Writer
from app.demo.people import notice_of
from app.http.errors import Forbidden, Invalid, NotFound, Problem, Unauthenticated
from app.http.languages import COOKIE as LANGUAGE_COOKIE
from app.http.languages import LANGUAGES
from app.http.models import PageText
from app.http.principal import Principal
from app.web.render import go, page

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_People = Annotated[Principal, Depends(Policy("cases:read", "reads:own"))]


@router.get("/", dependencies=[Depends(public)])
def start() -> Response:
    """Go to the worklist."""
    return go("/worklist")


@router.get("/login", dependencies=[Depends(public)])
def login_form(request: Request, context: Parts) -> Response:
    """Ask for name and password, or send to single sign-on."""
    return _login_page(request, context)


def _login_page(
    request: Request, context: Context, status: int = 200, problem: Problem | None = None, typed: str = ""
) -> Response:
    """The page that asks for name and password, with the name that was typed; that of a demo names its accounts."""
    settings = context.settings
    sign_on, demo = settings.oidc_issuer is not None, notice_of(settings.home)
    values = {"problem": problem, "sign_on": sign_on, "demo": demo, "languages": LANGUAGES, "typed": typed}
    return page(request, "login.html", None, status, **values)


@router.post("/login", dependencies=[Depends(public)])
async def login(
    request: Request,
    context: Parts,
    name: Annotated[PageText, Form(max_length=100)] = "",
    password: Annotated[PageText, Form(max_length=300)] = "",
) -> Response:
    """Start a session by a password.

    Raises:
        Invalid: a name that no account can have.
        Overloaded: too many are signing in.
    """
    refuse_cross_site(request)
    if "\x00" in name:
        raise Invalid("the name is not acceptable")
    address = "" if request.client is None else request.client.host
    throttle = request.app.state.sign_in_throttle
    attempt = await sign_in(context.database, context.keys.audit, throttle, address, name, password)
    if attempt.token is None:
        return _login_page(request, context, 401, Unauthenticated(attempt.refused), name)
    return signed_in(request, attempt.token, "/account" if attempt.used_up else "/worklist")


def signed_in(request: Request, token: str, path: str = "/worklist") -> Response:
    """Go to a page with a session cookie: the worklist, or where somebody first chooses a password of their own."""
    response = go(path)
    seconds, secure = int(auth.SESSION_LIFETIME.total_seconds()), is_secure(request)
    response.set_cookie(session_cookie(request), token, max_age=seconds, secure=secure, httponly=True, samesite="lax")
    return response


def _provider(context: Parts) -> single_sign_on.Provider:
    """The OpenID provider.

    Raises:
        NotFound: single sign-on is not set up.
    """
    provider = single_sign_on.Provider.of(context.settings)
    if provider is None:
        raise NotFound("single sign-on is not set up here")
    return provider


_SignOn = Annotated[single_sign_on.Provider, Depends(_provider)]


def _oidc_cookie(request: Request) -> str:
    """Name of the cookie that waits for the provider's answer."""
    return "__Host-sr_oidc" if is_secure(request) else "sr_oidc"


def _callback(context: Parts) -> str:
    return f"{(context.settings.public_url or '').rstrip('/')}/login/oidc/callback"


@router.get("/login/oidc", dependencies=[Depends(public)])
async def begin_sign_on(request: Request, context: Parts, provider: _SignOn) -> Response:
    """Send the browser to the OpenID provider."""
    url, kept = await single_sign_on.begin(request, provider, context.keys.cookies, _callback(context))
    response = go(url)
    response.set_cookie(
        _oidc_cookie(request),
        kept,
        max_age=single_sign_on.COOKIE_SECONDS,
        secure=is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return response


async def _subject(
    request: Request,
    context: Parts,
    provider: _SignOn,
    _state: Annotated[PageText, Query(alias="state", max_length=200)] = "",
    _code: Annotated[PageText, Query(alias="code", max_length=4000)] = "",
) -> str | Unauthenticated:
    """Who signed in at the provider, or why nobody did."""
    try:
        return await single_sign_on.finish(
            request, provider, context.keys.cookies, request.cookies.get(_oidc_cookie(request), "")
        )
    except Unauthenticated as exc:
        return exc


@router.get("/login/oidc/callback", dependencies=[Depends(public)])
def finish_sign_on(
    request: Request,
    context: Parts,
    session: Writer,
    subject: Annotated[str | Unauthenticated, Depends(_subject)],
) -> Response:
    """The browser comes back from the OpenID provider.

    Raises:
        Unauthenticated: shown on the page.
    """
    try:
        if isinstance(subject, Unauthenticated):
            raise subject
        response = signed_in(request, single_sign_on.session_of(session, context.keys.audit, subject))
    except (Unauthenticated, Forbidden) as exc:
        response = _login_page(request, context, exc.status, exc)
    response.delete_cookie(_oidc_cookie(request), secure=is_secure(request))
    return response


_Language = Annotated[PageText, Form(max_length=10)]
_YEAR = 365 * 24 * 3600


@router.post("/login/language", dependencies=[Depends(public)])
def speak(request: Request, language: _Language = "") -> Response:
    """Choose the language of the sign-in page, which the browser keeps for those who have chosen none of their own."""
    response = go("/login")
    if language in LANGUAGES:
        secure = is_secure(request)
        response.set_cookie(LANGUAGE_COOKIE, language, max_age=_YEAR, secure=secure, httponly=True, samesite="lax")
    return response


@router.post("/account/language")
def choose_language(principal: _People, session: Writer, language: _Language = "") -> Response:
    """Choose the language of one's own pages; without one they follow the browser."""
    auth.choose_language(session, principal, language if language in LANGUAGES else None)
    return go("/account")


def _account_page(request: Request, context: Context, principal: Principal, status: int, **values: Any) -> Response:
    """The page of one's own password; whoever has none sees nothing else on it, and what happens without one."""
    values |= {"is_demo": notice_of(context.settings.home) is not None, "languages": LANGUAGES}
    return page(request, "account.html", principal, status, **values)


@router.get("/account")
def account_form(request: Request, context: Parts, principal: _People, session: Reader) -> Response:
    """Ask for a new password."""
    first = auth.needs_password(session, principal)
    return _account_page(request, context, principal, 200, faults={}, done=False, first=first)


@router.post("/account")
def choose_password(
    request: Request,
    context: Parts,
    principal: _People,
    session: Writer,
    present: Annotated[PageText, Form(max_length=300)] = "",
    wanted: Annotated[PageText, Form(max_length=300)] = "",
) -> Response:
    """Choose a password."""
    first = auth.needs_password(session, principal)
    try:
        auth.choose_password(session, context.keys.audit, principal, present, wanted)
    except Problem as exc:
        session.rollback()
        field = {Forbidden: "present", Invalid: "wanted"}.get(type(exc), "")
        return _account_page(
            request, context, principal, exc.status, faults={field: exc.detail}, done=False, first=first
        )
    return _account_page(request, context, principal, 200, faults={}, done=True, first=False)


@router.get("/session")
def keep_session(principal: _People) -> Response:
    """Keep the session of somebody who is there but asks for nothing."""
    return Response(status_code=204)


@router.post("/logout")
def logout(request: Request, principal: _People, session: Writer) -> Response:
    """End the session, and the time for corrections."""
    auth.sign_out(session, session_token(request) or "")
    correction_window.signed_out(session, principal.account_id)
    response = go("/login")
    response.headers["Clear-Site-Data"] = '"cache"'  # images of patients, on a computer that others use too
    for name in (COOKIE, SECURE_COOKIE):
        response.delete_cookie(name, secure=name == SECURE_COOKIE)  # a browser ignores the prefix without it
    return response
