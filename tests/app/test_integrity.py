"""Audit chain, image store, releases, readiness: what is changed or missing is found and named."""

from pathlib import Path

import pytest
from sqlalchemy import text

from app.audit.verify import verify_all
from app.database.engine import Database, wal_is_safe
from app.database.tables import drop_triggers
from app.http.errors import StorageFull
from app.releases.queries import get_champion_alias
from app.storage import blobs
from app.storage.blobs import FolderStore, ImageStore
from tests.support.sabotage import undone
from tests.support.service import Service


def verify(service: Service) -> list[str]:
    with service.context.database.read() as session:
        faults: list[str] = verify_all(session, service.context).faults
        return faults


def take_triggers_off(service: Service) -> None:
    """Whoever owns the table of events may do so; everything is linked before."""
    with service.context.database.write() as session:
        for statement in drop_triggers(session.get_bind().dialect.name, "audit_events"):
            session.execute(text(statement))


@pytest.mark.both_databases
def test_an_untouched_service_verifies(service: Service) -> None:
    service.outside_label(service.add_case()["id"], "r1", "blast")
    assert verify(service) == []


@pytest.mark.both_databases
def test_every_stored_thing_has_its_audit_event(service: Service) -> None:
    case = service.add_case()
    service.outside_label(case["id"], "r1", "blast")
    with service.context.database.read() as session:
        rows = session.execute(text("SELECT action, actor FROM audit_events ORDER BY sequence")).all()
    assert [tuple(row) for row in rows][-2:] == [("case.add", "admin"), ("label.add", "outside")]


@pytest.mark.both_databases
def test_a_changed_audit_event_is_named(service: Service) -> None:
    service.add_case()
    take_triggers_off(service)
    with service.context.database.write() as session:
        session.execute(text("UPDATE audit_events SET actor = 'somebody' WHERE sequence = 2"))
    assert verify(service) == ["audit event 2 was changed, or one before it was removed"]


@pytest.mark.both_databases
def test_a_cut_tail_of_the_audit_shows(service: Service) -> None:
    take_triggers_off(service)
    with service.context.database.write() as session:
        session.execute(text("DELETE FROM audit_events WHERE sequence = (SELECT max(sequence) FROM audit_events)"))
    service.written_past = True
    assert any("its head says" in fault for fault in verify(service))


def test_one_flipped_byte_in_an_image_or_a_release_is_named(service: Service) -> None:
    service.add_case()
    image = next(path for path in service.context.settings.images_folder.rglob("*") if path.is_file())
    network = next(service.context.settings.releases_folder.rglob("network.onnx"))
    for path in (image, network):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    faults = verify(service)
    assert len(faults) == 2
    assert image.name in faults[0]
    assert "network.onnx" in faults[1]


def test_a_release_that_breaks_on_disk_leaves_the_loaded_one_serving(service: Service) -> None:
    from app.releases.service import move_alias

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


def test_without_a_release_the_service_says_so(settings: object, database_url: str) -> None:
    from fastapi.testclient import TestClient

    from app.main import create_app

    with TestClient(create_app(settings)) as client:  # type: ignore[arg-type]
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
    from tests.support.service import cell_png

    response = service.upload("case-1", cell_png())
    assert (response.status_code, response.json()["type"]) == (507, "urn:secondread:problem:storage-full")
    assert service.get("viewer", "/v1/cases").json()["items"] == []


def test_the_journal_mode_follows_the_version(tmp_path: Path) -> None:
    from app.database.engine import sqlite_module

    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    with database.engine.connect() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    assert mode == ("wal" if wal_is_safe(sqlite_module().sqlite_version_info) else "delete")
    assert [wal_is_safe(v) for v in ((3, 44, 5), (3, 44, 6), (3, 51, 2), (3, 6, 9), (3, 53, 0))] == [
        False,
        True,
        False,
        True,
        True,
    ]


def test_openapi_names_every_error(service: Service) -> None:
    document = service.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            codes = set(operation["responses"])
            if path.startswith("/v1"):
                assert {"401", "403", "422", "429", "503"} <= codes, path
            if "requestBody" in operation and path in {"/v1/cases", "/v1/predictions"}:
                assert {"400", "413", "415"} <= codes
    assert "ProblemDocument" in document["components"]["schemas"]
