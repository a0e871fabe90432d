"""PgBouncer in transaction mode before a PostgreSQL of the tests, as Debian has it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.support.postgres import PostgresServer
from tests.support.process import free_port
from tests.support.waiting import wait_until

_CONFIG = """\
[databases]
* = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {size}
; a server that was busy when it was first asked is asked again soon, not after a quarter of a minute
server_login_retry = 1
logfile = {folder}/log
"""


def find_pgbouncer() -> str | None:
    """Path of the program; None where it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pooler(program: str, server: PostgresServer, size: int) -> Iterator[int]:
    """Port of a pooler that has ``size`` connections to each database of a server, and takes no options of clients."""
    folder = Path(tempfile.mkdtemp(prefix="sr-pgb-"))
    (folder / "users").write_text('"postgres" ""\n')
    if server.user:
        shutil.chown(folder, server.user["user"], server.user["group"])

    def start() -> tuple[subprocess.Popen[bytes], int]:
        port = free_port()
        (folder / "config").write_text(_CONFIG.format(server_port=server.port, port=port, folder=folder, size=size))
        return subprocess.Popen([program, "-q", str(folder / "config")], cwd=folder, **server.user), port

    process, port = start()

    def answers() -> bool:
        nonlocal process, port
        if process.poll() is not None:  # somebody else was faster with the port
            process, port = start()
        return _answers(port)

    try:
        wait_until(answers, 60, lambda: f"the pooler does not answer\n{(folder / 'log').read_text()[-2000:]}")
        yield port
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    try:
        psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
