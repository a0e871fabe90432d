"""Processes with HOMEs of their own, one database and one bucket: images and releases are the same for all of them."""

from pathlib import Path

import pytest

from app.audit.verify import verify_all
from app.maintenance.backup import restore_backup, write_backup
from app.maintenance.cache import sweep_files
from app.settings import Settings
from app.storage.bucket import BucketStore
from tests.support.bucket import BucketServer
from tests.support.homes import process, settings_of
from tests.support.process import free_port
from tests.support.service import Service, cell_png


def test_what_one_process_stores_another_reads(two: tuple[Service, Service], tmp_path: Path) -> None:
    one, other = two
    assert one.get(None, "/readyz").json()["storage"] == "ok"
    assert other.get(None, "/readyz").json()["status"] == "ready"
    case = one.add_case("case-1", cell_png())
    again = other.add_case("case-2", cell_png(1))
    assert (case["prediction"]["release"], again["prediction"]["release"]) == 2 * (case["prediction"]["release"],)
    for service in two:
        for shown in (case, again):
            image = service.get("admin", f"/v1/cases/{shown['id']}/image")
            assert (image.status_code, image.headers["content-type"]) == (200, "image/png")
    assert not any((tmp_path / name / "images").exists() for name in ("one", "two"))
    for path in (tmp_path / "two" / "cache").rglob("*"):
        if path.is_file():
            path.write_bytes(b"not what was stored")
    assert other.get("admin", f"/v1/cases/{case['id']}/image").content == (
        one.get("admin", f"/v1/cases/{case['id']}/image").content
    )
    assert sweep_files(one.context, -2) == 0
    with other.context.database.read() as session:
        assert verify_all(session, other.context).faults == []


def test_verify_names_what_is_damaged_in_the_bucket(
    two: tuple[Service, Service], bucket: str, buckets: BucketServer
) -> None:
    one, other = two
    one.add_case()
    store = BucketStore(bucket)
    for kind in ("images", "releases"):
        (found,) = store.under(kind)
        buckets.overwrite(bucket, found.key, b"not what was stored")
    with other.context.database.read() as session:
        faults = verify_all(session, other.context).faults
    assert [fault.split()[0] for fault in faults] == ["image", "release"]
    assert other.upload("case-2", cell_png()).status_code == 201  # the same pixels heal it
    with other.context.database.read() as session:
        assert [fault.split()[0] for fault in verify_all(session, other.context).faults] == ["release"]


def test_a_bucket_that_does_not_answer_is_told_and_nothing_is_acknowledged(
    two: tuple[Service, Service], settings: Settings, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    away = settings_of(settings, tmp_path / "one", bucket)  # its HOME has a copy of nothing: the release is unknown
    with process(away, one.keys) as cut_off:
        ready = cut_off.get(None, "/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
        assert "does not answer" in ready.json()["storage"]
        refused = cut_off.upload("case-1", cell_png())
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
    assert one.get("viewer", "/v1/cases").json()["items"] == []


def test_a_backup_has_the_bucket_and_comes_back_into_another(
    two: tuple[Service, Service], settings: Settings, buckets: BucketServer, tmp_path: Path
) -> None:
    one, other = two
    case = one.add_case()
    made = write_backup(other.context, tmp_path / "backup")
    assert made["damaged"] == []
    second, home = buckets.create(), tmp_path / "restored"
    url = f"sqlite:///{home / 'secondread.db'}"
    restore_backup(
        tmp_path / "backup", home, home / "images", url, other.context.settings.key_ring(), BucketStore(second)
    )
    with process(settings_of(settings, tmp_path / "three", second, url), one.keys) as back:
        assert back.get(None, "/readyz").json()["status"] == "ready"
        assert back.get("admin", f"/v1/cases/{case['id']}/image").status_code == 200
        with back.context.database.read() as session:
            assert verify_all(session, back.context).faults == []
    with pytest.raises(ValueError, match="not empty"):
        restore_backup(
            tmp_path / "backup",
            tmp_path / "four",
            tmp_path / "four" / "images",
            "sqlite:///x",
            None,
            BucketStore(second),
        )
