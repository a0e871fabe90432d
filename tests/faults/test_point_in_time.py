"""PostgreSQL is brought back to a moment before a mistake, from a base backup and its log (docs/how-to.md)."""

import shutil
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select

from app.audit.verify import verify_all
from app.cases.ingest import prepare_case, store_case
from app.cases.schemas import CaseIn
from app.context import ServiceContext
from app.database.tables import Account, Case
from app.http.principal import Principal
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import cell_png
from tests.support.waiting import wait_until


def store(context: ServiceContext, external_id: str, number: int) -> None:
    new = prepare_case(context, CaseIn(external_id=external_id, metadata={}), cell_png(number))
    with context.database.write() as session:
        row = session.execute(select(Account).where(Account.name == "lead")).scalar_one()
        store_case(session, context, Principal(row.id, row.name, row.role, frozenset({"cases:write"})), new)


def archive_logs(server: PostgresServer, connection: psycopg.Connection) -> None:
    """Keep the log of the server from now on; it begins with the next start."""
    server.run("mkdir", str(server.folder / "archive"))
    for setting, value in (("archive_mode", "on"), ("archive_command", f"cp %p {server.folder}/archive/%f")):
        connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'".encode())
    server.halt()
    server.start()


@pytest.mark.slow
def test_a_database_comes_back_as_it_was_at_a_moment(
    own_postgres: PostgresServer, tmp_path: Path, tiny_release: Path
) -> None:
    server = own_postgres
    dsn = f"host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
    made = Installation(tmp_path / "home", server.url(server.create()))
    made.prepare(tiny_release, lead="admin")
    with psycopg.connect(dsn, autocommit=True) as connection:
        archive_logs(server, connection)
    with made.parts() as context:
        store(context, "before the base backup", 0)
        base = server.folder / "base"
        server.run(
            "pg_basebackup", "-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "-D", str(base), "-c", "fast"
        )
        store(context, "after it", 1)
        with psycopg.connect(dsn, autocommit=True) as connection:
            (moment,) = connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
            store(context, "a mistake", 2)
            (segment,) = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or (None,)
        archived = server.folder / "archive" / str(segment)
        wait_until(archived.is_file, 60, f"{archived} is not there")
    server.halt()
    shutil.rmtree(server.data)
    base.rename(server.data)
    with (server.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"restore_command = 'cp {server.folder}/archive/%f %p'\nrecovery_target_time = '{moment}'\n")
        settings.write("recovery_target_action = 'promote'\n")
    server.run("touch", str(server.data / "recovery.signal"))
    server.start()
    with made.parts() as context, context.database.read() as session:
        names = set(session.execute(select(Case.external_id)).scalars())
        assert names == {"before the base backup", "after it"}
        faults = verify_all(session, context).faults
    assert faults == []
