"""The law of every store of objects, for a folder and for a bucket of S3's protocol; and what a bucket adds."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.http.errors import NotFound, StorageFull
from app.storage.blobs import BlobStore, DamagedObjectError, FolderStore, digest_from_key
from app.storage.bucket import BucketStore, CachedBucket
from app.storage.bundles import SharedFolders
from tests.support.bucket import BucketServer

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
    data, failures = os.urandom(10_000), []

    def put() -> None:
        try:
            for _ in range(5):
                place.store.put(key_of(data), data)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
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


def test_a_large_object_comes_back_as_it_was(place: Place, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(1 << 20) * 70)
    digest = hashlib.sha256((tmp_path / "large").read_bytes()).hexdigest()
    key = f"imports/{digest}.zip"
    place.store.put(key, tmp_path / "large")
    assert place.store.intact(key)
    place.store.fetch(key, tmp_path / "back")
    assert hashlib.sha256((tmp_path / "back").read_bytes()).hexdigest() == digest


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
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
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


def test_a_folder_is_brought_as_a_whole_and_again_when_its_copy_is_damaged(bucket: str, tmp_path: Path) -> None:
    here, there = (SharedFolders(tmp_path / name, BucketStore(bucket)) for name in ("here", "there"))
    made = tmp_path / "made"
    made.mkdir()
    for name in ("card.json", "network.onnx"):
        (made / name).write_bytes(os.urandom(1000))
    assert not there.path("releases/1").exists()
    here.publish("releases/1", made)
    here.publish("releases/1", made)
    assert list(here.shared("releases")) == ["releases/1"]
    for _ in range(2):
        copy = there.path("releases/1")
        assert {name: (copy / name).read_bytes() for name in ("card.json", "network.onnx")} == {
            path.name: path.read_bytes() for path in made.iterdir()
        }
        (copy / "card.json").write_bytes(b"not what was brought")
    assert there.is_stored("releases/1")
    there.remove("releases/1")
    assert not there.is_stored("releases/1")
    assert not there.path("releases/1").exists()


def test_a_folder_of_which_no_copy_can_be_made_is_no_defect(bucket: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "card.json").write_bytes(b"{}")
    SharedFolders(tmp_path / "here", BucketStore(bucket)).publish("releases/1", made)
    (tmp_path / "there").write_text("in the way")
    with pytest.raises(StorageFull):
        SharedFolders(tmp_path / "there", BucketStore(bucket)).path("releases/1")
