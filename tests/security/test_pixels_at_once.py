"""Twins are linked, and pairs of the erased are gone, whoever stores, compares or erases at the same moment."""

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from PIL import Image
from sqlalchemy import text

from app.cases import ingest, specimen_rows
from app.cases import service as cases
from app.cli.imports import import_local
from app.database.tables import CaseTwin
from app.job_table import FUNCTIONS
from app.maintenance import erasure, erasure_registry
from app.maintenance.erasure import erase_patient_everywhere
from ml.images.preprocess import decode_image
from tests.app.test_fields import around
from tests.security.test_blind_by_image import Upgrade, pairs, rows, upgrade_encoder
from tests.support.service import Service, cell_png, stored_image
from tests.support.statements import counted
from tests.support.waiting import patient, wait_until

__all__ = ["upgrade_encoder"]


class Paused:
    """A function that stops before it returns, until it is let go."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        answer = self.function(*arguments, **options)
        if not self.reached.is_set():  # the first one only
            self.reached.set()
            self.go.wait(patient(30))
        return answer


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], Paused]:
    """A function of a module is paused from now on."""

    def replace(module: Any, name: str) -> Paused:
        pause = Paused(getattr(module, name))
        monkeypatch.setattr(module, name, pause)
        return pause

    return replace


@contextmanager
def meanwhile(
    service: Service, pause: Paused, first: Callable[[], Any]
) -> Iterator[Callable[[Callable[[], Any]], "Future[Any]"]]:
    """One thing stops in its transaction until another one has ended, or waits for it; both end with the block."""
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(first)
        assert pause.reached.wait(patient(30)), running

        def beside(second: Callable[[], Any]) -> "Future[Any]":
            other = pool.submit(second)
            wait_until(lambda: other.done() or somebody_waits(service))
            pause.go.set()
            return other

        try:
            yield beside
        finally:
            pause.go.set()
            running.result(patient(60))


def somebody_waits(service: Service) -> bool:
    """Whether a transaction waits for another one's lock; on SQLite for its turn to write."""
    if service.context.database.engine.dialect.name == "sqlite":
        writers = service.context.database.writers
        assert writers is not None
        return writers.count_use().waiting > 0
    with service.context.database.read() as session:
        waiting = text(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity "
            "WHERE datname = current_database())"
        )
        return bool(session.execute(waiting).scalar_one())


def tombstone(service: Service) -> UUID:
    (erased,) = [case.id for case in rows(service).values() if case.erased_at is not None]
    return erased


@pytest.mark.both_databases
def test_two_uploads_of_one_picture_at_once_are_twins(service: Service, paused: Callable[[Any, str], Paused]) -> None:
    pause = paused(ingest, "plan_case")
    with meanwhile(service, pause, lambda: service.add_case("one", cell_png(3), patient="p")) as beside:
        other = beside(lambda: service.add_case("two", cell_png(3), patient="q"))
        assert other.result()["same_image_as"] == str(rows(service)["one"].id)
    assert pairs(service) == {("one", "two"), ("two", "one")}
    assert service.faults() == []


@pytest.mark.both_databases
def test_of_two_cells_at_once_a_specimen_takes_the_last_that_fits(
    service: Service, monkeypatch: pytest.MonkeyPatch, paused: Callable[[Any, str], Paused]
) -> None:
    monkeypatch.setattr(specimen_rows, "MOST_CELLS", 2)
    specimen = service.add_case("one", cell_png(3), specimen="S-1")["specimen"]
    pause = paused(ingest, "plan_case")
    with meanwhile(service, pause, lambda: service.add_case("two", cell_png(4), specimen="S-1")) as beside:
        other = beside(lambda: service.upload("three", cell_png(5), specimen=specimen))
        assert other.result().status_code == 409
    assert set(rows(service)) == {"one", "two"}


@pytest.mark.both_databases
def test_uploads_of_different_pictures_do_not_wait_for_each_other(
    service: Service, database_kind: str, paused: Callable[[Any, str], Paused]
) -> None:
    pause = paused(ingest, "plan_case")
    first = functools.partial(service.add_case, "one", cell_png(3), patient="p")
    with meanwhile(service, pause, first), ThreadPoolExecutor(1) as pool:
        other = pool.submit(service.add_case, "two", cell_png(4), patient="q")
        if database_kind == "postgresql":  # SQLite has one writer
            other.result(patient(60))
        pause.go.set()
    assert set(rows(service)) == {"one", "two"}
    assert pairs(service) == set()


