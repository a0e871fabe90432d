"""HTML routes: sign in, worklist, one case, labelling."""

import uuid
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates

from app.auth import oidc
from app.auth import service as auth
from app.auth.policy import COOKIE, SECURE_COOKIE, Policy, public, refuse_cross_site, session_token
from app.auth.principal import Principal
from app.blindness import hidden_because, note_exposure
from app.context import Parts
from app.database import Reader, Writer
from app.errors import Forbidden, Invalid, NotFound, Problem, Unauthenticated
from app.idempotency import once, request_digest
from app.pages import views
from app.reads.leases import lease_next, list_leases
from app.reads.schemas import LabelIn
from app.reads.service import submit_label

router = APIRouter(include_in_schema=False)
_templates = Jinja2Templates(Path(__file__).parent / "templates")
_templates.env.trim_blocks = _templates.env.lstrip_blocks = True
_SEE_OTHER = 303
_People = Annotated[Principal, Depends(Policy("cases:read", "reads:own"))]


def _page(request: Request, name: str, principal: Principal | None, status: int = 200, **values: Any) -> Response:
    return _templates.TemplateResponse(request, name, {"principal": principal, **values}, status)


def problem_page(request: Request, problem: Problem) -> Response | None:
    """A problem as a page, where a person's browser asked for one outside the API."""
    path = request.url.path
    if path.startswith("/v1") or "text/html" not in request.headers.get("accept", ""):
        return None
    if isinstance(problem, Unauthenticated) and path != "/login":
        return RedirectResponse("/login", _SEE_OTHER)
    return _page(request, "problem.html", None, problem.status, problem=problem)


@router.get("/", dependencies=[Depends(public)])
def start() -> Response:
    """Go to the worklist."""
    return RedirectResponse("/worklist", _SEE_OTHER)


@router.get("/login", dependencies=[Depends(public)])
def login_form(request: Request, context: Parts) -> Response:
    """Ask for name and password, or send to single sign-on."""
    return _page(request, "login.html", None, problem=None, sign_on=context.settings.oidc_issuer is not None)


@router.post("/login", dependencies=[Depends(public)])
def login(
    request: Request,
    context: Parts,
    name: Annotated[str, Form(max_length=100)] = "",
    password: Annotated[str, Form(max_length=300)] = "",
) -> Response:
    """Start a session by a password.

    Raises:
        Invalid: a name that no account can have.
    """
    refuse_cross_site(request)
    if "\x00" in name:
        raise Invalid("the name is not acceptable")
    with context.database.read() as session:
        verified = auth.verified_hash(session, name, password)
    with context.database.write() as session:
        found = auth.sign_in(session, context.secret, name, password, verified)
    if found.token is None:
        sign_on = context.settings.oidc_issuer is not None
        return _page(request, "login.html", None, 401, problem=Unauthenticated(found.refused), sign_on=sign_on)
    return signed_in(request, found.token)


def signed_in(request: Request, token: str) -> Response:
    """Go to the worklist with a session cookie."""
    response = RedirectResponse("/worklist", _SEE_OTHER)
    secure = request.url.scheme == "https"
    seconds = int(auth.SESSION_LIFETIME.total_seconds())
    response.set_cookie(
        SECURE_COOKIE if secure else COOKIE, token, max_age=seconds, secure=secure, httponly=True, samesite="lax"
    )
    return response


def _provider(context: Parts) -> oidc.Provider:
    """The OpenID provider.

    Raises:
        NotFound: single sign-on is not set up.
    """
    provider = oidc.Provider.of(context.settings)
    if provider is None:
        raise NotFound("single sign-on is not set up here")
    return provider


_SignOn = Annotated[oidc.Provider, Depends(_provider)]
_OIDC_COOKIE = "sr_oidc"


def _callback(context: Parts) -> str:
    return f"{(context.settings.public_url or '').rstrip('/')}/login/oidc/callback"


@router.get("/login/oidc", dependencies=[Depends(public)])
def begin_sign_on(request: Request, context: Parts, provider: _SignOn) -> Response:
    """Send the browser to the OpenID provider."""
    url, kept = oidc.begin(provider, context.secret, _callback(context))
    response = RedirectResponse(url, _SEE_OTHER)
    secure = request.url.scheme == "https"
    response.set_cookie(
        _OIDC_COOKIE,
        kept,
        max_age=oidc.COOKIE_SECONDS,
        secure=secure,
        httponly=True,
        samesite="lax",
        path="/login/oidc",
    )
    return response


