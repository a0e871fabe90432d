"""What is damaged on disk is never served, is put right where that is possible, and is named."""

import hashlib
import os
import shutil
import time
import uuid
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select, text

from app.database.tables import Case
from app.http.errors import StorageFull
from app.maintenance.backup import check_backup, write_backup
from app.maintenance.cache import sweep_files
from app.metrics.snapshot import refresh_snapshot
from app.releases.queries import all_releases, class_codes
from app.storage import blobs
from app.storage.blobs import FolderStore, ImageStore
from tests.support.postgres import PostgresServer
from tests.support.process import Installation, free_port
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, collect, stored_image
from tests.support.snapshots import assert_snapshots_tell_all, write_snapshots

DAY = 86_400.0


def flip(path: Path, place: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def stored_file(service: Service, external_id: str) -> Path:
    digest = service.one(select(Case.stored_sha256).where(Case.external_id == external_id))
    return stored_image(service.context, digest)


@undone("F17", "a damaged image is never served", blobs, "require_digest", lambda *_: None)
@pytest.mark.parametrize("harm", ["flipped", "cut", "emptied", "removed"])
def test_a_damaged_image_is_never_served_and_the_same_pixels_heal_it(service: Service, harm: str) -> None:
    case = service.add_case("case-1", cell_png(1))
    path, image = stored_file(service, "case-1"), f"/v1/cases/{case['id']}/image"
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
    assert service.upload("case-1", cell_png(1)).status_code == 200  # the case is known
    assert service.get("viewer", image).content == whole
    assert service.faults() == []


def test_a_backup_names_damaged_images_and_goes_on(service: Service, tmp_path: Path) -> None:
    service.add_case("case-1", cell_png(1))
    flip(stored_file(service, "case-1"))
    written = write_backup(service.context, tmp_path / "backup")
    assert written["damaged"] == [stored_file(service, "case-1").name]
    assert check_backup(tmp_path / "backup")


def harm_snapshot(folder: Path, how: str) -> None:
    if how == "flipped":
        flip(folder / "pi.npy", -1)  # a number, behind the header
    elif how == "cut":
        path = folder / "pi.npy"
        path.write_bytes(path.read_bytes()[:-3])
    elif how == "emptied column":
        (folder / "pi.npy").write_bytes(b"")
    elif how == "emptied":
        (folder / "snapshot.json").write_text("")
    elif how == "other JSON":
        (folder / "snapshot.json").write_text("[]")
    else:
        (folder / "snapshot.json").write_text('{"version": 3}')


@pytest.mark.parametrize("how", ["flipped", "cut", "emptied column", "emptied", "other JSON", "without keys"])
def test_a_damaged_snapshot_is_not_used_but_named_and_written_anew(service: Service, how: str) -> None:
    service.before_change = lambda: None
    context = service.context
    collect(service, [cell_png(number) for number in range(3)], patients=True)
    write_snapshots(context)
    with context.database.read() as session:
        release = all_releases(session)[0]
        release_id, classes = release.id, class_codes(release)
    assert not refresh_snapshot(context, release_id, classes)
    folder = next((context.settings.home / "snapshots").glob("*/[0-9]*"))
    harm_snapshot(folder, how)
    assert service.get("viewer", "/v1/metrics", params={"partition": "all"}).status_code == 200
    assert_snapshots_tell_all(context)
    assert [fault for fault in service.faults() if "snapshot" in fault] != []
    assert refresh_snapshot(context, release_id, classes)
    assert service.faults() == []
    assert_snapshots_tell_all(context)
    assert not refresh_snapshot(context, release_id, classes)


def test_a_backup_that_fails_leaves_nothing_that_looks_like_one(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_case("case-1", cell_png(1))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "copytree", full)
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
    service.add_case("case-1", cell_png(1))
    used = stored_file(service, "case-1")
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
    old = [used, orphan, again, *unfinished, *(path.parent for path in unfinished[2:])]
    for path in old:
        os.utime(path, (time.time() - 2 * DAY,) * 2)
    context.images.put(b"pixels that come a second time")
    assert sweep_files(context) == 5
    assert [path.is_file() for path in (used, orphan, fresh, again, *unfinished)] == [True, False, True, True] + 4 * [
        False
    ]
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
