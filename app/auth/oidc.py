"""Single sign-on by OpenID Connect: authorization code with PKCE, checked to the letter.

Between the redirect and the callback the browser keeps state, nonce and verifier in a signed cookie of ten minutes;
the server keeps nothing. Who may sign in is decided here: an account must have been made for the subject.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.auth.service import begin_session
from app.platform.errors import Forbidden, Unauthenticated, Unavailable
from app.settings import Settings
from app.tables import Account

COOKIE_SECONDS = 600
_ALGORITHMS = ["RS256", "ES256", "PS256"]
_TIMEOUT = 10
_LEEWAY = 60


@dataclass(frozen=True)
class Provider:
    """An OpenID provider.

    Attributes:
        issuer: its identifier, an https URL.
        client_id: of this service.
        client_secret: of this service.
    """

    issuer: str
    client_id: str
    client_secret: str

    @classmethod
    def of(cls, settings: Settings) -> "Provider | None":
        """The provider of the settings, None where there is none."""
        if settings.oidc_issuer is None or settings.oidc_client_id is None or settings.oidc_client_secret is None:
            return None
        return cls(settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret.get_secret_value())

    def metadata(self) -> dict[str, Any]:
        """What the provider says about itself.

        Raises:
            Unavailable: it does not answer.
            Unauthenticated: it calls itself by another name.
        """
        document = _get(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
        if document.get("issuer") != self.issuer:
            raise Unauthenticated("the OpenID provider names another issuer than the settings do")
        return document


def _get(url: str) -> dict[str, Any]:
    import requests

    try:
        answer = requests.get(url, timeout=_TIMEOUT, allow_redirects=False)
        answer.raise_for_status()
        document: dict[str, Any] = answer.json()
    except (requests.RequestException, ValueError) as exc:
        raise Unavailable("the OpenID provider does not answer; try again, or sign in with a password") from exc
    return document


def begin(provider: Provider, secret: bytes, callback: str) -> tuple[str, str]:
    """Start a sign-in.

    Args:
        provider: whom to ask.
        secret: of the service, signs the cookie.
        callback: URL that the provider sends the browser back to.

    Returns:
        URL to send the browser to, and the cookie's value.
    """
    from authlib.integrations.requests_client import OAuth2Session

    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    client = OAuth2Session(
        provider.client_id, redirect_uri=callback, scope="openid profile", code_challenge_method="S256"
    )
    url, _ = client.create_authorization_url(
        provider.metadata()["authorization_endpoint"], state=state, nonce=nonce, code_verifier=verifier
    )
    kept = {"state": state, "nonce": nonce, "verifier": verifier, "until": int(time.time()) + COOKIE_SECONDS}
    return str(url), _sign(secret, kept)


def _sign(secret: bytes, kept: dict[str, Any]) -> str:
    body = base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()
    return f"{body}.{hmac.new(secret, b'oidc:' + body.encode(), hashlib.sha256).hexdigest()}"


def _kept(secret: bytes, cookie: str) -> dict[str, Any]:
    """What the cookie keeps.

    Raises:
        Unauthenticated: it was not signed here, or is too old.
    """
    body, _, mac = cookie.partition(".")
    expected = hmac.new(secret, b"oidc:" + body.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(mac, expected):
        raise Unauthenticated("this sign-in was not begun here; begin again")
    kept: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body))
    if kept["until"] < time.time():
        raise Unauthenticated("the sign-in took too long; begin again")
    return kept


def finish(provider: Provider, secret: bytes, callback: str, cookie: str, state: str, code: str) -> str:
    """Exchange the code for the subject that signed in.

    Returns:
        «issuer subject».

    Raises:
        Unauthenticated: anything about the answer is not as it must be.
        Unavailable: the provider does not answer.
    """
    import requests
    from authlib.common.errors import AuthlibBaseError
    from authlib.integrations.requests_client import OAuth2Session

    kept, metadata = _kept(secret, cookie), provider.metadata()
    if not hmac.compare_digest(kept["state"].encode(), state.encode()):
        raise Unauthenticated("this sign-in was not begun here; begin again")
    client = OAuth2Session(provider.client_id, provider.client_secret, redirect_uri=callback)
    try:
        token = client.fetch_token(
            metadata["token_endpoint"], code=code, code_verifier=kept["verifier"], timeout=_TIMEOUT
        )
    except requests.RequestException as exc:
        raise Unavailable("the OpenID provider does not answer; try again") from exc
    except AuthlibBaseError as exc:
        raise Unauthenticated("the OpenID provider refused the sign-in; begin again") from exc
    claims = _claims(provider, metadata, str(token.get("id_token", "")), kept["nonce"])
    return f"{provider.issuer} {claims['sub']}"


def _claims(provider: Provider, metadata: dict[str, Any], id_token: str, nonce: str) -> dict[str, Any]:
    """Claims of an id token whose signature, issuer, audience, times and nonce hold.

    Raises:
        Unauthenticated: one of them does not.
    """
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    keys = KeySet.import_key_set(_get(metadata["jwks_uri"]))  # type: ignore[arg-type]
    wanted = jwt.JWTClaimsRegistry(
        leeway=_LEEWAY,
        iss={"essential": True, "value": provider.issuer},
        aud={"essential": True, "value": provider.client_id},
        exp={"essential": True},
        sub={"essential": True},
        nonce={"essential": True, "value": nonce},
    )
    try:
        token = jwt.decode(id_token, keys, algorithms=_ALGORITHMS)
        wanted.validate(token.claims)
    except (JoseError, ValueError) as exc:
        raise Unauthenticated("the OpenID provider's answer is not valid; begin again") from exc
    audience = token.claims["aud"]
    if isinstance(audience, list) and len(audience) > 1 and token.claims.get("azp") != provider.client_id:
        raise Unauthenticated("the OpenID provider's answer is meant for somebody else")
    return dict(token.claims)


def session_of(session: Session, secret: bytes, subject: str) -> str:
    """Begin a browser session of the account made for a subject; returns its token.

    Raises:
        Forbidden: there is none, or it is disabled.
    """
    account = session.execute(select(Account).where(Account.oidc_subject == subject)).scalar_one_or_none()
    if account is None or account.disabled_at is not None:
        raise Forbidden("you are known to the provider but have no account here; ask an administrator for one")
    return begin_session(session, secret, account)