@router.get("/login/oidc/callback", dependencies=[Depends(public)])
def finish_sign_on(
    request: Request,
    context: Parts,
    provider: _SignOn,
    session: Writer,
    state: Annotated[str, Query(max_length=200)] = "",
    code: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """The browser comes back from the OpenID provider."""
    try:
        kept = request.cookies.get(_OIDC_COOKIE, "")
        subject = oidc.finish(provider, context.secret, _callback(context), kept, state, code)
        response = signed_in(request, oidc.session_of(session, context.secret, subject))
    except (Unauthenticated, Forbidden) as exc:
        response = _page(request, "login.html", None, exc.status, problem=exc, sign_on=True)
    response.delete_cookie(_OIDC_COOKIE, path="/login/oidc")
    return response


@router.get("/account")
def account_form(request: Request, principal: _People) -> Response:
    """Ask for a new password."""
    return _page(request, "account.html", principal, problem=None, done=False)


@router.post("/account")
def choose_password(
    request: Request,
    context: Parts,
    principal: _People,
    session: Writer,
    present: Annotated[str, Form(max_length=300)] = "",
    wanted: Annotated[str, Form(max_length=300)] = "",
) -> Response:
    """Choose a password."""
    try:
        auth.choose_password(session, context.secret, principal, present, wanted)
    except Problem as exc:
        session.rollback()
        return _page(request, "account.html", principal, exc.status, problem=exc, done=False)
    return _page(request, "account.html", principal, problem=None, done=True)


@router.post("/logout")
def logout(request: Request, principal: _People, session: Writer) -> Response:
    """End the session."""
    auth.sign_out(session, session_token(request) or "")
    response = RedirectResponse("/login", _SEE_OTHER)
    for name in (COOKIE, SECURE_COOKIE):
        response.delete_cookie(name)
    return response


@router.get("/worklist")
def worklist(request: Request, context: Parts, principal: _People, session: Reader) -> Response:
    """Cases by need; to an annotator, in an order of its own that tells nothing."""
    if principal.blind:
        return _page(request, "to_read.html", principal, view=views.blind_worklist(session, principal))
    return _page(request, "worklist.html", principal, items=views.worklist(session))


@router.get("/cases/{case_id}")
def show_case(case_id: uuid.UUID, request: Request, context: Parts, principal: _People, session: Reader) -> Response:
    """A case: to read, or in full once that is allowed."""
    blind = views.case_to_read(session, principal, case_id)
    if blind is not None:
        return _page(request, "read.html", principal, view=blind)
    if hidden_because(session, principal, case_id) is not None:
        return _page(request, "committed.html", principal, number=views.case_number(case_id), case_id=case_id)
    shown = views.case_view(session, case_id)
    note_exposure(context.database, session, principal, case_id)
    return _page(request, "case.html", principal, view=shown)


@router.post("/reads/next")
def read_next(
    context: Parts, principal: Annotated[Principal, Depends(Policy("reads:own"))], session: Writer
) -> Response:
    """Go on with the read that is held, or lease the next one."""
    held = list_leases(session, principal)
    read = held[0] if held else lease_next(session, context, principal)
    return RedirectResponse("/worklist" if read is None else f"/cases/{read.case_id}", _SEE_OTHER)


@router.post("/cases/{case_id}/label")
def label_case(
    case_id: uuid.UUID,
    context: Parts,
    principal: Annotated[Principal, Depends(Policy("reads:own"))],
    session: Writer,
    label: Annotated[str, Form(max_length=200)] = "",
    note: Annotated[str, Form(max_length=2000)] = "",
    form_key: Annotated[str, Form(max_length=64)] = "",
) -> Response:
    """Commit a label, then show the case in full; sending the form twice stores one label.

    Raises:
        Invalid: no class was chosen.
    """
    if not label or not form_key or "\x00" in label + note + form_key:
        raise Invalid("choose a class")
    body = LabelIn(label=label, note=note or None)
    digest = request_digest("page label", case_id, body.model_dump())
    once(session, principal, form_key, digest, lambda: submit_label(session, context, principal, case_id, body))
    return RedirectResponse(f"/cases/{case_id}", _SEE_OTHER)
