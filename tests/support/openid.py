"""A small real OpenID provider: discovery, authorization code with PKCE, tokens signed with its own key."""

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "secondread", "a secret of the client"


class OpenIdProvider:
    """Signs everybody in as ``subject``; ``spoil`` changes the claims of the tokens it gives."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, parameters={"kid": "one", "alg": "RS256", "use": "sig"})
        self.subject = "person-1"
        self.spoil: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        #: what the last sign-in asked for
        self.asked: dict[str, str] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def authorize(self, query: dict[str, str]) -> str:
        """Where the provider sends the browser, once the person has signed in there."""
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = self.asked = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or authorization != f"Basic {basic}" or challenge != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": self.subject,
            "nonce": asked["nonce"],
            "iat": int(time.time()),
            "exp": int(time.time()) + 300,
            **({"auth_time": int(time.time())} if "max_age" in asked else {}),
        } | self.spoil
        signer = self.spoil.get("signer", self.key)
        claims.pop("signer", None)
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, signer)
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": token}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def answer(self, status: int, document: dict[str, Any]) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                path = urlsplit(self.path)
                if path.path == "/.well-known/openid-configuration":
                    names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
                    endpoints = {name: f"{provider.issuer}/{tail}" for name, tail in names.items()}
                    self.answer(200, {"issuer": provider.spoil.get("discovered", provider.issuer)} | endpoints)
                elif path.path == "/jwks":
                    self.answer(200, {"keys": [provider.key.as_dict(private=False)]})
                else:
                    self.send_response(302)
                    query = {name: values[0] for name, values in parse_qs(path.query).items()}
                    self.send_header("Location", provider.authorize(query))
                    self.end_headers()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                self.answer(*provider.token(form, self.headers.get("Authorization", "")))

        return Handler
