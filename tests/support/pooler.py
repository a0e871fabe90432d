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
logfile = {folder}/log
"""


def find_pgbouncer() -> str | None:
    """Path of the program; None where it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pooler(program: str, server: PostgresServer, size: int) -> Iterator[int]:
    """Port of a pooler that has ``size`` connections to each database of a server, and takes no options of clients."""
    folder, port = Path(tempfile.mkdtemp(prefix="sr-pgb-")), free_port()
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "config").write_text(_CONFIG.format(server_port=server.port, port=port, folder=folder, size=size))
    if server.user:
        shutil.chown(folder, server.user["user"], server.user["group"])
    process = subprocess.Popen([program, "-q", str(folder / "config")], cwd=folder, **server.user)
    try:
        wait_until(lambda: _answers(port), what="the pooler answers")
        yield port
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    try:
        psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=postgres").close()
    except psycopg.OperationalError:
        return False
    return True
