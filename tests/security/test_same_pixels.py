"""The same picture is the same one whatever has encoded it: asked by its pixels, never by the file that was stored."""

import re
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from PIL import Image
from sqlalchemy import select, text

from app import worker
from app.cases.queries import same_images
from app.cli import serving
from app.operations.earlier_images import compare_earlier, unknown_pixels
from app.operations.forgetting import forget_patient
from app.operations.verify import verify_all
from app.platform.errors import Unavailable
from app.tables import Case, CaseTwin
from tests.app.test_dry_run import checked
from tests.app.test_fields import around
from tests.app.test_leases import all_once, classes_of, commit, lease, set_policy
from tests.security.test_blind_by_image import judging, show
from tests.support.command import run_here
from tests.support.images import encode
from tests.support.service import Service, cell_png, pixels_of, stored_image

Upgrade = Callable[[], None]


def another_png(image: Image.Image) -> bytes:
    """What a later version of the encoder may make of the same pixels."""
    buffer = BytesIO()
    image.save(buffer, "PNG", compress_level=9)
    return buffer.getvalue()


@pytest.fixture
def upgrade_encoder(monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """From its call on, pictures are encoded in another way."""
    return lambda: monkeypatch.setattr("ml.images.picture.encode_png", another_png)


def rows(service: Service) -> dict[str, Case]:
    with service.context.database.read() as session:
        return {case.external_id: case for case in session.execute(select(Case)).scalars()}


def pairs(service: Service) -> set[tuple[str, str]]:
    names = {case.id: name for name, case in rows(service).items()}
    with service.context.database.read() as session:
        return {(names[row.case_id], names[row.twin_id]) for row in session.execute(select(CaseTwin)).scalars()}


def faults(service: Service) -> list[str]:
    with service.context.database.read() as session:
        return verify_all(session, service.context).faults


def forget_pixels(service: Service, *external_ids: str) -> None:
    """Make rows as an earlier version stored them: without digests of pixels, and without twins of another file."""
    with service.context.database.write() as session:
        found = session.execute(select(Case).where(Case.external_id.in_(external_ids))).scalars().all()
        for case in found:
            case.pixels_sha256 = case.field_pixels_sha256 = None
        ids = [case.id for case in found]
        for pair in session.execute(select(CaseTwin)).scalars():
            if pair.case_id in ids or pair.twin_id in ids:
                session.delete(pair)


@pytest.mark.both_databases
def test_a_picture_that_is_encoded_anew_is_a_twin(service: Service, upgrade_encoder: Upgrade) -> None:
    first = service.add_case("first", cell_png(3))
    service.add_case("other", cell_png(4))
    upgrade_encoder()
    second = service.add_case("second", cell_png(3))
    assert second["same_image_as"] == first["id"]
    found = rows(service)
    assert found["first"].stored_sha256 != found["second"].stored_sha256
    assert found["first"].partition == found["second"].partition
    assert pairs(service) == {("first", "second"), ("second", "first")}
    with service.context.database.read() as session:
        alike = same_images(session, [case.id for case in found.values()])
    assert {names[0][1] for names in alike.values()} == {"first", "second"}
    assert len(alike) == 2
    assert faults(service) == []


def test_a_grey_picture_is_the_same_with_one_channel_and_with_three(service: Service) -> None:
    """As a network that reads colours sees it."""
    grey = pixels_of(cell_png(3))[..., :1]
    first = service.add_case("one", encode(grey[..., 0]))
    assert service.add_case("three", encode(grey.repeat(3, axis=2)))["same_image_as"] == first["id"]


def test_the_check_of_an_import_sees_it(service: Service, upgrade_encoder: Upgrade, tmp_path: Path) -> None:
    service.add_case("first", cell_png(3))
    upgrade_encoder()
    source = tmp_path / "import"
    source.mkdir()
    for name in ("second", "third"):
        (source / f"{name}.png").write_bytes(cell_png(3))
    report: Any = checked(service, source)
    assert (report["created"], report["twins"]) == (2, 2)
    assert {row["detail"] for row in report["failures"]} == {"same image as first"}


@pytest.mark.both_databases
def test_who_saw_it_neither_reads_it_again_nor_answers_blind(service: Service, upgrade_encoder: Upgrade) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="after_commit")
    first = service.add_case("first", cell_png(3))
    assert service.answer("anna", first["id"], classes_of(service)[0]).json()["posterior"] is not None
    upgrade_encoder()
    second = service.add_case("second", cell_png(3))
    assert lease(service, "anna") is None
    assert service.answer("ben", second["id"], classes_of(service)[0]).json()["label"]["blind"] is True
    assert sorted(judging(service)) == ["anna", "ben"]


