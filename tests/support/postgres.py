"""A PostgreSQL server in a temporary folder; as root it runs as another user, which PostgreSQL insists on."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.support.process import free_port
from tests.support.quicker import fast_folder
from tests.support.waiting import patient


def find_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


_PREFIX = "sr-pg-"
_LEFT_SECONDS = 3600.0


def _remove_leftovers(parent: Path) -> None:
    """Remove folders, an hour old, of servers that no longer run: they may fill the memory."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _LEFT_SECONDS:
                continue
            os.kill(int((folder / "data" / "postmaster.pid").read_text().split()[0]), 0)
        except (ProcessLookupError, FileNotFoundError, IndexError):
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # it runs, or its own tests remove it now


class PostgresServer:
    """A server of its own folder and port."""

    def __init__(self, binaries: Path, parent: Path | None = None) -> None:
        self.binaries, self.port = binaries, free_port()
        _remove_leftovers(Path(fast_folder()))
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent or fast_folder()))
        self.user: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self.user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        try:
            self.run("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")
            self.start()
            self._check()
        except (OSError, subprocess.CalledProcessError, psycopg.Error) as exc:
            said = (getattr(exc, "stderr", b"") or b"").decode(errors="replace")
            log = self.folder / "log"
            said += log.read_text()[-2000:] if log.exists() else ""
            self.stop()
            raise RuntimeError(f"the installed PostgreSQL does not work: {exc}\n{said}") from exc

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL, or another one, as the server's user."""
        own = self.binaries / program
        command = [str(own) if own.exists() else program, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self.user)

    def _check(self) -> None:
        """Run what the service needs: a function in PL/pgSQL, whose library a damaged installation lacks."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("DO $$ BEGIN PERFORM 1; END $$")

    @property
    def _dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def start(self) -> None:
        # processes are killed here, the machine is not: nothing needs to reach the disk
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off -c full_page_writes=off"
        log = str(self.folder / "log")
        deadline = str(round(patient(60)))
        command = [str(self.binaries / "pg_ctl"), "-D", str(self.data), "-w", "-t", deadline, "-l", log, "-o", options]
        command.append("start")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **self.user)

    def halt(self) -> None:
        """Stop as a crash does; ``start`` brings it back."""
        self.run("pg_ctl", "-D", str(self.data), "-m", "immediate", "stop")

    def send_signal(self, number: int) -> None:
        """Send a signal to the server and to all its processes."""
        server = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(server, number)  # first, so that no further process begins
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), number)

    def stop(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.run("pg_ctl", "-D", str(self.data), "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def encrypt(self, certificate: Path | None, key: Path | None) -> None:
        """Speak TLS as well, with a certificate and its key, or no longer."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            if certificate is None or key is None:
                connection.execute("ALTER SYSTEM RESET ssl")
            else:
                for source, name in ((certificate, "server.crt"), (key, "server.key")):
                    (self.data / name).unlink(missing_ok=True)
                    (self.data / name).write_bytes(source.read_bytes())
                    (self.data / name).chmod(0o600)
                    os.chown(self.data / name, self.user.get("user", -1), self.user.get("group", -1))
                connection.execute("ALTER SYSTEM SET ssl = on")
            connection.execute("SELECT pg_reload_conf()")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def create(self, template: str = "template1") -> str:
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')  # type: ignore[call-overload]
        return name
