"""What is damaged, missing or unusable is never served, is put right where that is possible, and is named."""

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from app.database.engine import Database, sqlite_module, wal_is_safe
from app.database.tables import Case
from app.http.errors import StorageFull
from app.main import create_app
from app.maintenance.backup import check_backup, write_backup
from app.maintenance.cache import sweep_files
from app.metrics.snapshot import refresh_snapshot
from app.releases.queries import get_champion_alias
from app.releases.service import move_alias
from app.settings import Settings
from app.storage import blobs
from app.storage.blobs import FolderStore, ImageStore
from ml.release.device import cuda_fault
from tests.app.test_snapshots import release_of
from tests.support.postgres import PostgresServer
from tests.support.process import Installation, free_port
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, collect, raising, stored_image
from tests.support.snapshots import assert_snapshots_tell_all, write_snapshots

DAY = 86_400.0


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def stored_file(service: Service, external_id: str, part: str = "image") -> Path:
    column = Case.stored_sha256 if part == "image" else Case.stored_field_sha256
    return stored_image(service.context, service.one(select(column).where(Case.external_id == external_id)) or "")


@undone("F17", "a damaged image is never served", blobs, "require_digest", lambda *_: None)
@pytest.mark.parametrize("harm", ["flipped", "cut", "emptied", "removed"])
@pytest.mark.parametrize("part", ["image", "field"])
def test_a_damaged_image_is_never_served_and_the_same_pixels_heal_it(service: Service, part: str, harm: str) -> None:
    case = service.add_case("case-1", cell_png(1), field=cell_png(2, 48))
    path, image = stored_file(service, "case-1", part), f"/v1/cases/{case['id']}/{part}"
    whole = service.get("viewer", image).content
    if harm == "flipped":
        flip(path)
    elif harm == "removed":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2 if harm == "cut" else 0])
    refused = service.get("viewer", image)
    assert refused.status_code == (404 if harm == "removed" else 503)
    assert refused.headers["content-type"] == "application/problem+json"
    assert len(service.faults()) == 1
    assert service.upload("case-1", cell_png(1), field=cell_png(2, 48)).status_code == 200  # the case is known
    assert service.get("viewer", image).content == whole
    assert service.faults() == []


def test_a_backup_names_damaged_images_and_goes_on(service: Service, tmp_path: Path) -> None:
    service.add_case("case-1", cell_png(1))
    flip(stored_file(service, "case-1"))
    written = write_backup(service.context, tmp_path / "backup")
    assert written["damaged"] == [stored_file(service, "case-1").name]
    assert check_backup(tmp_path / "backup")


def last_bit(data: bytes) -> bytes:
    """The last bit of a column, behind its header, is another one."""
    return data[:-1] + bytes([data[-1] ^ 1])


HARMS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "flipped": ("pi.npy", last_bit),
    "cut": ("pi.npy", lambda data: data[:-3]),
    "emptied column": ("pi.npy", lambda _: b""),
    "emptied": ("snapshot.json", lambda _: b""),
    "other JSON": ("snapshot.json", lambda _: b"[]"),
    "without keys": ("snapshot.json", lambda _: b'{"version": 3}'),
}


@pytest.mark.parametrize("how", HARMS)
def test_a_damaged_snapshot_is_not_used_but_named_and_written_anew(service: Service, how: str) -> None:
    service.before_change = lambda: None
    context = service.context
    collect(service, [cell_png(number) for number in range(3)], patients=True)
    write_snapshots(context)
    release_id, classes = release_of(context)
    assert not refresh_snapshot(context, release_id, classes)
    name, harm = HARMS[how]
    path = next((context.settings.home / "snapshots").glob(f"*/[0-9]*/{name}"))
    path.write_bytes(harm(path.read_bytes()))
    assert service.get("viewer", "/v1/metrics", params={"partition": "all"}).status_code == 200
    assert_snapshots_tell_all(context)
    assert [fault for fault in service.faults() if "snapshot" in fault] != []
    assert refresh_snapshot(context, release_id, classes)
    assert service.faults() == []
    assert_snapshots_tell_all(context)
    assert not refresh_snapshot(context, release_id, classes)


