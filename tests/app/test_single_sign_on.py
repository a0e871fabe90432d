"""Single sign-on against a real OpenID provider, and everything that a forged answer could try."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc.jwk import RSAKey
from pydantic import SecretStr

from app.accounts import people as auth
from app.settings import Settings
from tests.support.openid import CLIENT, SECRET, OpenIdProvider
from tests.support.service import Service


@pytest.fixture
def provider(service: Service) -> Iterator[OpenIdProvider]:
    """A provider that the service trusts; anna's account is linked to its person."""
    made = OpenIdProvider()
    settings = service.context.settings
    settings.oidc_issuer, settings.oidc_client_id = made.issuer, CLIENT
    settings.oidc_client_secret, settings.public_url = SecretStr(SECRET), "http://testserver"
    with service.context.database.write() as session:
        auth.link_subject(session, service.context.keys.audit, "anna", f"{made.issuer} person-1")
    yield made
    made.stop()


def go(service: Service, provider: OpenIdProvider, **changed: str) -> Any:
    """Begin here, sign in there, come back."""
    service.client.cookies.clear()
    begun = service.client.get("/login/oidc", follow_redirects=False)
    assert begun.status_code == 303, begun.text
    there = httpx2.get(begun.headers["location"], follow_redirects=False)
    back = urlsplit(there.headers["location"])
    assert f"{back.scheme}://{back.netloc}{back.path}" == "http://testserver/login/oidc/callback"
    query = {name: values[0] for name, values in parse_qs(back.query).items()} | changed
    return service.client.get("/login/oidc/callback", params=query, follow_redirects=False)


def test_a_linked_person_signs_in(service: Service, provider: OpenIdProvider) -> None:
    assert "Single sign-on" in service.client.get("/login").text
    answer = go(service, provider)
    assert (answer.status_code, answer.headers["location"]) == (303, "/worklist")
    page = service.client.get("/worklist")
    assert "anna · annotator" in page.text


def test_a_person_without_an_account_is_told_so(service: Service, provider: OpenIdProvider) -> None:
    provider.subject = "somebody else"
    answer = go(service, provider)
    assert (answer.status_code, "no account here" in answer.text) == (403, True)
    assert service.client.get("/worklist", follow_redirects=False).status_code == 401


@pytest.mark.parametrize(
    "spoil",
    [
        {"nonce": "another"}, {"aud": "another"}, {"iss": "https://elsewhere.example"}, {"exp": 1}, {"sub": None},
        {"aud": [CLIENT, "another"]}, {"signer": RSAKey.generate_key(2048)}, {"discovered": "https://elsewhere.example"},
    ],
)  # fmt: skip
def test_an_answer_that_is_not_as_it_must_be_is_refused(
    service: Service, provider: OpenIdProvider, spoil: dict[str, Any]
) -> None:
    if "discovered" in spoil:
        provider.spoil = spoil
        assert service.client.get("/login/oidc", follow_redirects=False).status_code == 401
        return
    provider.spoil = spoil
    assert go(service, provider).status_code == 401
    service.client.cookies.clear()
    assert service.client.get("/worklist", follow_redirects=False).status_code == 401


def test_state_code_and_cookie_must_be_ones_own(service: Service, provider: OpenIdProvider) -> None:
    assert go(service, provider, state="another").status_code == 401
    assert go(service, provider, code="another").status_code == 401
    service.client.cookies.clear()
    begun = service.client.get("/login/oidc", follow_redirects=False)
    there = httpx2.get(begun.headers["location"], follow_redirects=False).headers["location"]
    service.client.cookies.clear()  # the link was sent to somebody else's browser
    assert service.client.get(there, follow_redirects=False).status_code == 401
    forged = {"Cookie": "sr_oidc=eyJzdGF0ZSI6ICJ4In0=.00"}
    assert service.client.get(there, headers=forged, follow_redirects=False).status_code == 401


def test_a_code_works_once(service: Service, provider: OpenIdProvider) -> None:
    begun = service.client.get("/login/oidc", follow_redirects=False)
    there = httpx2.get(begun.headers["location"], follow_redirects=False).headers["location"]
    cookie = {"Cookie": f"sr_oidc={begun.cookies['sr_oidc']}"}
    assert service.client.get(there, headers=cookie, follow_redirects=False).status_code == 303
    service.client.cookies.clear()
    assert service.client.get(there, headers=cookie, follow_redirects=False).status_code == 401


def test_a_provider_that_is_away_is_a_reason_to_try_again(service: Service, provider: OpenIdProvider) -> None:
    provider.stop()
    answer = service.client.get("/login/oidc", follow_redirects=False)
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    provider.server.server_close()


def test_without_a_provider_there_is_no_single_sign_on(service: Service) -> None:
    assert service.client.get("/login/oidc").status_code == 404
    assert "Single sign-on" not in service.client.get("/login").text


@pytest.mark.parametrize(
    "settings",
    [
        {"oidc_issuer": "https://a.example"},
        {
            "oidc_issuer": "http://a.example",
            "oidc_client_id": "x",
            "oidc_client_secret": "x",
            "public_url": "https://b",
        },
    ],
)
def test_half_a_provider_stops_the_start_up(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"OIDC|https"):
        Settings(**settings)
