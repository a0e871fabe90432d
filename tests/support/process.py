"""The real command line and the real server, as processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).parent / "secondread")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Installation:
    """A HOME of its own and, on request, a server on it."""

    def __init__(self, home: Path, database_url: str | None = None) -> None:
        self.home, self.port = home, free_port()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("SECONDREAD_")}
        self.environment |= {"SECONDREAD_HOME": str(home), "SECONDREAD_PORT": str(self.port)}
        if database_url is not None:
            self.environment["SECONDREAD_DATABASE_URL"] = database_url
        self.server: subprocess.Popen[bytes] | None = None
        self.keys: dict[str, str] = {}

    @property
    def sqlalchemy_url(self) -> str:
        from app.settings import Settings

        return Settings(home=self.home, database_url=self.environment.get("SECONDREAD_DATABASE_URL")).sqlalchemy_url

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [COMMAND, *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=self.home.parent, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def prepare(self, release: Path, **people: str) -> dict[str, str]:
        """What the commands would do, in this process: database, release, accounts; gives a key for each."""
        from app.auth import service as auth
        from app.context import build_context
        from app.platform.migrate import upgrade
        from app.releases.adding import add_release
        from app.settings import Settings

        url = self.environment.get("SECONDREAD_DATABASE_URL")
        self.home.mkdir(parents=True, exist_ok=True)
        context = build_context(Settings(home=self.home, database_url=url))
        upgrade(context.database.engine)
        keys = {}
        with context.database.write() as session:
            add_release(session, context.secret, release, context.settings.releases_folder)
            for name, role in people.items():
                auth.add_account(session, context.secret, name, role)
                scopes = ["labels:write", "cases:write", "predict"] if role == "service" else []
                keys[name] = auth.add_key(session, context.secret, name, scopes)[1]
        context.database.engine.dispose()
        return keys

    def password(self, *arguments: object) -> str:
        found = re.search(r"one-time password (\S+)", self.run(*arguments).stdout)
        assert found is not None
        return found[1]

    def key(self, name: str, *scopes: str) -> str:
        options = [part for scope in scopes for part in ("--scope", scope)]
        token: str = json.loads(self.run("key", "add", name, *options, "--json").stdout)["token"]
        return token

    def start(self) -> None:
        log = (self.home.parent / "server.log").open("ab")
        command = [COMMAND, "serve"]
        self.server = subprocess.Popen(command, env=self.environment, cwd=self.home.parent, stdout=log, stderr=log)
        log.close()
        for _ in range(200):
            try:
                with urllib.request.urlopen(f"{self.address}/readyz", timeout=1):
                    return
            except OSError:
                assert self.server.poll() is None, (self.home.parent / "server.log").read_text()
                time.sleep(0.05)
        raise AssertionError("the server did not become ready")

    def stop(self, how: int = signal.SIGTERM) -> int:
        assert self.server is not None
        self.server.send_signal(how)
        status = self.server.wait(25)
        self.server = None
        return status

    def get(self, path: str, key: str) -> Any:
        request = urllib.request.Request(self.address + path, headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())
