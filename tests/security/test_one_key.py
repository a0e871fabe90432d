"""One installation, one key: whoever comes with another one is refused before the first write."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import MetaData, select

from app.audit.chain.keys import KeyRing, derive_keys
from app.cases.ingest import partition_of
from app.context import ServiceContext
from app.database.engine import Database
from app.database.tables import Case
from app.maintenance.backup import restore_backup, write_backup
from app.settings import Settings
from app.triage.planning import uniform_draw
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.service import Service, cell_png, collect

REFUSED = "not the key of this database"
OTHER = b"another key, as long as a key must be at least"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("user", "add", "eve", "--role", "admin"),
    ("db", "upgrade"),
    ("db", "verify"),
    ("demo",),
    ("serve",),
    ("worker",),
)


def contents(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, those of the job engine too."""
    rows = {}
    for schema in (None, "dbos") if database.engine.dialect.name == "postgresql" else (None,):
        metadata = MetaData(schema=schema)
        metadata.reflect(database.engine)
        with database.engine.connect() as connection:
            for table in metadata.sorted_tables:
                rows[str(table)] = sorted(map(tuple, connection.execute(select(table)).all()), key=str)
    return rows


COINS = [0.6961641958968792, 0.30279549747923895, 0.1919679594478232]
PARTITIONS = ["calibration", "evaluation", "calibration", "evaluation", "calibration"]
CHECK = "a7221a5c28f01ee6f3bc49753083ac98ad4c421ea873372e58a7f674669319da"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create())


@pytest.mark.slow
def test_a_second_installation_with_a_key_of_its_own_is_refused_before_it_writes(
    url: str, tmp_path: Path, tiny_release: Path
) -> None:
    first, second = Installation(tmp_path / "first", url), Installation(tmp_path / "second", url)
    first.prepare(tiny_release, lead="admin")
    first.run("user", "list")
    database = Database(url)
    before = contents(database)
    for arguments in COMMANDS:
        done = second.run(*arguments, check=False)
        assert (done.returncode, REFUSED in done.stderr, done.stderr.count("\n")) == (1, True, 1), arguments
        assert contents(database) == before, arguments
    first.run("user", "add", "ben", "--role", "annotator")
    database.engine.dispose()


def coins_and_partitions(context: ServiceContext) -> dict[str, tuple[float, str]]:
    with context.database.read() as session:
        return {row[0]: (row[1], row[2]) for row in session.execute(select(Case.external_id, Case.u, Case.partition))}


@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_coins_and_partitions_follow_from_the_key_and_nothing_else(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(4)], patients=True)
    for number, (external_id, (u, partition)) in enumerate(sorted(coins_and_partitions(service.context).items())):
        assert u == uniform_draw(service.context.keys.coin, external_id)
        assert partition == partition_of(service.context.keys.partition, f"p{number // 3}", external_id)


def test_what_a_key_decides_never_moves() -> None:
    """Whatever is derived from the key in a new way would move them."""
    keys = derive_keys(KeyRing.parse(b"the same coins and partitions in every run"))
    assert [uniform_draw(keys.coin, name) for name in ("case-1", "case-2", "a b")] == COINS
    assert [partition_of(keys.partition, patient, "case-1") for patient in (None, "p1", "p2", "p3", "p4")] == PARTITIONS
    assert keys.audit.signers[0].check == CHECK


def test_the_key_may_come_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(OTHER + b"\n")
    assert Settings(home=tmp_path, secret_key_file=path).key_ring() == KeyRing.parse(OTHER)
    assert not (tmp_path / "secret.key").exists()
    with pytest.raises(ValueError, match="not both"):
        Settings(home=tmp_path, secret_key_file=path, secret_key=SecretStr(OTHER.decode()))
    path.write_text("short")
    with pytest.raises(ValueError, match="at least 32 bytes"):
        Settings(home=tmp_path, secret_key_file=path).key_ring()


def test_an_empty_key_file_in_home_is_refused_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "secret.key").touch(mode=0o600)
    with pytest.raises(ValueError, match=r"secret\.key: a key must be at least 32 bytes"):
        Settings(home=tmp_path).key_ring()
    assert (tmp_path / "secret.key").read_bytes() == b""


def test_a_key_is_made_once_and_whole(tmp_path: Path) -> None:
    key = Settings(home=tmp_path).key_ring()
    assert len(key.secrets[0].value) == 64
    assert Settings(home=tmp_path).key_ring() == key
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]


@pytest.mark.slow
def test_a_backup_of_another_key_is_refused_before_anything_is_restored(service: Service, tmp_path: Path) -> None:
    write_backup(service.context, tmp_path / "backup")
    (tmp_path / "new").mkdir()
    made = Installation(tmp_path / "new" / "home")
    made.environment["SECONDREAD_SECRET_KEY"] = OTHER.decode()
    done = made.run("db", "restore", "--without-list", tmp_path / "backup", check=False)
    assert (done.returncode, "another key" in done.stderr, done.stderr.count("\n")) == (1, True, 1)
    assert not made.home.exists()
    home = tmp_path / "elsewhere"
    assert restore_backup(
        tmp_path / "backup", home, home / "images", f"sqlite:///{home / 'x.db'}", service.context.settings.key_ring()
    )
