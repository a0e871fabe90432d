"""Images that cannot be read stop nothing: not a start, not a command, and not the comparison of the others."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app import worker
from app.cli import serving
from app.cli.shared import compare_first, parts
from app.operations import earlier_images
from app.operations.earlier_images import compare_earlier
from app.platform.blob_store import FolderStore
from app.platform.bucket import Bucket
from app.platform.errors import Unavailable
from app.settings import Settings
from ml.images.preprocess import decode_image
from tests.app.test_fields import around
from tests.security.test_same_pixels import faults, forget_pixels, pairs, rows
from tests.support.command import run_here
from tests.support.homes import process, settings_of
from tests.support.process import free_port
from tests.support.service import Service, cell_png, stored_image
from tests.support.waiting import wait_until


@pytest.fixture
def one_unreadable(service: Service) -> str:
    """Two earlier cases; in the place of the first one's file is a folder. Gives the name of the file."""
    service.add_case("old", cell_png(3))
    service.add_case("older", cell_png(5))
    forget_pixels(service, "old", "older")
    path = stored_image(service.context, rows(service)["old"].stored_sha256)
    path.unlink()
    path.mkdir()
    return path.name


def begins(service: Service) -> dict[str, Callable[[], Any]]:
    """Whoever compares earlier images, by name."""

    def work() -> None:
        executor = worker._start(service.context, threading.Event())
        assert executor is not None
        executor.stop()

    return {
        "upgrade": lambda: serving._upgrade(service.context),
        "server": lambda: serving._prepare(service.client.app),  # type: ignore[arg-type]
        "worker": work,
        "import": lambda: compare_first(service.context),
    }


@pytest.mark.usefixtures("one_unreadable")
@pytest.mark.parametrize("by", ["upgrade", "server", "worker", "import"])
def test_one_image_that_cannot_be_read_stops_nobody(service: Service, by: str) -> None:
    begins(service)[by]()
    assert {name: case.pixels_sha256 is None for name, case in rows(service).items()} == {"old": True, "older": False}


def test_verify_names_it(service: Service, one_unreadable: str) -> None:
    assert compare_earlier(service.context) == (1, 1)
    old = rows(service)["old"].id
    assert faults(service) == [
        f"case {old}: which picture it is nobody knows; sent again, it is found only as the same file",
        f"image {one_unreadable} is missing or was changed",
    ]


