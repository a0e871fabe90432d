"""What the containers' scripts make: secrets in files, and a database whose owner is not the role of the service."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.support.postgres import PostgresServer
from tests.support.process import Installation

ROOT = Path(__file__).parents[2]


@contextmanager
def installation_of_two_roles(postgres: PostgresServer, tmp_path: Path) -> Iterator[Installation]:
    """An installation whose settings are files, on a database whose roles the scripts of the containers made."""
    folder, name = tmp_path / "secrets", postgres.create()
    subprocess.run(["sh", str(ROOT / "docker" / "make-secrets.sh"), str(folder)], check=True)
    here = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "POSTGRES_DB": name, "SECRETS": str(folder)}
    path = {"PATH": f"{postgres.binaries}:{os.environ['PATH']}"}
    subprocess.run([str(ROOT / "docker" / "database" / "roles.sh")], env=here | path, check=True)
    for file in ("secondread_database_url", "secondread_database_owner_url"):
        url = (folder / file).read_text().replace("database:5432/secondread", f"127.0.0.1:{postgres.port}/{name}")
        (folder / file).chmod(0o600)
        (folder / file).write_text(url)
    made = Installation(tmp_path / "home")
    for setting in ("DATABASE_URL", "METRICS_TOKEN"):
        made.environment.pop(f"SECONDREAD_{setting}", None)
    made.environment |= {"SECONDREAD_SECRETS": str(folder), "SECONDREAD_SECRET_KEY_FILE": str(folder / "key_ring")}
    made.environment["SECONDREAD_ALLOWED_HOSTS"] = '["127.0.0.1"]'
    made.environment["PATH"] = f"{Path(sys.executable).parent}:{made.environment['PATH']}"
    made.home.mkdir()
    yield made
    with psycopg.connect(postgres.url("postgres").replace("+psycopg", ""), autocommit=True) as connection:
        for statement in (f'DROP DATABASE "{name}" WITH (FORCE)', "DROP ROLE secondread", "DROP ROLE secondread_owner"):
            connection.execute(statement)
