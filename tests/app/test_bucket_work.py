"""The law of every store of objects; and two processes, each with its HOME, with a bucket between them."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select

from app.context import build_context
from app.database.tables import Evaluation, new_id
from app.http.errors import NotFound, ServiceUnavailable, StorageFull
from app.imports import import_job
from app.imports.archive_storage import open_job_archive
from app.imports.import_job import delete_archives
from app.job_table import refresh_snapshots
from app.maintenance.backup import restore_backup, write_backup
from app.maintenance.cache import refresh_cache, sweep_files
from app.reports.frozen_evaluations import move_into_bucket
from app.settings import Settings
from app.storage.blobs import BlobStore, DamagedObjectError, FolderStore, digest_from_key
from app.storage.bucket import BucketStore, CachedBucket
from app.storage.bundles import SharedFolders
from ml.util.files import file_sha256
from tests.app.test_imports import check, packed, send
from tests.support.bucket import BucketServer
from tests.support.homes import process, settings_of
from tests.support.jobs import work_off
from tests.support.process import free_port
from tests.support.service import Service, cell_png, collect
from tests.support.snapshots import assert_snapshots_tell_all
from tests.support.waiting import patient

pytestmark = [pytest.mark.slow, pytest.mark.ci]

Two = tuple[Service, Service]
HTML = {"Accept": "text/html"}


def archives(*services: Service) -> list[str]:
    """Archives, and parts of them, wherever they lie."""
    here = [path for service in services for path in (service.context.settings.home / "imports").glob("*")]
    bucket = services[0].context.bucket
    assert bucket is not None
    return [str(path) for path in here] + [found.key for found in bucket.under("imports")]


def frozen(service: Service) -> str:
    return str(service.post("admin", "/v1/evaluations", json={"partition": "all"}).json()["id"])


def snapshots(service: Service) -> list[str]:
    return sorted(path.name for path in (service.context.settings.home / "snapshots").glob("*/[0-9]*"))


def test_a_worker_with_another_home_imports_what_was_sent_and_nothing_of_it_stays(two: Two) -> None:
    one, other = two
    import_id = send(one, packed({f"{i}.png": cell_png(i) for i in range(3)})).json()["id"]
    (key,) = archives(one, other)
    assert key.startswith(f"imports/{import_id}/")
    work_off(other.context)
    for service in two:
        assert service.get("admin", f"/v1/imports/{import_id}").json()["job"]["result"]["created"] == 3
    delete_archives(other.context)
    assert archives(one, other) == []
    assert one.faults() == []


def test_an_archive_that_no_job_takes_is_taken_back(two: Two) -> None:
    one, other = two
    data = packed({"a.png": cell_png()})
    first = send(one, data)
    headers = {"Content-Type": "application/zip", "Idempotency-Key": "the same"}
    answers = [service.post("admin", "/v1/imports", content=data, headers=headers).json()["id"] for service in two]
    assert answers[0] == answers[1]
    assert {key.split("/")[1] for key in archives(one, other)} == {first.json()["id"], answers[0]}
    assert send(one, data[:-20]).status_code == 422
    assert len(archives(one, other)) == 2


def test_what_was_checked_here_is_imported_there(two: Two) -> None:
    one, other = two
    path = check(one, packed({"a.png": cell_png()}))
    assert "<button" in other.call("admin", "GET", path, headers=HTML).text
    delete_archives(other.context)
    begun = other.call("admin", "POST", f"{path}/import", headers=HTML, follow_redirects=False).headers["location"]
    work_off(other.context)
    assert one.get("admin", f"/v1{begun}").json()["job"]["result"]["created"] == 1
    delete_archives(one.context)
    assert archives(one, other) == []
    again = one.call("admin", "POST", f"{path}/import", headers=HTML, follow_redirects=False)
    assert again.headers["location"] == begun


def test_a_worker_killed_while_it_imports_leaves_no_image_in_its_home(two: Two) -> None:
    one, other = two
    import_id = UUID(send(one, packed({"a.png": cell_png()})).json()["id"])
    with open_job_archive(other.context, import_id, None) as archive:
        assert list((other.context.settings.home / "imports").iterdir()) == []
        assert archive.read(archive.rows[0]) == cell_png()


def test_what_a_killed_server_left_goes_after_a_day(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two
    data = packed({"a.png": cell_png()})
    left = f"imports/{new_id()}/{hashlib.sha256(data).hexdigest()}.zip"
    assert one.context.bucket is not None
    one.context.bucket.put(left, data)
    assert delete_archives(other.context) == 0
    assert archives(one, other) == [left]
    monkeypatch.setattr(import_job, "_ORPHANED_SECONDS", -2.0)
    assert delete_archives(other.context) == 1
    assert archives(one, other) == []


def test_archives_in_the_bucket_count_for_the_quota(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two
    data = packed({"a.png": cell_png()})
    monkeypatch.setattr("app.imports.receiving._LARGEST_AT_ONCE", len(data) / 2**31)
    assert send(one, data).status_code == 202
    assert send(other, data).status_code == 202
    refused = send(other, data)
    assert refused.status_code == 507
    assert "other archives use" in refused.json()["detail"]


def test_a_frozen_evaluation_is_read_through_the_other(two: Two, bucket: str, buckets: BucketServer) -> None:
    one, other = two
    collect(one, [cell_png(i) for i in range(4)], patients=True)
    evaluation_id = frozen(one)
    work_off(other.context)
    pages = [service.get("viewer", f"/v1/evaluations/{evaluation_id}", headers=HTML) for service in two]
    assert [answer.status_code for answer in pages] == [200, 200]
    assert pages[0].content == pages[1].content
    assert one.faults() == []
    assert sweep_files(one.context, -2) == 0
    copies = [path for path in (one.context.settings.home / "evaluations").rglob("report.html")]
    copies[0].write_bytes(b"not what was stored")
    assert one.get("viewer", f"/v1/evaluations/{evaluation_id}", headers=HTML).content == pages[0].content
    (found,) = BucketStore(bucket).under("evaluations")
    buckets.overwrite(bucket, found.key, b"not what was stored")
    assert [fault.split(":")[0] for fault in one.faults()] == [f"evaluation {evaluation_id}"]


def test_what_a_killed_worker_left_of_an_evaluation_is_never_taken_and_swept(two: Two, bucket: str) -> None:
    one, other = two
    collect(one, [cell_png(i) for i in range(4)], patients=True)
    evaluation_id = frozen(one)
    work_off(one.context)
    left = one.context.settings.home / "left"
    left.mkdir()
    (left / "report.html").write_bytes(b"of an attempt before")
    one.context.folders.publish(f"evaluations/{evaluation_id}/{'0' * 64}", left)
    shown = other.get("viewer", f"/v1/evaluations/{evaluation_id}", headers=HTML)
    assert "of an attempt before" not in shown.text
    assert sweep_files(one.context, -2) == 1
    assert len(list(BucketStore(bucket).under("evaluations"))) == 1
    assert other.faults() == []


def test_a_snapshot_of_one_worker_is_used_by_all(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two
    collect(one, [cell_png(i) for i in range(4)], patients=True)
    before = one.document("/v1/metrics", partition="all")["metrics"]
    refresh_snapshots(other.context)
    first = snapshots(other)
    refresh_cache(one.context)
    assert snapshots(one) == first
    assert len(first) == 1
    with monkeypatch.context() as patched:
        patched.setattr("app.metrics.snapshot.load_dataset", None)  # nothing is read past the snapshot
        assert one.document("/v1/metrics", partition="all")["metrics"] == before
    one.add_case("later", cell_png(9))
    monkeypatch.setattr("app.metrics.snapshot._MAX_CHANGED_CASES", 0)
    refresh_snapshots(one.context)
    assert int(snapshots(one)[0]) > int(first[0])
    refresh_cache(other.context)
    assert snapshots(other) == snapshots(one)
    for service in two:
        assert_snapshots_tell_all(service.context)


def test_a_damaged_snapshot_is_named_discarded_and_written_anew(two: Two, bucket: str, buckets: BucketServer) -> None:
    one, other = two
    collect(one, [cell_png(i) for i in range(4)], patients=True)
    refresh_snapshots(one.context)
    refresh_cache(other.context)
    (copy,) = (other.context.settings.home / "snapshots").glob("*/[0-9]*")
    (copy / "pi.npy").write_bytes(b"not what was stored")
    assert [fault.split(":")[0] for fault in other.faults()] == [f"snapshot {copy}"]
    refresh_cache(other.context)
    assert other.faults() == []
    (found,) = BucketStore(bucket).under("snapshots")
    buckets.overwrite(bucket, found.key, b"not what was stored")
    assert [fault.split(":")[0] for fault in one.faults()] == [f"snapshot {found.key.rpartition('/')[0]} in the bucket"]
    shutil.rmtree(other.context.settings.home / "snapshots")
    refresh_cache(other.context)  # finds it damaged
    assert snapshots(other) == []
    assert_snapshots_tell_all(other.context)
    refresh_snapshots(one.context)
    refresh_cache(other.context)
    assert snapshots(other) == snapshots(one) != []
    assert one.faults() == other.faults() == []


def test_copies_stay_as_they_are_while_the_bucket_does_not_answer(
    two: Two, settings: Settings, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two
    collect(one, [cell_png(i) for i in range(4)], patients=True)
    refresh_snapshots(one.context)
    here, before = snapshots(one), one.document("/v1/metrics", partition="all")
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    cut_off = build_context(settings_of(settings, tmp_path / "one", bucket))
    with pytest.raises(ServiceUnavailable):
        refresh_cache(cut_off)
    cut_off.database.engine.dispose()
    assert snapshots(one) == here
    assert one.document("/v1/metrics", partition="all") == before


@pytest.mark.sqlite_only
def test_a_backup_comes_back_elsewhere(two: Two, settings: Settings, buckets: BucketServer, tmp_path: Path) -> None:
    one, other = two
    collect(one, [cell_png(i) for i in range(4)], patients=True)
    evaluation_id = frozen(one)
    work_off(other.context)
    shown = one.get("viewer", f"/v1/evaluations/{evaluation_id}", headers=HTML).content
    case = one.get("viewer", "/v1/cases").json()["items"][0]["id"]
    assert write_backup(one.context, tmp_path / "first")["damaged"] == []
    ring = one.context.settings.key_ring()
    into = buckets.create()
    for source, home, storage in (("first", "folder", None), ("second", "bucket", into)):
        url = f"sqlite:///{tmp_path / home / 'secondread.db'}"
        there = settings_of(settings, tmp_path / home, storage, url)
        store = storage and BucketStore(storage)
        restore_backup(tmp_path / source, there.home, there.home / "images", url, ring, store)
        context = build_context(there)
        assert move_into_bucket(context) == (storage is not None)
        assert move_into_bucket(context) == 0
        context.database.engine.dispose()
        with process(there, one.keys) as back:
            assert back.get("viewer", f"/v1/evaluations/{evaluation_id}", headers=HTML).content == shown
            assert back.get("admin", f"/v1/cases/{case}/image").status_code == 200
            assert back.faults() == []
            write_backup(back.context, tmp_path / "second" if storage is None else tmp_path / "third")
    assert (tmp_path / "third" / "evaluations" / evaluation_id / "report.html").read_bytes() == shown
    with pytest.raises(ValueError, match="not empty"):
        restore_backup(tmp_path / "first", tmp_path / "x", tmp_path / "x", "sqlite:///x", None, BucketStore(into))


def test_where_there_is_only_home_everything_lies_where_it_lay(service: Service) -> None:
    """A HOME of an earlier version goes on working: names and places are part of what an upgrade must not change."""
    home = service.context.settings.home
    collect(service, [cell_png(i) for i in range(4)], patients=True)
    import_id = send(service, packed({"a.png": cell_png(7)})).json()["id"]
    assert [path.name for path in (home / "imports").iterdir()] == [f"{import_id}.zip"]
    assert zipfile.is_zipfile(BytesIO((home / "imports" / f"{import_id}.zip").read_bytes()))
    evaluation_id = frozen(service)
    work_off(service.context)
    files = {path.name for path in (home / "evaluations" / evaluation_id).iterdir()}
    assert files == {"labels.parquet", "predictions.parquet", "report.html", "report.csv"}
    refresh_snapshots(service.context)
    release = service.get("viewer", "/v1/releases").json()["items"][0]["id"]
    (snapshot,) = (home / "snapshots" / release).iterdir()
    assert snapshot.name.isdigit()
    assert (snapshot / "snapshot.json").is_file()
    (row,) = service.scalars(select(Evaluation))
    assert row.id == UUID(evaluation_id)
    assert SharedFolders(home, None).path(f"evaluations/{evaluation_id}") == home / "evaluations" / evaluation_id
    assert service.faults() == []


def test_what_one_process_stores_another_reads(two: Two, tmp_path: Path) -> None:
    one, other = two
    assert one.get(None, "/readyz").json()["storage"] == "ok"
    assert other.get(None, "/readyz").json()["status"] == "ready"
    case = one.add_case("case-1", cell_png())
    again = other.add_case("case-2", cell_png(1))
    assert case["prediction"]["release"] == again["prediction"]["release"]
    for service in two:
        for shown in (case, again):
            image = service.get("admin", f"/v1/cases/{shown['id']}/image")
            assert (image.status_code, image.headers["content-type"]) == (200, "image/png")
    assert not any((tmp_path / name / "images").exists() for name in ("one", "two"))
    for path in (tmp_path / "two" / "cache").rglob("*"):
        if path.is_file():
            path.write_bytes(b"not what was stored")
    images = [service.get("admin", f"/v1/cases/{case['id']}/image").content for service in two]
    assert images[0] == images[1]
    assert sweep_files(one.context, -2) == 0
    assert other.faults() == []


def test_verify_names_what_is_damaged_in_the_bucket(two: Two, bucket: str, buckets: BucketServer) -> None:
    one, other = two
    one.add_case()
    store = BucketStore(bucket)
    for kind in ("images", "releases"):
        (found,) = store.under(kind)
        buckets.overwrite(bucket, found.key, b"not what was stored")
    faults = other.faults()
    assert [fault.split()[0] for fault in faults] == ["image", "release"]
    assert other.upload("case-2", cell_png()).status_code == 201  # the same pixels heal it
    assert [fault.split()[0] for fault in other.faults()] == ["release"]


def test_a_bucket_that_does_not_answer_is_told_and_nothing_is_acknowledged(
    two: Two, settings: Settings, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    away = settings_of(settings, tmp_path / "one", bucket)  # its HOME has a copy of nothing: the release is unknown
    with process(away, one.keys) as cut_off:
        ready = cut_off.get(None, "/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
        assert "is unavailable" in ready.json()["storage"]
        for refused in (cut_off.upload("case-1", cell_png()), send(cut_off, packed({"a.png": cell_png()}))):
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
    assert one.document("/v1/cases")["items"] == one.document("/v1/jobs")["items"] == []
    assert list((tmp_path / "one" / "imports").glob("*")) == []


DAY = 86_400.0


def key_of(data: bytes, kind: str = "images/") -> str:
    digest = hashlib.sha256(data).hexdigest()
    return f"{kind}{digest[:2]}/{digest}"


class Place:
    """A store, and a way past it."""

    def __init__(self, store: BlobStore, server: BucketServer | None = None, url: str = "") -> None:
        self.store, self._server, self.url = store, server, url

    def damage(self, key: str) -> None:
        if self._server is not None:
            self._server.overwrite(self.url, key, b"not what was stored")
        else:
            assert isinstance(self.store, FolderStore)
            self.store.path(key).write_bytes(b"not what was stored")


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return Place(FolderStore(tmp_path / "store", 0))
    url = request.getfixturevalue("bucket")
    return Place(BucketStore(url), request.getfixturevalue("buckets"), url)


def test_what_is_stored_is_read_listed_and_removed(place: Place, tmp_path: Path) -> None:
    keys = [key_of(data) for data in (b"one", b"two")]
    place.store.put(keys[0], b"one")
    (tmp_path / "two").write_bytes(b"two")
    place.store.put(keys[1], tmp_path / "two")
    (tmp_path / "large").write_bytes(os.urandom(1 << 20) * 70)
    large = f"imports/{file_sha256(tmp_path / 'large')}.zip"
    place.store.put(large, tmp_path / "large")
    assert place.store.intact(large)
    place.store.fetch(large, tmp_path / "back")
    assert file_sha256(tmp_path / "back") == file_sha256(tmp_path / "large")
    assert [place.store.get(key) for key in keys] == [b"one", b"two"]
    assert {found.key for found in place.store.under("images")} == set(keys)
    assert list(place.store.under("image")) == []
    assert all(0 <= found.age + 1 < 60 for found in place.store.under("images"))
    place.store.fetch(keys[1], tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"two"
    place.store.check()
    for _ in range(2):
        place.store.remove(keys[0])
    assert not place.store.intact(keys[0])
    with pytest.raises(NotFound):
        place.store.get(keys[0])
    with pytest.raises(NotFound):
        place.store.fetch(keys[0], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_many_who_store_the_same_at_once_store_it_once(place: Place) -> None:
    data = os.urandom(10_000)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: place.store.put(key_of(data), data), range(40)))
    assert [found.key for found in place.store.under("images")] == [key_of(data)]
    assert place.store.get(key_of(data)) == data


def test_a_damaged_object_is_never_handed_out_and_the_same_content_heals_it(place: Place, tmp_path: Path) -> None:
    key = key_of(b"pixels")
    place.store.put(key, b"pixels")
    place.damage(key)
    assert not place.store.intact(key)
    with pytest.raises(DamagedObjectError):
        place.store.get(key)
    with pytest.raises(DamagedObjectError):
        place.store.fetch(key, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    place.store.put(key, b"pixels")
    assert place.store.get(key) == b"pixels"


def test_a_sweep_takes_what_is_old_and_unused_and_loses_nothing_that_a_row_names(place: Place) -> None:
    used, orphan = key_of(b"of a row"), key_of(b"of nobody")
    for key, data in ((used, b"of a row"), (orphan, b"of nobody")):
        place.store.put(key, data)
    asked: list[str] = []

    def of_rows(digests: list[str]) -> set[str]:
        asked.extend(digests)
        return {digest_from_key(used)} & set(digests)

    assert place.store.sweep("images", of_rows, DAY) == 0
    assert asked == []
    time.sleep(0.01)
    for _ in range(2):  # a bucket moves it aside first
        place.store.sweep("images", of_rows, -2)
    assert place.store.get(used) == b"of a row"
    with pytest.raises(NotFound):
        place.store.get(orphan)


_PUT = """
import sys, hashlib
from pathlib import Path
from app.storage.blobs import FolderStore
from app.storage.bucket import BucketStore
data = Path(sys.argv[2]).read_bytes()
store = BucketStore(sys.argv[1]) if "://" in sys.argv[1] else FolderStore(Path(sys.argv[1]), 0)
print("begins", flush=True)
store.put(f"imports/{hashlib.sha256(data).hexdigest()}.zip", Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_who_is_killed_in_the_middle_of_storing_leaves_nothing_to_be_seen(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(1 << 20) * 70)
    digest = file_sha256(source)
    where = place.url or str(tmp_path / "store")
    for number in range(6):
        process = subprocess.Popen([sys.executable, "-c", _PUT, where, str(source)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = [stored.key for stored in place.store.under("imports")]
        assert found in ([], [f"imports/{digest}.zip"])
        if found:
            assert place.store.intact(found[0])
            place.store.remove(found[0])


def test_a_row_that_comes_after_the_sweep_finds_its_object(bucket: str) -> None:
    store, key = BucketStore(bucket), key_of(b"pixels")
    store.put(key, b"pixels")
    store.sweep("images", lambda digests: set(), -2)
    assert list(store.under("images")) == []
    assert store.get(key) == b"pixels"
    assert store.intact(key)
    store.sweep("images", lambda digests: set(), -2)
    store.remove(key)
    with pytest.raises(NotFound):
        store.get(key)


def test_copies_are_checked_bounded_and_may_be_deleted(bucket: str, tmp_path: Path) -> None:
    store = CachedBucket(bucket, tmp_path, 50_000, keep=3600)
    contents = [os.urandom(10_000) for _ in range(12)]
    for data in contents:
        store.put(key_of(data), data)
        assert store.get(key_of(data)) == data
    copies = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in copies) <= 50_000
    copies[0].write_bytes(b"not what was stored")
    copies[1].unlink()
    assert [store.get(key_of(data)) for data in contents] == contents
    old = next(path for path in tmp_path.rglob("*") if path.is_file())
    os.utime(old, (time.time() - 7200,) * 2)
    store.trim()
    assert not old.exists()


@pytest.fixture
def made(tmp_path: Path) -> dict[str, bytes]:
    files = {name: os.urandom(1000) for name in ("card.json", "network.onnx")}
    (tmp_path / "made").mkdir()
    for name, data in files.items():
        (tmp_path / "made" / name).write_bytes(data)
    return files


def test_a_folder_is_brought_whole_and_again_if_damaged(bucket: str, tmp_path: Path, made: dict[str, bytes]) -> None:
    here, there = (SharedFolders(tmp_path / name, BucketStore(bucket)) for name in ("here", "there"))
    assert not there.path("releases/1").exists()
    for _ in range(2):
        here.publish("releases/1", tmp_path / "made")
    assert list(here.shared("releases")) == ["releases/1"]
    for _ in range(2):
        copy = there.path("releases/1")
        assert {name: (copy / name).read_bytes() for name in made} == made
        (copy / "card.json").write_bytes(b"not what was brought")
    assert there.is_stored("releases/1")
    there.remove("releases/1")
    assert not there.is_stored("releases/1")
    assert not there.path("releases/1").exists()


@pytest.mark.usefixtures("made")
def test_a_folder_of_which_no_copy_can_be_made_is_no_defect(bucket: str, tmp_path: Path) -> None:
    SharedFolders(tmp_path / "here", BucketStore(bucket)).publish("releases/1", tmp_path / "made")
    (tmp_path / "there").write_text("in the way")
    with pytest.raises(StorageFull):
        SharedFolders(tmp_path / "there", BucketStore(bucket)).path("releases/1")


@pytest.mark.slow
def test_a_frozen_bucket_keeps_an_upload_for_ten_seconds(two: Two, buckets: BucketServer) -> None:
    one, _ = two
    assert one.upload("case-1", cell_png()).status_code == 201
    os.kill(buckets.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        assert one.upload("case-2", cell_png(1)).status_code == 503
        assert time.monotonic() - begun < 10 + patient(1)
    finally:
        os.kill(buckets.pid, signal.SIGCONT)
    assert one.upload("case-2", cell_png(1)).status_code == 201
