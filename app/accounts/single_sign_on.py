"""Single sign-on by OpenID Connect: authorization code with PKCE, by Authlib's client."""

import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.accounts.people import begin_session
from app.audit.chain.keys import AuditKeys, CookieKey
from app.database.tables import Account
from app.http.errors import Forbidden, ServiceUnavailable, Unauthenticated
from app.settings import Settings
from ml.messages import Message

COOKIE_SECONDS = 600
_ALGORITHMS = ("RS256", "ES256", "PS256")
_SUPPORTED = "id_token_signing_alg_values_supported"
_TIMEOUT = 10
_LEEWAY = 60
_SPECIMEN = "specimen"
_NOT_BEGUN_HERE = Message("this sign-in has expired or was started elsewhere; start again")


@dataclass(frozen=True)
class OidcProvider:
    """An OpenID provider."""

    # its identifier, an https URL
    issuer: str
    client_id: str
    client_secret: str

    @classmethod
    def of(cls, settings: Settings) -> "OidcProvider | None":
        """The provider of the settings, None where there is none."""
        if settings.oidc_issuer is None or settings.oidc_client_id is None or settings.oidc_client_secret is None:
            return None
        return cls(settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret.get_secret_value())

    async def client(self) -> Any:
        """Authlib's client with what the provider says about itself."""
        import httpx2
        from authlib.integrations.starlette_client import OAuth

        client = OAuth().register(
            "provider",
            client_id=self.client_id,
            client_secret=self.client_secret,
            server_metadata_url=f"{self.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={"scope": "openid profile", "code_challenge_method": "S256", "timeout": _TIMEOUT},
        )
        try:
            metadata = await client.load_server_metadata()
        except (httpx2.HTTPError, ValueError) as exc:
            raise ServiceUnavailable(
                "the OpenID provider does not answer; try again, or sign in with a password"
            ) from exc
        if metadata.get("issuer") != self.issuer:
            raise Unauthenticated("the issuer of the OpenID provider does not match the settings")
        supported = metadata.get(_SUPPORTED) or ["RS256"]
        metadata[_SUPPORTED] = [name for name in supported if name in _ALGORITHMS]
        return client


def _make_cookie_serializer(keys: Sequence[CookieKey]) -> Any:
    """Make the cookie serializer; it signs with the newest key and accepts recent ones."""
    from itsdangerous import URLSafeTimedSerializer

    accepted = [key.value for key in keys if key.replaced_at is None or time.time() < key.replaced_at + COOKIE_SECONDS]
    return URLSafeTimedSerializer(
        accepted, salt="oidc", signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256}
    )


@dataclass(frozen=True)
class OidcSignIn:
    """A sign-in at the provider."""

    # «issuer subject»
    subject: str
    # when the person proved who they are, if the provider tells it
    authenticated_at: datetime | None
    # that the person wants to sign now
    specimen: uuid.UUID | None


async def begin_oidc_sign_in(
    request: Request, provider: OidcProvider, keys: Sequence[CookieKey], callback: str, specimen: uuid.UUID | None
) -> tuple[str, str]:
    """Start a sign-in; before a signature on a specimen the provider asks even somebody who is signed in there."""
    client = await provider.client()
    request.scope["session"] = {}  # Authlib keeps state, nonce and verifier here
    fresh = {} if specimen is None else {"prompt": "login", "max_age": 0}
    redirect = await client.authorize_redirect(request, callback, **fresh)
    request.session[_SPECIMEN] = None if specimen is None else str(specimen)
    return str(redirect.headers["location"]), str(_make_cookie_serializer(keys).dumps(request.session))


async def finish_oidc_sign_in(
    request: Request, provider: OidcProvider, keys: Sequence[CookieKey], cookie: str
) -> OidcSignIn:
    """Exchange the code of a callback for who signed in."""
    import httpx2
    from authlib.common.errors import AuthlibBaseError
    from itsdangerous import BadData
    from joserfc.errors import JoseError

    try:
        request.scope["session"] = _make_cookie_serializer(keys).loads(cookie, max_age=COOKIE_SECONDS)
    except BadData as exc:
        raise Unauthenticated(_NOT_BEGUN_HERE) from exc
    client = await provider.client()
    try:
        token = await client.authorize_access_token(
            request, claims_options=_list_required_claims(provider), leeway=_LEEWAY
        )
    except httpx2.HTTPError as exc:
        raise ServiceUnavailable("the OpenID provider does not answer; try again") from exc
    except (AuthlibBaseError, JoseError, ValueError) as exc:
        raise Unauthenticated("the OpenID provider's answer is not valid; begin again") from exc
    if "userinfo" not in token:
        raise Unauthenticated("the OpenID provider's answer is not valid; begin again")
    claims, specimen = token["userinfo"], request.session.get(_SPECIMEN)
    at = claims.get("auth_time")
    return OidcSignIn(
        f"{provider.issuer} {claims['sub']}",
        datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) and 0 <= at < 2**37 else None,
        None if specimen is None else uuid.UUID(specimen),
    )


def _list_required_claims(provider: OidcProvider) -> dict[str, dict[str, bool | str]]:
    return {
        "iss": {"essential": True, "value": provider.issuer},
        "aud": {"essential": True, "value": provider.client_id},
        "exp": {"essential": True},
        "sub": {"essential": True},
        "nonce": {"essential": True},
    }


def begin_oidc_session(session: Session, keys: AuditKeys, done: OidcSignIn) -> str:
    """Begin a browser session of the account made for a subject; returns its token."""
    account = session.execute(select(Account).where(Account.oidc_subject == done.subject)).scalar_one_or_none()
    if account is None or account.disabled_at is not None:
        raise Forbidden("you have no account here; ask an administrator for one")
    return begin_session(session, keys, account, done.authenticated_at)
