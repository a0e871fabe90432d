"""The same picture is the same one whatever has encoded it: asked by its pixels, never by the file that was stored."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sqlalchemy import select

from app.audit.verify import verify_all
from app.cases.queries import same_images
from app.database.tables import Case, CaseTwin
from app.maintenance.erasure import erase_patient_everywhere
from tests.app.test_dry_run import checked
from tests.app.test_fields import around
from tests.app.test_leases import all_once, classes_of, commit, lease, set_policy
from tests.security.test_blind_by_image import judging, show
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


def test_who_saw_it_neither_reads_it_again_nor_answers_blind(service: Service, upgrade_encoder: Upgrade) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="after_commit")
    first = service.add_case("first", cell_png(3))
    assert service.answer("anna", first["id"], classes_of(service)[0]).json()["posterior"] is not None
    upgrade_encoder()
    second = service.add_case("second", cell_png(3))
    assert lease(service, "anna") is None
    assert service.answer("ben", second["id"], classes_of(service)[0]).json()["label"]["blind"] is True
    assert sorted(judging(service)) == ["anna", "ben"]


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


def test_a_damaged_image_heals_when_it_is_sent_again(service: Service, upgrade_encoder: Upgrade) -> None:
    case = service.add_case("first", cell_png(3), field=around())
    service.add_case("second", cell_png(3), field=around())  # has the same files
    row = rows(service)["first"]
    assert row.stored_field_sha256 is not None
    stored_image(service.context, row.stored_sha256).write_bytes(b"")
    stored_image(service.context, row.stored_field_sha256).unlink()
    upgrade_encoder()
    assert service.upload("first", cell_png(3), field=around()).status_code == 200
    served = service.get("viewer", f"/v1/cases/{case['id']}/image")
    assert (pixels_of(served.content) == pixels_of(cell_png(3))).all()
    assert pairs(service) == {("first", "second"), ("second", "first")}
    assert faults(service) == []


@pytest.mark.both_databases
def test_erasing_names_who_else_has_the_picture(service: Service, upgrade_encoder: Upgrade) -> None:
    service.add_case("first", cell_png(3), patient="p", field=around())
    upgrade_encoder()
    second = service.add_case("second", cell_png(3), patient="q")
    third = service.add_case("third", cell_png(4), patient="q", field=around())
    stored = rows(service)["second"].stored_sha256
    report = erase_patient_everywhere(service.context, "admin", "p", "asked to")
    assert sorted(report.shared) == sorted([second["id"], third["id"]])
    assert report.images == 2  # the files of the other encoder
    assert service.context.images.intact(stored)
    erased = next(case for case in rows(service).values() if case.erased_at is not None)
    assert (erased.pixels_sha256, erased.field_pixels_sha256) == (None, None)
    assert faults(service) == []
