"""A streaming replica of a test's PostgreSQL server, as `pg_basebackup -R` makes it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.support.postgres import PostgresServer
from tests.support.process import free_port
from tests.support.waiting import patient, wait_until


class Replica:
    """A second server that replays the first one's log.

    Args:
        primary: a server that runs.
    """

    def __init__(self, primary: PostgresServer) -> None:
        self.primary, self.port = primary, free_port()
        self.data = primary.folder / f"replica-{self.port}"
        source = f"host=127.0.0.1 port={primary.port} user=postgres"
        primary.run(
            "pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-X", "stream", "-c", "fast", "--no-sync"
        )
        self.start()

    def start(self) -> None:
        options = f"-p {self.port} -k {self.primary.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        command = [
            "-D",
            str(self.data),
            "-w",
            "-t",
            str(round(patient(60))),
            "-l",
            str(self.data / "log"),
            "-o",
            options,
        ]
        binary = str(self.primary.binaries / "pg_ctl")
        command = [binary, *command, "start"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.primary.folder, **self.primary.user)

    def stop(self) -> None:
        """Stop as a crash does."""
        self.primary.run("pg_ctl", "-D", str(self.data), "-m", "immediate", "stop")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within the block it takes connections and requests, and does nothing."""
        server = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(server, signal.SIGSTOP)  # first, so that no further process begins
        processes = [server, *map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())]
        try:
            for process in processes:
                os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def url(self, database: str) -> str:
        return self.primary.url(database).replace(f":{self.primary.port}/", f":{self.port}/")

    def ask(self, statement: str, database: str = "postgres") -> Any:
        """The first value that it answers."""
        url = self.url(database).replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(statement).fetchone()  # type: ignore[call-overload]
        return None if row is None else row[0]

    @contextmanager
    def behind(self) -> Iterator[None]:
        """It replays nothing within the block, and whatever came meanwhile after it."""
        self.ask("SELECT pg_wal_replay_pause()")
        wait_until(lambda: self.ask("SELECT pg_get_wal_replay_pause_state()") == "paused")
        try:
            yield
        finally:
            self.ask("SELECT pg_wal_replay_resume()")


@contextmanager
def replica_of(primary: PostgresServer) -> Iterator[Replica]:
    """A replica that ends with the block."""
    replica = Replica(primary)
    try:
        yield replica
    finally:
        with suppress(subprocess.CalledProcessError):
            replica.stop()
