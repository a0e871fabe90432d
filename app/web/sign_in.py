"""HTML routes: sign in, sign out, password."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request, Response

from app.accounts import service as accounts
from app.accounts.service import GuardedRoute, RequireScope, SignInThrottle
from app.cases.service import close_windows_of_account
from app.context import AppContext, ServiceContext
from app.database.engine import WriteSession
from app.demo.people import read_notice
from app.http.errors import Forbidden, InvalidValue, NotFound, Problem, RateLimited, Unauthenticated
from app.http.languages import COOKIE as LANGUAGE_COOKIE
from app.http.languages import LANGUAGES
from app.http.models import PageText
from app.http.principal import COOKIE, SECURE_COOKIE, Principal, is_secure, session_cookie, session_token
from app.invitations.service import is_known_link, open_invitation, use_invitation
from app.web.forms import back_to
from app.web.page import Page, PeopleForm, PeoplePage
from app.web.render import redirect_to, render_page

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_People = Annotated[Principal, Depends(RequireScope("cases:read", "reads:own"))]


@router.get("/", dependencies=[Depends(accounts.allow_everyone)])
def redirect_to_today() -> Response:
    """Go to the first page of a day."""
    return redirect_to("/today")


@router.get("/login", dependencies=[Depends(accounts.allow_everyone)])
def login_form(request: Request, context: AppContext) -> Response:
    """Ask for name and password, or send to single sign-on."""
    with context.database.read() as session:
        return _login_page(request, context, new=not accounts.has_accounts(session))


def _login_page(
    request: Request,
    context: ServiceContext,
    status: int = 200,
    problem: Problem | None = None,
    typed: str = "",
    *,
    new: bool = False,
) -> Response:
    settings = context.settings
    sign_on, demo = settings.oidc_issuer is not None, read_notice(settings.home)
    values = {"problem": problem, "sign_on": sign_on, "demo": demo, "languages": LANGUAGES, "typed": typed, "new": new}
    return render_page(request, "login.html", None, status, **values)


@router.post("/login", dependencies=[Depends(accounts.allow_everyone)])
async def log_in(
    request: Request,
    context: AppContext,
    name: Annotated[PageText, Form(max_length=100)] = "",
    password: Annotated[PageText, Form(max_length=300)] = "",
) -> Response:
    """Start a session by a password."""
    accounts.refuse_cross_site(request)
    if "\x00" in name:
        raise InvalidValue("the name is invalid")
    address = "" if request.client is None else request.client.host
    throttle = request.app.state.sign_in_throttle
    attempt = await accounts.sign_in(context.database, context.keys.audit, throttle, address, name, password)
    if attempt.token is None:
        return _login_page(request, context, 401, Unauthenticated(attempt.refused), name)
    return signed_in(request, attempt.token, "/account" if attempt.used_up else "/today")


def signed_in(request: Request, token: str, path: str = "/today") -> Response:
    """Go to a page with a session cookie: the first of a day, or the one for a first password."""
    response = redirect_to(path)
    seconds, secure = int(accounts.SESSION_LIFETIME.total_seconds()), is_secure(request)
    response.set_cookie(session_cookie(request), token, max_age=seconds, secure=secure, httponly=True, samesite="lax")
    return response


#: Name under which unknown links of an address are counted, like wrong passwords; no account has such a name.
_LINKS = "\x00 links"


def _refuse_guesses(request: Request) -> tuple[SignInThrottle, str]:
    """Refuse an address that has tried many unknown links; gives what counts them, and the address."""
    throttle, address = request.app.state.sign_in_throttle, "" if request.client is None else request.client.host
    if throttle.must_wait(address, _LINKS):
        raise RateLimited("too many links that do not work; wait a few minutes")
    return throttle, address


def _refused_link(request: Request, context: ServiceContext, token: str) -> Response:
    throttle, address = _refuse_guesses(request)
    with context.database.read() as session:
        if not is_known_link(session, token):  # one that is used or expired is no guess
            throttle.failed(address, _LINKS)
    return render_page(request, "invitation.html", None, 404, view=None)


@router.get("/invitations/{token}", dependencies=[Depends(accounts.allow_everyone)])
def show_invitation(token: str, request: Request, context: AppContext) -> Response:
    """What an invitation is for, with the button that uses its link up; nothing that only looks at links does."""
    _refuse_guesses(request)
    with context.database.read() as session:
        view = open_invitation(session, token)
    if view is None:
        return _refused_link(request, context, token)
    return render_page(request, "invitation.html", None, view=view)


@router.post("/invitations/{token}", dependencies=[Depends(accounts.allow_everyone)])
def accept_invitation(token: str, request: Request, context: AppContext) -> Response:
    """Sign in by the link of an invitation, once."""
    accounts.refuse_cross_site(request)
    throttle, address = _refuse_guesses(request)
    begun = use_invitation(context.database, context.keys.audit, token)
    if begun is None:
        return _refused_link(request, context, token)
    throttle.succeeded(address, _LINKS)
    return signed_in(request, begun)


def _require_provider(context: AppContext) -> accounts.OidcProvider:
    provider = accounts.OidcProvider.of(context.settings)
    if provider is None:
        raise NotFound("single sign-on is not set up here")
    return provider


_SignOn = Annotated[accounts.OidcProvider, Depends(_require_provider)]


def _oidc_cookie(request: Request) -> str:
    return "__Host-sr_oidc" if is_secure(request) else "sr_oidc"


@router.get("/login/oidc", dependencies=[Depends(accounts.allow_everyone)])
async def begin_sign_on(
    request: Request,
    context: AppContext,
    provider: _SignOn,
    specimen: Annotated[uuid.UUID | None, Query()] = None,
) -> Response:
    """Send the browser to the OpenID provider; with a specimen for a fresh sign-in, after which it can be signed."""
    url, kept = await accounts.begin_oidc_sign_in(
        request,
        provider,
        context.keys.cookies,
        f"{(context.settings.public_url or '').rstrip('/')}/login/oidc/callback",
        specimen,
    )
    response = redirect_to(url)
    response.set_cookie(
        _oidc_cookie(request),
        kept,
        max_age=accounts.COOKIE_SECONDS,
        secure=is_secure(request),
        httponly=True,
        samesite="lax",
    )
    return response


async def _verify_subject(
    request: Request,
    context: AppContext,
    provider: _SignOn,
    _state: Annotated[PageText, Query(alias="state", max_length=200)] = "",
    _code: Annotated[PageText, Query(alias="code", max_length=4000)] = "",
) -> accounts.OidcSignIn | Unauthenticated:
    try:
        return await accounts.finish_oidc_sign_in(
            request, provider, context.keys.cookies, request.cookies.get(_oidc_cookie(request), "")
        )
    except Unauthenticated as exc:
        return exc


@router.get("/login/oidc/callback", dependencies=[Depends(accounts.allow_everyone)])
def finish_sign_on(
    request: Request,
    context: AppContext,
    session: WriteSession,
    done: Annotated[accounts.OidcSignIn | Unauthenticated, Depends(_verify_subject)],
) -> Response:
    """The browser comes back from the OpenID provider."""
    try:
        if isinstance(done, Unauthenticated):
            raise done
        token = accounts.begin_oidc_session(session, context.keys.audit, done)
        response = signed_in(request, token, "/today" if done.specimen is None else f"/specimens/{done.specimen}")
    except (Unauthenticated, Forbidden) as exc:
        response = _login_page(request, context, exc.status, exc)
    response.delete_cookie(_oidc_cookie(request), secure=is_secure(request))
    return response


_Language = Annotated[PageText, Form(max_length=10)]
_YEAR = 365 * 24 * 3600


@router.post("/login/language", dependencies=[Depends(accounts.allow_everyone)])
def choose_sign_in_language(request: Request, language: _Language = "") -> Response:
    """Choose the language of the sign-in page, which the browser keeps for those who have chosen none of their own."""
    response = redirect_to("/login")
    if language in LANGUAGES:
        secure = is_secure(request)
        response.set_cookie(LANGUAGE_COOKIE, language, max_age=_YEAR, secure=secure, httponly=True, samesite="lax")
    return response


@router.post("/account/language")
def choose_language(page: PeopleForm, language: _Language = "") -> Response:
    """Choose the language of one's own pages; without one they follow the browser."""
    accounts.choose_language(page.session, page.principal, language if language in LANGUAGES else None)
    return redirect_to("/account")


