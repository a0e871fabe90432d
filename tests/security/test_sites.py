"""Cookies, origins and HSTS, as browsers reach the service: by TLS or without, past a trusted proxy or another one."""

import http.client
import urllib.parse
from pathlib import Path

import pytest

from app.accounts import people as auth
from app.settings import Settings
from tests.support.process import Installation
from tests.support.service import Service

PUBLIC = "https://reads.example.org"


def one_time(service: Service, name: str = "anna") -> str:
    with service.context.database.write() as session:
        return auth.issue_one_time_password(session, service.context.keys.audit, name)


def sign_in(service: Service, **headers: str) -> tuple[int, str]:
    data = {"name": "anna", "password": one_time(service)}
    service.client.cookies.clear()
    answer = service.client.post("/login", data=data, headers=headers, follow_redirects=False)
    service.client.cookies.clear()
    return answer.status_code, answer.headers.get("set-cookie", "")


def test_a_public_address_with_tls_makes_cookies_secure_and_says_hsts(service: Service) -> None:
    status, cookie = sign_in(service)
    assert (status, cookie.startswith("sr_session="), "Secure" in cookie) == (303, True, False)
    assert "strict-transport-security" not in service.client.get("/healthz").headers
    service.context.settings.public_url = PUBLIC
    status, cookie = sign_in(service)
    assert (status, cookie.startswith("__Host-sr_session="), "; Secure" in cookie) == (303, True, True)
    assert "; Path=/;" in cookie
    assert "Domain" not in cookie
    assert service.client.get("/healthz").headers["strict-transport-security"] == "max-age=31536000"
    token = cookie.split(";")[0].split("=", 1)[1]
    for name, expected in (("__Host-sr_session", 200), ("sr_session", 401)):  # the second could come from elsewhere
        answer = service.client.get("/worklist", headers={"Cookie": f"{name}={token}"}, follow_redirects=False)
        assert answer.status_code == expected
    gone = service.client.post("/logout", headers={"Cookie": f"__Host-sr_session={token}"}, follow_redirects=False)
    ended = [value for value in gone.headers.get_list("set-cookie") if value.startswith("__Host-")]
    assert len(ended) == 1
    assert "Secure" in ended[0]


@pytest.mark.parametrize(
    ("public", "origin", "status"),
    [
        (None, "http://testserver", 303),
        (None, "HTTP://TestServer", 303),
        (None, "https://testserver", 403),
        (None, "http://testserver:8080", 403),
        (None, "null", 403),
        (PUBLIC, PUBLIC, 303),
        (PUBLIC + "/", PUBLIC, 303),
        (PUBLIC, "http://reads.example.org", 403),
        (PUBLIC, "https://elsewhere.example", 403),
        (None, PUBLIC, 403),
    ],
)
def test_the_origin_of_a_form_is_compared_with_its_scheme(
    service: Service, public: str | None, origin: str, status: int
) -> None:
    service.context.settings.public_url = public
    assert sign_in(service, Origin=origin)[0] == status


@pytest.mark.parametrize("wrong", ['["proxy"]', '["10.0.0.1/8"]', '["*"]'])
def test_a_proxy_is_named_by_its_address(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECONDREAD_TRUSTED_PROXIES", wrong)
    with pytest.raises(ValueError, match="trusted_proxies"):
        Settings()


def _post_login(made: Installation, source: str, name: str, password: str, **headers: str) -> tuple[int, str, bool]:
    """Sign in from a local address; status, cookie, and whether HSTS was said."""
    connection = http.client.HTTPConnection("127.0.0.1", made.port, source_address=(source, 0), timeout=60)
    body = urllib.parse.urlencode({"name": name, "password": password})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/login", body, kind | {k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    cookie = answer.getheader("set-cookie") or ""
    return answer.status, cookie, answer.getheader("strict-transport-security") is not None


def _open_to_others(home: Path) -> list[str]:
    """What other users could read; a release is copied with the modes that it has, and lies in a closed folder."""
    paths = [home, *(path for path in home.rglob("*") if "releases" not in path.parts)]
    assert len(paths) > 3
    return [f"{path} {path.stat().st_mode:o}" for path in paths if path.stat().st_mode & 0o077]


@pytest.mark.slow
def test_only_a_trusted_proxy_is_believed_and_files_are_private(tmp_path: Path, tiny_release: Path) -> None:
    with Installation(tmp_path / "home") as made:
        made.environment |= {"SECONDREAD_TRUSTED_PROXIES": '["127.0.0.2"]', "SECONDREAD_WORKER": "false"}
        made.run("release", "add", tiny_release)
        made.run("user", "add", "anna", "--role", "annotator")
        assert _open_to_others(made.home) == []
        made.home.chmod(0o755)
        made.start()
        assert "other users of this machine can look into" in made.log
        https = {"X_Forwarded_Proto": "https"}
        status, cookie, hsts = _post_login(made, "127.0.0.3", "anna", made.one_time_password("anna"), **https)
        assert (status, cookie.startswith("sr_session="), "Secure" in cookie, hsts) == (303, True, False, False)
        password = made.one_time_password("anna")
        for _ in range(5):
            assert _post_login(made, "127.0.0.2", "anna", "wrong", X_Forwarded_For="203.0.113.66")[0] == 401
        assert _post_login(made, "127.0.0.2", "anna", password, X_Forwarded_For="203.0.113.66")[0] == 401
        here = https | {"X_Forwarded_For": "203.0.113.1"}
        status, cookie, hsts = _post_login(made, "127.0.0.2", "anna", password, **here)
        assert (status, cookie.startswith("__Host-sr_session="), "Secure" in cookie, hsts) == (303, True, True, True)
        made.home.chmod(0o700)
        assert _open_to_others(made.home) == []