@pytest.mark.both_databases
def test_what_is_seen_meanwhile_makes_a_label_not_blind(service: Service, upgrade_encoder: Upgrade) -> None:
    all_once(service)
    service.add_case("first", cell_png(3))
    read = lease(service, "anna")
    assert read is not None
    upgrade_encoder()
    show(service, "anna", service.add_case("second", cell_png(3))["id"])
    label = commit(service, "anna", read, classes_of(service)[0]).json()["label"]
    assert (label["blind"], label["post_reveal"]) == (False, True)


def test_the_same_case_sent_again_is_known(service: Service, upgrade_encoder: Upgrade) -> None:
    first = service.add_case("first", cell_png(3), field=around())
    kept = stored_image(service.context, rows(service)["first"].stored_sha256).parent.parent
    files = set(kept.rglob("*"))
    upgrade_encoder()
    again = service.upload("first", cell_png(3), field=around())
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    assert set(kept.rglob("*")) == files  # and nothing is stored beside it
    assert service.upload("first", cell_png(4)).status_code == 409


@pytest.mark.both_databases
def test_a_damaged_image_heals_when_it_is_sent_again(service: Service, upgrade_encoder: Upgrade) -> None:
    case = service.add_case("first", cell_png(3), field=around())
    service.add_case("second", cell_png(3), field=around())  # has the same files
    row = rows(service)["first"]
    assert row.stored_field_sha256 is not None
    forget_pixels(service, "first")
    stored_image(service.context, row.stored_sha256).write_bytes(b"")
    stored_image(service.context, row.stored_field_sha256).unlink()
    upgrade_encoder()
    assert service.upload("first", cell_png(3), field=around()).status_code == 200
    served = service.get("viewer", f"/v1/cases/{case['id']}/image")
    assert (pixels_of(served.content) == pixels_of(cell_png(3))).all()
    assert compare_earlier(service.context) == (0, 0)
    assert pairs(service) == {("first", "second"), ("second", "first")}
    assert faults(service) == []


@pytest.mark.both_databases
def test_cases_of_earlier_versions_are_compared(service: Service, upgrade_encoder: Upgrade) -> None:
    """By the digest of their stored images' pixels, which an upgrade computes: in parts, once, with an event."""
    service.add_case("old", cell_png(3), field=around())
    service.add_case("older", cell_png(5))
    upgrade_encoder()
    service.add_case("new", cell_png(3))
    forget_pixels(service, "old", "older")
    before = {name: (case.partition, case.same_image_as) for name, case in rows(service).items()}
    assert pairs(service) == set()
    assert any("db upgrade" in fault for fault in faults(service))

    told: list[str] = []

    def interrupt(line: str) -> None:
        told.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_earlier(service.context, interrupt, batch=1)
    assert sum(case.pixels_sha256 is None for case in rows(service).values()) == 1
    assert compare_earlier(service.context, told.append, batch=1) == (1, 0)
    assert told == ["1 of 2 earlier images are compared", "1 of 1 earlier images are compared"]
    assert compare_earlier(service.context, told.append) == (0, 0)
    after = rows(service)
    assert after["old"].pixels_sha256 == after["new"].pixels_sha256 != after["older"].pixels_sha256
    assert after["old"].field_pixels_sha256 is not None
    assert pairs(service) == {("old", "new"), ("new", "old")}
    # what followed from a case when it was stored stays as it was
    assert {name: (case.partition, case.same_image_as) for name, case in after.items()} == before
    assert faults(service) == []


def test_twins_among_cases_of_earlier_versions_are_found(service: Service, upgrade_encoder: Upgrade) -> None:
    all_once(service)
    service.add_case("old", cell_png(3))
    upgrade_encoder()
    service.add_case("older", cell_png(3))
    forget_pixels(service, "old", "older")
    assert compare_earlier(service.context) == (2, 0)
    assert pairs(service) == {("old", "older"), ("older", "old")}
    assert lease(service, "anna") is not None
    assert lease(service, "anna") is None


@pytest.mark.both_databases
@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_an_image_that_cannot_be_read_is_named_and_found_by_its_file(service: Service, harm: str) -> None:
    first = service.add_case("old", cell_png(3))
    service.add_case("older", cell_png(5))
    forget_pixels(service, "old", "older")
    path = stored_image(service.context, rows(service)["old"].stored_sha256)
    path.write_bytes(b"\x89PNG") if harm == "damaged" else path.unlink()
    assert compare_earlier(service.context) == (1, 1)
    assert rows(service)["old"].pixels_sha256 is None
    assert len(faults(service)) == 2
    assert any(re.search(r"case .*: which picture it is nobody knows", fault) for fault in faults(service))
    again = service.add_case("again", cell_png(3))  # its file is there again, too
    assert again["same_image_as"] == first["id"]
    assert pairs(service) == {("old", "again"), ("again", "old")}
    with service.context.database.read() as session:
        alike = same_images(session, [UUID(first["id"])])
    assert {name for _, name in alike[UUID(first["id"])]} == {"again"}
    assert compare_earlier(service.context) == (1, 0)
    assert faults(service) == []