def _account_page(page: Page, *, done: bool, first: bool) -> Response:
    is_demo = read_notice(page.context.settings.home) is not None
    return page.render("account.html", is_demo=is_demo, languages=LANGUAGES, done=done, first=first)


@router.get("/account")
def account_form(page: PeoplePage) -> Response:
    """Ask for a new password."""
    first = accounts.needs_password(page.session, page.principal)
    return _account_page(page, done=False, first=first)


@router.post("/account")
@back_to(account_form, {"password": "present", "": "wanted"})
def choose_password(
    page: PeopleForm,
    present: Annotated[PageText, Form(max_length=300)] = "",
    wanted: Annotated[PageText, Form(max_length=300)] = "",
) -> Response:
    """Choose a password."""
    accounts.choose_password(page.session, page.context.keys.audit, page.principal, present, wanted)
    return _account_page(page, done=True, first=False)


@router.get("/session")
def keep_session(principal: _People) -> Response:
    """Keep the session of somebody who is there but asks for nothing."""
    return Response(status_code=204)


@router.post("/logout")
def log_out(page: PeopleForm) -> Response:
    """End the session, and the time for corrections."""
    accounts.sign_out(page.session, session_token(page.request) or "")
    close_windows_of_account(page.session, page.principal.account_id)
    response = redirect_to("/login")
    response.headers["Clear-Site-Data"] = '"cache"'  # images of patients, on a computer that others use too
    for name in (COOKIE, SECURE_COOKIE):
        response.delete_cookie(name, secure=name == SECURE_COOKIE)  # a browser ignores the prefix without it
    return response