@pytest.mark.both_databases
def test_a_twin_that_is_erased_meanwhile_is_in_no_pair(
    service: Service, upgrade_encoder: Upgrade, paused: Callable[[Any, str], Paused]
) -> None:
    service.add_case("twin", cell_png(3), patient="q")
    upgrade_encoder()
    pause = paused(erasure_registry, "_record_erasure")
    erase = functools.partial(erase_patient_everywhere, service.context, "admin", "q", "asked to")
    with meanwhile(service, pause, erase) as beside:
        beside(lambda: service.add_case("other", cell_png(3), patient="p")).result()
    assert tombstone(service)
    assert pairs(service) == set()
    assert rows(service)["other"].pixels_sha256 is not None
    assert service.faults() == []


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_an_import_waits_for_all_its_pictures_at_once_and_in_one_order(service: Service, tmp_path: Path) -> None:
    """Of two that store the same pictures in another order each would else wait for the other one."""
    for number in range(5):
        (tmp_path / f"case-{number}.png").write_bytes(cell_png(number))
    with counted(service.context.database) as statements:
        assert import_local(service.context, FUNCTIONS, tmp_path, "admin", print)["created"] == 5
    assert sum("pg_advisory_xact_lock(number)" in statement for statement in statements) == 1


@pytest.mark.both_databases
def test_pairs_that_are_missing_or_of_somebody_erased_are_named(service: Service) -> None:
    service.add_case("one", cell_png(3), patient="p")
    service.add_case("two", cell_png(3), patient="q")
    service.add_case("three", cell_png(4), patient="r")
    assert service.faults() == []
    erase_patient_everywhere(service.context, "admin", "r", "asked to")
    found = rows(service)
    one, two, erased = found["one"].id, found["two"].id, tombstone(service)
    with service.context.database.write() as session:
        session.delete(session.get_one(CaseTwin, (one, two)))
        session.add_all([CaseTwin(case_id=erased, twin_id=two), CaseTwin(case_id=two, twin_id=erased)])
    named = service.faults()
    assert len(named) == 2
    assert any(str(one) in fault and str(two) in fault and "same picture" in fault for fault in named)
    assert any(str(erased) in fault and str(two) in fault and "erased" in fault for fault in named)
    service.written_past = True


@pytest.mark.both_databases
def test_a_picture_that_was_erased_while_it_was_prepared_again_is_asked_for_once_more(
    service: Service, paused: Callable[[Any, str], Paused]
) -> None:
    """Its file had been there when it was to be stored, so that nothing was written, and went with the other one."""
    service.add_case("one", cell_png(3), patient="p")
    uploaded: list[Any] = []
    with meanwhile(service, paused(cases, "prepare_case"), lambda: uploaded.append(service.upload("two", cell_png(3)))):
        assert erase_patient_everywhere(service.context, "lead", "p", "asked").images == 1
    (answer,) = uploaded
    assert (answer.status_code, answer.headers.get("retry-after")) == (503, "5"), answer.text
    assert "send it again" in answer.text
    case = service.add_case("two", cell_png(3))
    assert service.get("viewer", f"/v1/cases/{case['id']}/image").status_code == 200
    assert service.faults() == []


@pytest.mark.both_databases
def test_a_picture_that_is_stored_again_before_the_erased_file_is_removed_keeps_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_case("one", cell_png(3), patient="p")
    removed, stored = erasure._remove_image_file, []

    def late(context: Any, digest: str) -> bool:
        stored.append(service.add_case("two", cell_png(3)))
        return removed(context, digest)

    monkeypatch.setattr(erasure, "_remove_image_file", late)
    assert erase_patient_everywhere(service.context, "lead", "p", "asked").images == 0
    assert service.get("viewer", f"/v1/cases/{stored[0]['id']}/image").status_code == 200
    assert service.faults() == []


@pytest.mark.both_databases
@pytest.mark.parametrize("what", ["image", "field"])
def test_other_pixels_never_take_the_place_of_a_damaged_image(
    service: Service, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As where a later version of a decoder makes different pixels of the same upload."""
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
    assert "different pixels" in answer.json()["detail"]
    for row in rows(service).values():
        assert (row.stored_sha256, row.pixels_sha256) == (before.stored_sha256, before.pixels_sha256)
        assert row.stored_field_sha256 == before.stored_field_sha256
    assert any(damaged in fault for fault in service.faults())
    stored_image(service.context, damaged).write_bytes(whole)
    assert service.get("viewer", f"/v1/cases/{case['id']}/image").status_code == 200
    assert service.faults() == []