def test_a_backup_that_fails_leaves_nothing(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service.add_case("case-1", cell_png(1))
    with monkeypatch.context() as broken:
        broken.setattr(shutil, "copytree", raising(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            write_backup(service.context, tmp_path / "backup")
    assert list(tmp_path.glob("*backup*")) == []
    (tmp_path / "backup").mkdir()  # an empty folder is taken
    assert write_backup(service.context, tmp_path / "backup")["n_files"] > 2
    assert check_backup(tmp_path / "backup")
    assert sorted(path.name for path in tmp_path.glob("*backup*")) == ["backup"]
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_backup_and_restore_with_a_password(postgres: PostgresServer, tmp_path: Path) -> None:
    """By scram, as a database elsewhere asks for it."""
    role, password = f"scram_{uuid.uuid4().hex[:8]}", "a:b\\c d%"
    rules = postgres.data / "pg_hba.conf"
    rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    with psycopg.connect(postgres.url("postgres").replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN CREATEDB PASSWORD '{password}'")  # type: ignore[arg-type]
        connection.execute("SELECT pg_reload_conf()")
        for name in ("from_here", "to_there"):
            connection.execute(f"CREATE DATABASE {role}_{name} OWNER {role}")  # type: ignore[arg-type]
    url = f"postgresql+psycopg://{role}:a%3Ab%5Cc%20d%25@127.0.0.1:{postgres.port}/{role}_"
    made = Installation(tmp_path / "home", url + "from_here")
    made.run("db", "upgrade")
    made.run("user", "add", "lead", "--role", "admin")
    assert made.run("db", "backup", tmp_path / "backup").returncode == 0
    other = Installation(tmp_path / "new", url + "to_there")
    other.run("db", "restore", "--without-list", tmp_path / "backup")
    assert "lead" in other.run("user", "list").stdout
    wrong = Installation(tmp_path / "home", url.replace("a%3A", "b") + "from_here")
    refused = wrong.run("db", "backup", tmp_path / "none", check=False)
    assert (refused.returncode, refused.stderr.count("\n"), (tmp_path / "none").exists()) == (1, 1, False)


def test_orphans_and_unfinished_files_are_swept_once_they_are_old(service: Service) -> None:
    context, home = service.context, service.context.settings.home
    service.add_case("case-1", cell_png(1), field=cell_png(2, 48))
    used, field = (stored_file(service, "case-1", part) for part in ("image", "field"))
    orphan = stored_image(context, context.images.put(b"pixels of a request that was killed"))
    fresh = stored_image(context, context.images.put(b"pixels of a request that goes on"))
    again = stored_image(context, context.images.put(b"pixels that come a second time"))
    unfinished = [
        orphan.with_name("x.tmp"),
        home / "imports" / ".x.part",
        context.settings.releases_folder / ".candidate-x" / "card.json",
        home / "snapshots" / "release" / ".x.tmp" / "pi.npy",
    ]
    for path in unfinished:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    old = [used, field, orphan, again, *unfinished, *(path.parent for path in unfinished[2:])]
    for path in old:
        os.utime(path, (time.time() - 2 * DAY,) * 2)
    context.images.put(b"pixels that come a second time")
    assert sweep_files(context) == 5
    left = [path for path in (used, field, orphan, fresh, again, *unfinished) if path.is_file()]
    assert left == [used, field, fresh, again]
    assert sweep_files(context) == 0


def test_what_is_stored_again_while_it_is_swept_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FolderStore(tmp_path, 0)
    store = ImageStore(folder)
    path = folder.path(store.key(store.put(b"pixels")))
    os.utime(path, (time.time() - 2 * DAY,) * 2)

    def meanwhile(names: list[str]) -> set[str]:
        store.put(b"pixels")  # its row is not there yet
        return set()

    assert store.sweep(meanwhile, DAY) == 0
    assert store.get(path.name) == b"pixels"


@pytest.mark.slow
@pytest.mark.both_databases
def test_an_unknown_schema_is_one_clear_line(service: Service, tmp_path: Path) -> None:
    settings = service.context.settings
    service.change(text("UPDATE alembic_version SET version_num = '9999'"))
    made = Installation(tmp_path / "home2", settings.sqlalchemy_url)
    assert settings.secret_key is not None
    made.environment["SECONDREAD_SECRET_KEY"] = settings.secret_key.get_secret_value()
    for arguments in (("db", "upgrade"), ("user", "list"), ("serve",), ("worker",)):
        done = made.run(*arguments, check=False)
        assert done.returncode == 1
        assert "was made by a development version" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.slow
def test_a_dead_database_is_one_clear_line(tmp_path: Path) -> None:
    made = Installation(tmp_path / "home", f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    for arguments in (("db", "upgrade"), ("user", "list"), ("serve",), ("db", "backup", str(tmp_path / "out"))):
        done = made.run(*arguments, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "database" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_no_defect_of_the_service(tmp_path: Path) -> None:
    store = ImageStore(FolderStore(tmp_path, 0))
    (tmp_path / hashlib.sha256(b"pixels").hexdigest()[:2]).write_text("in the way")
    with pytest.raises(StorageFull):
        store.put(b"pixels")


def test_a_release_that_breaks_on_disk_leaves_the_loaded_one_serving(service: Service) -> None:
    assert service.get(None, "/readyz").json()["status"] == "ready"
    network = next(service.context.settings.releases_folder.rglob("network.onnx"))
    network.write_bytes(network.read_bytes()[:-1])
    with service.context.database.write() as session:
        served = service.context.inference.served(get_champion_alias(session))
        move_alias(session, service.context, "test", "champion", served.release_id, "to load it anew", None)
    assert service.add_case()["prediction"]["release"]
    ready = service.get(None, "/readyz")
    assert (ready.status_code, "cannot be loaded" in ready.json()["release"]) == (503, True)


def test_readiness_names_a_disk_with_too_little_space_and_the_service_stays_in_service(service: Service) -> None:
    service.context.settings.min_free_bytes = 10**18
    ready = service.get(None, "/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert "too little disk space" in ready.json()["storage"]
    assert ready.json()["device"].startswith("cuda" if cuda_fault() is None else "cpu")


def test_without_a_release_the_service_says_so(settings: Settings) -> None:
    with TestClient(create_app(settings)) as client:
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (503, "ok")


@undone("T7", "paths of images are made by the server only", blobs, "digest_from_key", lambda key: key)
def test_image_names_never_come_from_outside(tmp_path: Path) -> None:
    store = ImageStore(FolderStore(tmp_path, 0))
    for name in ("../x", "A" * 64, "0" * 63, "/etc/passwd"):
        with pytest.raises(ValueError, match="SHA-256"):
            store.key(name)
    digest = store.put(b"pixels")
    assert store.get(digest) == b"pixels"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [digest]


def test_a_full_disk_refuses_uploads_with_507(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.context.images.store, "min_free_bytes", 10**18)
    with pytest.raises(StorageFull):
        service.context.images.put(b"new")
    response = service.upload("case-1", cell_png())
    assert (response.status_code, response.json()["type"]) == (507, "urn:secondread:problem:storage-full")
    assert service.document("/v1/cases")["items"] == []


def test_the_journal_mode_follows_the_version(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    with database.engine.connect() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    assert mode == ("wal" if wal_is_safe(sqlite_module().sqlite_version_info) else "delete")
    safe = {(3, 44, 5): False, (3, 44, 6): True, (3, 51, 2): False, (3, 6, 9): True, (3, 53, 0): True}
    assert {version: wal_is_safe(version) for version in safe} == safe


@pytest.fixture
def no_cuda() -> None:
    if cuda_fault() is None:
        pytest.skip("CUDA can be used on this machine")


@pytest.mark.slow
@pytest.mark.usefixtures("no_cuda")
def test_cuda_that_cannot_be_used_stops_server_and_worker_in_one_line(tmp_path: Path, tiny_release: Path) -> None:
    with Installation(tmp_path / "home") as made:
        made.prepare(tiny_release)
        made.environment["SECONDREAD_DEVICE"] = "cuda"
        for command in ("serve", "worker"):
            done = made.run(command, check=False)
            assert done.returncode == 1
            said = [line for line in done.stderr.splitlines() if line.startswith("secondread: ")]
            assert said == [f"secondread: device cuda cannot be used: {cuda_fault()}"]
        made.environment["SECONDREAD_DEVICE"] = "gpu"
        assert "SECONDREAD_DEVICE" in made.run("serve", check=False).stderr


def test_cuda_here_and_a_network_elsewhere_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="DEVICE wants cuda here"):
        Settings(home=tmp_path, device="cuda", inference_url="http://127.0.0.1:1")
    assert Settings(home=tmp_path, inference_url="http://127.0.0.1:1").device == "auto"
