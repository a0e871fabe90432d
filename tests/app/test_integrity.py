"""Image store, releases, readiness, the device: what is changed, missing or unusable is found and named."""

from pathlib import Path

import pytest

from app.database.engine import Database, wal_is_safe
from app.http.errors import StorageFull
from app.releases.queries import get_champion_alias
from app.settings import Settings
from app.storage import blobs
from app.storage.blobs import FolderStore, ImageStore
from ml.release.device import cuda_fault
from tests.support.process import Installation
from tests.support.sabotage import undone
from tests.support.service import Service


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


@pytest.mark.usefixtures("no_cuda")
def test_readiness_says_where_the_network_runs(service: Service) -> None:
    assert service.get(None, "/readyz").json()["device"].startswith("cpu")


def test_cuda_here_and_a_network_elsewhere_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="DEVICE wants cuda here"):
        Settings(home=tmp_path, device="cuda", inference_url="http://127.0.0.1:1")
    assert Settings(home=tmp_path, inference_url="http://127.0.0.1:1").device == "auto"