def test_a_store_that_does_not_answer_is_no_damaged_image(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.add_case("old", cell_png(3))
    forget_pixels(service, "old")

    def away(_digest: str) -> bytes:
        raise Unavailable("the bucket does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(service.context.images, "find", away)
        with pytest.raises(Unavailable):
            compare_earlier(service.context)
    assert compare_earlier(service.context) == (1, 0)


@pytest.mark.both_databases
def test_what_is_erased_or_compared_while_images_are_decoded_stays_so(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_case("old", cell_png(3), patient="p")
    service.add_case("erased", cell_png(4), patient="q")
    forget_pixels(service, "old", "erased")
    find = service.context.images.find

    def meanwhile(digest: str) -> bytes | None:
        with monkeypatch.context() as undone:
            undone.setattr(service.context.images, "find", find)
            data = find(digest)
            if "erased" in rows(service):
                forget_patient(service.context, "admin", "q", "asked to")
                compare_earlier(service.context)
        return data

    with monkeypatch.context() as patched:
        patched.setattr(service.context.images, "find", meanwhile)
        compare_earlier(service.context)
    assert rows(service)["old"].pixels_sha256 is not None
    (erased,) = [case for case in rows(service).values() if case.erased_at is not None]
    assert (erased.pixels_sha256, erased.field_pixels_sha256) == (None, None)
    assert faults(service) == []


@pytest.mark.both_databases
def test_erasing_names_who_else_has_the_picture(service: Service, upgrade_encoder: Upgrade) -> None:
    service.add_case("first", cell_png(3), patient="p", field=around())
    upgrade_encoder()
    second = service.add_case("second", cell_png(3), patient="q")
    third = service.add_case("third", cell_png(4), patient="q", field=around())
    stored = rows(service)["second"].stored_sha256
    report = forget_patient(service.context, "admin", "p", "asked to")
    assert sorted(report.shared) == sorted([second["id"], third["id"]])
    assert report.images == 2  # the files of the other encoder
    assert service.context.images.intact(stored)
    erased = next(case for case in rows(service).values() if case.erased_at is not None)
    assert (erased.pixels_sha256, erased.field_pixels_sha256) == (None, None)
    assert faults(service) == []


@pytest.mark.both_databases
def test_a_start_looks_for_such_cases_by_an_index_of_them(service: Service) -> None:

    dialect = service.context.database.engine.dialect
    statement = unknown_pixels(UUID(int=0)).compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    explain = "EXPLAIN QUERY PLAN " if dialect.name == "sqlite" else "EXPLAIN "
    with service.context.database.read() as session:
        if dialect.name == "postgresql":
            session.execute(text("SET LOCAL enable_seqscan = off"))
        plan = " ".join(str(row) for row in session.execute(text(explain + str(statement))))
    assert "ix_cases_unknown_pixels" in plan


def test_what_somebody_changed_before_stays_named(service: Service) -> None:
    """No event vouches for a row that is not as its last event says."""
    service.add_case("old", cell_png(3))
    service.add_case("older", cell_png(3))
    forget_pixels(service, "old", "older")
    service.written_past = True
    with service.context.database.write() as session:
        session.execute(text("UPDATE cases SET site = 'elsewhere' WHERE external_id = 'old'"))
    assert compare_earlier(service.context) == (2, 0)
    found = rows(service)
    assert found["old"].pixels_sha256 == found["older"].pixels_sha256 is not None
    assert pairs(service) == {("old", "older"), ("older", "old")}
    (fault,) = faults(service)
    assert re.fullmatch(rf"cases {found['old'].id}: not as audit event \d+ wrote it", fault)


@pytest.mark.parametrize("by", ["upgrade", "server", "worker", "import", "check of an import"])
def test_whoever_begins_compares_first(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by: str
) -> None:
    """Also after an upgrade that was interrupted, and before anything is served or stored."""
    service.add_case("old", cell_png(3))
    forget_pixels(service, "old")
    if by == "upgrade":
        serving._upgrade(service.context)
    elif by == "server":
        serving._prepare(service.client.app)  # type: ignore[arg-type]
    elif by == "worker":
        executor = worker._start(service.context, threading.Event())
        assert executor is not None
        executor.stop()
    else:
        monkeypatch.setattr("app.context.build_context", lambda *_: service.context)
        monkeypatch.setattr("app.settings.read_settings", lambda: service.context.settings)
        monkeypatch.setattr(service.context.inference, "close", lambda: None)
        (tmp_path / "new.png").write_bytes(cell_png(4))
        done = run_here("import", tmp_path, *(["--dry-run"] if by != "import" else []))
        assert done.returncode == 0, done.stderr
    assert rows(service)["old"].pixels_sha256 is not None
    assert faults(service) == []
