"""Passwords, lock-out, sessions, names, and single sign-on."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc.jwk import RSAKey
from pydantic import SecretStr
from sqlalchemy import select

from app.accounts import people as auth
from app.accounts.passwords import hash_password, verify_password
from app.database.tables import Account, BrowserSession, utc_now
from app.demo import people as demo
from app.demo.people import write_notice
from app.http.errors import Conflict
from app.settings import Settings
from tests.support.openid import CLIENT, SECRET, OpenIdProvider
from tests.support.service import Service

GOOD = "a long enough password"


def log_in(service: Service, name: str, password: str) -> Any:
    service.client.cookies.clear()
    return service.client.post("/login", data={"name": name, "password": password}, follow_redirects=False)


def sign_in(service: Service, name: str, password: str) -> tuple[int, dict[str, str]]:
    answer = log_in(service, name, password)
    service.client.cookies.clear()
    return answer.status_code, {"Cookie": "; ".join(f"{key}={value}" for key, value in answer.cookies.items())}


def first_password(service: Service, name: str, wanted: str = GOOD) -> dict[str, str]:
    status, cookie = sign_in(service, name, service.one_time_password(name))
    assert status == 303
    assert service.client.post("/account", data={"wanted": wanted}, headers=cookie).status_code == 200
    return cookie


def test_a_chosen_password_signs_in_until_it_is_changed(service: Service) -> None:
    cookie = first_password(service, "anna")
    assert sign_in(service, "anna", GOOD)[0] == 303
    other = sign_in(service, "anna", GOOD)[1]
    wrong = service.client.post("/account", data={"present": "x", "wanted": "quite another one"}, headers=cookie)
    assert wrong.status_code == 403
    data = {"present": GOOD, "wanted": "quite another one"}
    assert service.client.post("/account", data=data, headers=cookie).status_code == 200
    assert sign_in(service, "anna", GOOD)[0] == 401
    assert sign_in(service, "anna", "quite another one")[0] == 303
    gone = service.client.get("/worklist", headers=other | {"Accept": "text/html"}, follow_redirects=False)
    assert gone.status_code == 303  # every other browser was signed out
    assert service.client.get("/worklist", headers=cookie).status_code == 200


def test_a_one_time_password_asks_for_ones_own_before_anything_else(service: Service) -> None:
    assert log_in(service, "anna", service.one_time_password("anna")).headers["location"] == "/account"
    page = service.client.get("/account").text
    assert "Choose your own password" in page
    assert "you need another one-time password" in page
    assert "secondread user password NAME" in page
    assert "<nav" not in page
    assert 'name="present"' not in page
    chosen = service.client.post("/account", data={"wanted": GOOD}).text
    assert "Continue" in chosen
    assert "<nav" in chosen
    assert log_in(service, "anna", GOOD).headers["location"] == "/today"


def test_whoever_left_without_choosing_a_password_is_told_what_to_do(service: Service) -> None:
    once = service.one_time_password("anna")
    assert sign_in(service, "anna", once)[0] == 303
    refused = service.client.post("/login", data={"name": "anna", "password": once})
    assert refused.status_code == 401
    assert "If your one-time password is used up" in refused.text
    assert "secondread user password NAME" in refused.text
    assert "secondread demo" not in refused.text
    write_notice(service.context.settings.home, real=True)
    refused = service.client.post("/login", data={"name": "anna", "password": once})
    assert "run <code>secondread demo</code>" in refused.text
    for words in ("annotator-1", "CC BY 4.0", "Acevedo", "WBCAtt", "MIT"):
        assert words in refused.text


@pytest.mark.parametrize("wanted", ["", "too short", "aaaaaaaaaaaaaaaaaaaa", "x" * 201])
def test_easy_passwords_are_refused_in_words(service: Service, wanted: str) -> None:
    cookie = sign_in(service, "anna", service.one_time_password("anna"))[1]
    answer = service.client.post("/account", data={"wanted": wanted}, headers=cookie)
    assert answer.status_code == 422
    assert "password must have" in answer.text
    assert service.one(select(Account.password_hash).where(Account.name == "anna")) is None


def test_an_unknown_name_and_a_wrong_password_are_told_alike(service: Service) -> None:
    first_password(service, "anna")
    texts = []
    for name in ("anna", "nobody"):
        answer = log_in(service, name, "wrong")
        typed = f'value="{name}"'  # the name stays in its field
        assert answer.text.count(typed) == 1
        texts.append((answer.status_code, answer.text.replace(typed, "")))
    assert texts[0] == texts[1]


def test_disabling_an_account_ends_everything_at_once(service: Service) -> None:
    cookie = first_password(service, "anna")
    service.set_disabled("anna", disabled=True)
    assert service.get("anna", "/v1/reads").status_code == 401
    assert service.client.get("/worklist", headers=cookie, follow_redirects=False).status_code == 401
    assert sign_in(service, "anna", GOOD)[0] == 401
    service.set_disabled("anna", disabled=False)
    assert service.get("anna", "/v1/reads").status_code == 200
    assert service.client.get("/worklist", headers=cookie, follow_redirects=False).status_code == 401
    assert sign_in(service, "anna", GOOD)[0] == 303


def test_a_new_one_time_password_ends_what_somebody_may_have_taken_over(service: Service) -> None:
    cookie = first_password(service, "anna")
    once = service.one_time_password("anna")
    assert service.client.get("/worklist", headers=cookie, follow_redirects=False).status_code == 401
    assert sign_in(service, "anna", GOOD)[0] == 401
    status, cookie = sign_in(service, "anna", once)
    assert status == 303
    assert service.client.post("/account", data={"wanted": GOOD + " anew"}, headers=cookie).status_code == 200


def test_signing_out_clears_images_of_patients_from_the_browser(service: Service) -> None:
    cookie = first_password(service, "anna")
    answer = service.client.post("/logout", headers=cookie, follow_redirects=False)
    assert (answer.status_code, answer.headers["clear-site-data"]) == (303, '"cache"')
    case = service.add_case()["id"]
    kept = service.get("viewer", f"/v1/cases/{case}/image").headers["cache-control"]
    assert kept == "private, max-age=1800, immutable"


def test_sessions_end_when_idle_and_when_old(service: Service) -> None:
    cookie = first_password(service, "anna")
    for column, age in (("seen_at", auth.SESSION_IDLE), ("created_at", auth.SESSION_LIFETIME)):
        assert service.client.get("/worklist", headers=cookie).status_code == 200
        with service.context.database.write() as session:
            kept = session.execute(select(BrowserSession)).scalars().all()[-1]
            before = getattr(kept, column)
            setattr(kept, column, utc_now() - age - timedelta(seconds=5))
        assert service.client.get("/worklist", headers=cookie, follow_redirects=False).status_code == 401
        with service.context.database.write() as session:
            setattr(session.get_one(BrowserSession, kept.id), column, before)


def test_a_person_repeats_the_password_to_promote_and_a_key_does_not(service: Service) -> None:
    alias = service.document("/v1/aliases")["items"][0]
    cookie = first_password(service, "admin")

    def put(headers: dict[str, str], **more: Any) -> int:
        body = {"release": alias["release"], "reason": "test", **more}
        revision = service.document("/v1/aliases")["items"][0]["revision"]
        wanted = headers | {"If-Match": f'"{revision}"'}
        return int(service.client.put("/v1/aliases/champion", json=body, headers=wanted).status_code)

    assert put(cookie) == 403
    assert put(cookie, password="wrong password 123") == 403
    assert put(cookie, password=GOOD) == 200
    assert put({"Authorization": f"Bearer {service.keys['admin']}"}) == 200


def test_hashes_are_argon2id_with_a_salt() -> None:
    first, two = hash_password(GOOD), hash_password(GOOD)
    assert first.startswith("$argon2id$")
    assert first != two
    assert verify_password(first, GOOD)
    assert not verify_password(first, GOOD + "x")
    assert not verify_password(None, GOOD)
    assert not verify_password("no hash at all", GOOD)


@pytest.mark.parametrize("typed", [" bob", "bob ", "\tbob\n"])
def test_a_name_is_the_same_however_it_was_typed(service: Service, typed: str) -> None:
    secret = service.context.keys.audit
    with service.context.database.write() as session:
        account = auth.add_account(session, secret, typed, "annotator")
        password = auth.issue_one_time_password(session, secret, typed)
    assert account.name == "bob"
    assert sign_in(service, typed, password)[0] == 303
    with service.context.database.write() as session:
        auth.add_account(session, secret, "Zo\u0065\u0308", "annotator")
        for taken in ("bob", "Zo\u00eb"):  # composed and decomposed
            with pytest.raises(Conflict):
                auth.add_account(session, secret, taken, "viewer")


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 101])
def test_an_unusable_name_is_refused(service: Service, name: str) -> None:
    with service.context.database.write() as session, pytest.raises(ValueError, match="printable"):
        auth.add_account(session, service.context.keys.audit, name, "viewer")


def test_the_demo_gives_no_new_password_to_whoever_has_chosen_one(service: Service) -> None:
    context = service.context
    with context.database.write() as session:
        demo.ensure_accounts(session, context)
    assert sorted(demo.one_time_passwords(context)) == sorted(demo.PEOPLE)
    first_password(service, "annotator-1")
    again = demo.one_time_passwords(context)
    assert {name for name, password in again.items() if password is None} == {"annotator-1"}
    assert sign_in(service, "annotator-1", GOOD)[0] == 303
    assert sign_in(service, "annotator-2", str(again["annotator-2"]))[0] == 303


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


def go(service: Service, provider: OpenIdProvider, path: str = "/login/oidc", **changed: str) -> Any:
    """Begin here, sign in there, come back."""
    service.client.cookies.clear()
    begun = service.client.get(path, follow_redirects=False)
    assert begun.status_code == 303, begun.text
    back = urlsplit(httpx2.get(begun.headers["location"], follow_redirects=False).headers["location"])
    assert f"{back.scheme}://{back.netloc}{back.path}" == "http://testserver/login/oidc/callback"
    query = {name: values[0] for name, values in parse_qs(back.query).items()} | changed
    return service.client.get("/login/oidc/callback", params=query, follow_redirects=False)


def test_a_linked_person_signs_in_and_another_is_told_why_not(service: Service, provider: OpenIdProvider) -> None:
    assert "Single sign-on" in service.client.get("/login").text
    answer = go(service, provider)
    assert (answer.status_code, answer.headers["location"]) == (303, "/today")
    assert "<bdi>anna</bdi> · annotator" in service.client.get("/worklist").text
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
def test_an_answer_that_is_wrong_is_refused(service: Service, provider: OpenIdProvider, spoil: dict[str, Any]) -> None:
    provider.spoil = spoil
    if "discovered" in spoil:
        assert service.client.get("/login/oidc", follow_redirects=False).status_code == 401
        return
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
