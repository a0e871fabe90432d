"""The real command line and the real server, as processes that end with the test that started them."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.support.forked import ForkedCommand
from tests.support.waiting import patient, wait_until

if TYPE_CHECKING:
    import httpx2
    from sqlalchemy import Select

    from app.context import ServiceContext
    from app.settings import Settings

#: The installed console script, where that is what is tested.
COMMAND = str(Path(sys.executable).parent / "secondread")
#: What a monitoring system sends.
METRICS_TOKEN = "the token of a monitoring system, for tests"
#: Installations with a process that may still live; what a test leaves here is ended after it.
RUNNING: list["Installation"] = []


def free_port() -> int:
    """A port below those that the system gives to outgoing connections, which could take it before the server does."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Installation:
    """A HOME of its own and, on request, a server and workers on it; as a context manager it ends them."""

    def __init__(self, home: Path, database_url: str | None = None) -> None:
        self.home, self.port = home, free_port()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("SECONDREAD_")}
        self.environment |= {"SECONDREAD_HOME": str(home), "SECONDREAD_PORT": str(self.port)}
        self.environment["SECONDREAD_METRICS_TOKEN"] = METRICS_TOKEN
        if database_url is not None:
            self.environment["SECONDREAD_DATABASE_URL"] = database_url
        self.server: ForkedCommand | None = None
        self.processes: list[ForkedCommand] = []
        self.keys: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def settings(self) -> "Settings":
        from app.settings import Settings

        return Settings(home=self.home, database_url=self.environment.get("SECONDREAD_DATABASE_URL"))

    @property
    def sqlalchemy_url(self) -> str:
        return self.settings.sqlalchemy_url

    def rows(self, statement: "Select[Any]") -> list[Any]:
        from app.database.engine import Database

        database = Database(self.sqlalchemy_url)
        with database.read() as session:
            found = list(session.execute(statement).all())
        database.engine.dispose()
        return found

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            process = ForkedCommand(arguments, self.environment, self.home.parent, out, err, "")
            try:
                status = process.wait(patient(300))  # one that should refuse and serves instead must not hang the tests
            finally:
                process.kill()
            done = subprocess.CompletedProcess(process.args, status, out.read_text(), err.read_text())
        assert not check or status == 0, done.stderr
        return done

    def prepare(self, release: Path | None, **people: str) -> dict[str, str]:
        """What the commands would do, in this process: database, release if any, accounts; gives a key for each."""
        from app.accounts import people as auth
        from app.audit.installation import claim_database
        from app.context import build_context
        from app.database.migration import upgrade_schema
        from tests.support.service import put_release, show_at_once

        self.home.mkdir(parents=True, exist_ok=True)
        context = build_context(self.settings)
        upgrade_schema(context.database.engine)
        show_at_once(context.database)
        claim_database(context.database, context.keys.audit)
        keys = {}
        with context.database.write() as session:
            if release is not None:
                put_release(session, context.keys.audit, release, context.settings.releases_folder)
            for name, role in people.items():
                auth.add_account(session, context.keys.audit, name, role)
                scopes = ["labels:write", "cases:write", "predict"] if role == "service" else []
                keys[name] = auth.add_key(session, context.keys.audit, name, scopes)[1]
        context.database.engine.dispose()
        return keys

    def password(self, *arguments: object) -> str:
        return str(re.findall(r"one-time password (\S+)", self.run(*arguments).stdout)[0])

    def one_time_password(self, name: str) -> str:
        """What ``secondread user password`` gives, in this process, which takes a hundredth of the time."""
        from app.accounts import people as auth

        with self.parts() as context, context.database.write() as session:
            return auth.issue_one_time_password(session, context.keys.audit, name)

    @contextlib.contextmanager
    def parts(self) -> Iterator["ServiceContext"]:
        """The parts of the service in this process, next to those that its server has."""
        from app.context import build_context

        context = build_context(self.settings)
        try:
            yield context
        finally:
            context.database.engine.dispose()

    def key(self, name: str, *scopes: str) -> str:
        options = [part for scope in scopes for part in ("--scope", scope)]
        token: str = json.loads(self.run("key", "add", name, *options, "--json").stdout)["token"]
        return token

    @property
    def log(self) -> str:
        """The end of what server and workers wrote."""
        paths = sorted(self.home.parent.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)

    def spawn(self, *arguments: object, log: str = "worker.log", code: str = "") -> ForkedCommand:
        """Start a command that goes on, and end it with this installation."""
        path = self.home.parent / log
        process = ForkedCommand(arguments, self.environment, self.home.parent, path, path, code)
        self.processes.append(process)
        if self not in RUNNING:
            RUNNING.append(self)
        return process

    def start(self) -> None:
        self.server = self.spawn("serve", log="server.log")
        wait_until(self._ready, 60, lambda: f"the server did not become ready\n{self.log}")

    def _ready(self) -> bool:
        assert self.server is not None
        assert self.server.poll() is None, self.log
        try:
            with urllib.request.urlopen(f"{self.address}/readyz", timeout=patient(5)):
                return True
        except OSError:
            return False

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End the server; gives its exit status."""
        assert self.server is not None
        server, self.server = self.server, None
        server.send_signal(how)
        try:
            return server.wait(patient(25))
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
            raise AssertionError(f"the server did not stop\n{self.log}") from None

    def close(self) -> None:
        """End whatever lives, without asking."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patient(5))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and the worker that a server had started
            process.wait()
        self.server, self.processes = None, []
        if self in RUNNING:
            RUNNING.remove(self)

    @cached_property
    def _http(self) -> "httpx2.Client":
        import httpx2

        return httpx2.Client(timeout=patient(60))

    def call(self, who: str, method: str, path: str, key: str = "", **body: Any) -> "httpx2.Response":
        """Send a request of somebody whose key is known, with an Idempotency-Key that is new unless one is given."""
        headers = {"Authorization": f"Bearer {self.keys[who]}", "Idempotency-Key": key or uuid.uuid4().hex}
        headers |= {"Connection": "close"} | body.pop("headers", {})
        return self._http.request(method, self.address + path, headers=headers, **body)

    def get(self, path: str, key: str) -> Any:
        request = urllib.request.Request(self.address + path, headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=patient(10)) as answer:
            return json.loads(answer.read())