def test_an_error_of_the_disk_is_that_of_one_image(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.add_case("old", cell_png(3))
    service.add_case("older", cell_png(5))
    forget_pixels(service, "old", "older")
    broken, read = stored_image(service.context, rows(service)["old"].stored_sha256), Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == broken:
            raise OSError(5, "Input/output error")
        return read(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", failing)
        assert compare_earlier(service.context) == (1, 1)
    assert compare_earlier(service.context) == (1, 0)  # it was for a moment


def test_an_object_that_a_bucket_refuses_is_one_image(
    two: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = two
    one.add_case("old", cell_png(3))
    one.add_case("older", cell_png(5))
    forget_pixels(one, "old", "older")
    refused, read = rows(one)["old"].stored_sha256, Bucket._read

    def refusing(store: Bucket, key: str) -> bytes:
        if refused in key:
            raise Unavailable("the object store does not answer, or refuses; try again shortly")
        return read(store, key)

    monkeypatch.setattr(Bucket, "_read", refusing)
    assert compare_earlier(one.context) == (1, 1)
    assert {name for name, case in rows(one).items() if case.pixels_sha256 is None} == {"old"}
    assert faults(one) == [
        f"case {rows(one)['old'].id}: which picture it is nobody knows; sent again, it is found only as the same file",
        f"image {refused} cannot be read",
    ]


@pytest.mark.parametrize("by", ["upgrade", "server", "worker", "import"])
def test_a_bucket_that_is_away_puts_the_comparison_off_and_stops_no_start(
    two: tuple[Service, Service],
    settings: Settings,
    tmp_path: Path,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    by: str,
) -> None:
    one, _ = two
    one.add_case("old", cell_png(3))
    forget_pixels(one, "old")
    home = settings_of(settings, tmp_path / "one", bucket)
    with monkeypatch.context() as patched:
        patched.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{free_port()}")
        with process(home, one.keys) as cut_off:
            with pytest.raises(Unavailable):
                compare_earlier(cut_off.context)
            begins(cut_off)[by]()
    if by != "worker":
        assert "earlier images are not compared yet" in capsys.readouterr().err
    assert rows(one)["old"].pixels_sha256 is None
    assert compare_earlier(one.context) == (1, 0)


def test_a_worker_compares_what_was_put_off_once_the_store_answers(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_case("old", cell_png(3))
    forget_pixels(service, "old")
    away, stop = threading.Event(), threading.Event()
    away.set()

    def check(_: FolderStore) -> None:
        if away.is_set():
            raise Unavailable("the store does not answer")

    monkeypatch.setattr(FolderStore, "check", check)
    monkeypatch.setattr(worker, "_AGAIN_SECONDS", 0.05)
    running = threading.Thread(target=worker.run, args=(service.context, stop))
    running.start()
    try:
        wait_until(lambda: service.context.database and service.get("admin", "/readyz").json()["worker"] == "ok")
        assert rows(service)["old"].pixels_sha256 is None
        away.clear()
        wait_until(lambda: rows(service)["old"].pixels_sha256 is not None)
    finally:
        stop.set()
        running.join()


@pytest.mark.usefixtures("one_unreadable")
def test_a_command_that_stores_no_case_compares_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.context.build_context", lambda *_: service.context)
    monkeypatch.setattr("app.settings.read_settings", lambda: service.context.settings)
    monkeypatch.setattr(service.context.inference, "close", lambda: None)
    with parts():
        pass
    assert rows(service)["older"].pixels_sha256 is None
    done = run_here("key", "list")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["image", "field"])
def test_what_cannot_be_read_costs_no_audit_and_no_transaction_again(
    service: Service, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    service.add_case("old", cell_png(3), field=around())
    service.add_case("other", cell_png(4))
    forget_pixels(service, "old")
    row = rows(service)["old"]
    unreadable = row.stored_sha256 if what == "image" else row.stored_field_sha256
    assert unreadable is not None
    stored_image(service.context, unreadable).unlink()
    told: list[str] = []
    assert compare_earlier(service.context, told.append) == (1, 1)
    done = {name: 0 for name in ("_unproven", "_write", "decode_image")}

    def counting(name: str) -> Callable[..., Any]:
        function = getattr(earlier_images, name)

        def call(*arguments: Any) -> Any:
            done[name] += 1
            return function(*arguments)

        return call

    for name in done:
        monkeypatch.setattr(earlier_images, name, counting(name))
    for _ in range(3):
        assert compare_earlier(service.context, told.append) == (0, 1)
    assert done == {"_unproven": 0, "_write": 0, "decode_image": 0}
    assert told == 4 * ["1 of 1 earlier images are compared, 1 cannot be read"]


@pytest.mark.both_databases
@pytest.mark.parametrize("what", ["image", "field"])
def test_other_pixels_never_take_the_place_of_a_damaged_image(
    service: Service, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As where a later version of a decoder makes other pixels of the same upload."""
    case = service.add_case("first", cell_png(3), field=around())
    service.add_case("second", cell_png(3), field=around())
    before = rows(service)["first"]
    damaged = before.stored_sha256 if what == "image" else before.stored_field_sha256
    assert damaged is not None
    whole = stored_image(service.context, damaged).read_bytes()
    stored_image(service.context, damaged).write_bytes(b"")
    size = (before.width, before.height)

    def of_a_later_version(data: bytes) -> Image.Image:
        image = decode_image(data)
        return image.point(lambda value: value ^ 1) if (image.size == size) == (what == "image") else image

    with monkeypatch.context() as patched:
        patched.setattr("ml.images.picture.decode_image", of_a_later_version)
        answer = service.upload("first", cell_png(3), field=around())
    assert answer.status_code == 409
    assert "damaged" in answer.json()["detail"]
    assert "other pixels" in answer.json()["detail"]
    for row in rows(service).values():
        assert (row.stored_sha256, row.pixels_sha256) == (before.stored_sha256, before.pixels_sha256)
        assert row.stored_field_sha256 == before.stored_field_sha256
    assert any(damaged in fault for fault in faults(service))
    assert not any("another picture" in fault for fault in faults(service))
    stored_image(service.context, damaged).write_bytes(whole)
    assert service.get("viewer", f"/v1/cases/{case['id']}/image").status_code == 200
    assert faults(service) == []


@pytest.mark.both_databases
def test_a_file_of_which_another_case_knows_the_pixels_is_not_replaced_by_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_case("first", cell_png(3))
    service.add_case("second", cell_png(3))
    before = rows(service)["second"]
    forget_pixels(service, "first")
    stored_image(service.context, before.stored_sha256).write_bytes(b"")
    with monkeypatch.context() as patched:
        patched.setattr(
            "ml.images.picture.decode_image", lambda data: decode_image(data).point(lambda value: value ^ 1)
        )
        assert service.upload("first", cell_png(3)).status_code == 409
    assert {row.stored_sha256 for row in rows(service).values()} == {before.stored_sha256}
    assert service.upload("first", cell_png(3)).status_code == 200
    assert compare_earlier(service.context) == (1, 0)
    assert pairs(service) == {("first", "second"), ("second", "first")}
    assert faults(service) == []
