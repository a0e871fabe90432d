"""The wider field around a cell: for whoever sees the cell, part of no prediction, kept and erased like an image."""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sqlalchemy import select

from app.cli.imports import check_local
from app.database.tables import Case
from app.maintenance.erasure import erase_patient_everywhere
from tests.app.test_damage import stored_file
from tests.app.test_imports import packed, send
from tests.support.images import encode, exif_rotated, photo, pixel_bomb
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, pixels_of


def around(seed: int = 50, **options: Any) -> bytes:
    """A field: larger than any cell of these tests."""
    return encode(photo(seed, 160), **options)


def test_a_field_is_stored_beside_the_image_and_sent_as_it_is(service: Service) -> None:
    case = service.add_case("case-1", cell_png(1), field=around())
    assert case["has_field"] is True
    answer = service.get("viewer", f"/v1/cases/{case['id']}/field")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert Image.open(io.BytesIO(answer.content)).size == (160, 160)
    assert pixels_of(answer.content).tobytes() == pixels_of(around()).tobytes()
    image = service.get("viewer", f"/v1/cases/{case['id']}/image")
    assert answer.headers["cache-control"] == image.headers["cache-control"]
    assert service.get("viewer", f"/v1/cases/{case['id']}").json()["has_field"] is True
    assert service.faults() == []


def test_a_case_without_a_field_says_so(service: Service) -> None:
    case = service.add_case("case-1", cell_png(1))
    assert case["has_field"] is False
    answer = service.get("viewer", f"/v1/cases/{case['id']}/field")
    assert (answer.status_code, answer.json()["detail"]) == (404, "this cell has no field")
    service.lease_on("anna", case["id"])
    assert service.get("anna", "/v1/reads").json()["items"][0]["field"] is None


def test_a_prediction_is_the_same_with_and_without_a_field(service: Service) -> None:
    """Partition, coin and plan come from the case's own name and image."""
    with_one = service.add_case("case-1", cell_png(1), field=around())
    without = service.add_case("case-2", cell_png(1))
    asked = service.post("viewer", "/v1/predictions", files={"image": ("x.png", cell_png(1))}).json()
    for name in ("class_probs", "log_concentration", "disagreement_prob", "reasons", "distance"):
        assert with_one["prediction"][name] == without["prediction"][name] == asked[name]
    assert without["same_image_as"] == with_one["id"]
    refused = {"image": ("x.png", cell_png(1)), "field": ("y.png", around())}
    assert service.post("viewer", "/v1/predictions", files=refused).status_code == 400
    only = {"field": ("y.png", around())}
    assert service.post("viewer", "/v1/predictions", files=only).status_code == 422


def test_cells_of_one_field_are_no_twins(service: Service) -> None:
    service.add_case("case-1", cell_png(1), field=around(), patient="p")
    assert service.add_case("case-2", cell_png(2), field=around(), patient="p")["same_image_as"] is None
    # and a field that is somebody's image does not make them the same
    third = service.add_case("case-3", encode(photo(7)), field=cell_png(1), patient="q")
    assert third["same_image_as"] is None
    assert service.add_case("case-4", around(), patient="r")["same_image_as"] is None


def test_another_field_under_a_known_external_id_is_refused(service: Service) -> None:
    service.add_case("with", cell_png(1), field=around())
    service.add_case("without", cell_png(2))
    before = sorted(service.context.settings.images_folder.rglob("*"))
    for external_id, image, field, said in (
        ("with", cell_png(1), around(51), "has a different field"),
        ("without", cell_png(2), around(), "was stored without a field"),
        ("with", cell_png(3), around(), "has a different image"),
    ):
        answer = service.upload(external_id, image, field=field)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:secondread:problem:external-id-taken")
        assert said in answer.json()["detail"]
    assert sorted(service.context.settings.images_folder.rglob("*")) == before  # nothing of them was stored
    for field in (around(), None):  # the same again, or nothing said of it
        answer = service.upload("with", cell_png(1), field=field)
        assert (answer.status_code, answer.json()["has_field"]) == (200, True)


def test_a_field_is_part_of_what_an_idempotency_key_stands_for(service: Service) -> None:
    first = service.upload("case-1", cell_png(1), "the-key", field=around())
    again = service.upload("case-1", cell_png(1), "the-key", field=around())
    assert (again.status_code, again.json()) == (201, first.json())
    for other in (None, around(51)):
        answer = service.upload("case-1", cell_png(1), "the-key", field=other)
        assert answer.json()["type"] == "urn:secondread:problem:idempotency-key-reused"


@pytest.mark.parametrize(
    ("field", "status"),
    [(b"", 422), (b"no picture", 415), (pixel_bomb(20_000, 20_000), 413), (around()[:-200], 422)],
    ids=["empty", "no picture", "too many pixels", "cut"],
)
def test_what_is_wrong_with_a_field_is_said_of_the_field(service: Service, field: bytes, status: int) -> None:
    answer = service.upload("case-1", cell_png(1), field=field)
    assert answer.status_code == status
    assert answer.json()["detail"].startswith("field: ")
    assert service.get("viewer", "/v1/cases").json()["items"] == []


def test_image_and_field_together_keep_the_limit_of_an_upload(service: Service) -> None:
    half = encode(photo(1, 1500))  # noise: 6.7 MB
    assert service.upload("case-1", half, field=half).status_code == 413
    assert service.upload("case-2", cell_png(1), field=half).status_code == 201


def test_other_files_and_a_text_as_field_are_refused(service: Service) -> None:
    data = {"external_id": "case-1"}
    for files in (
        {"image": ("a.png", cell_png(1)), "feild": ("b.png", around())},
        {"image": ("a.png", cell_png(1)), "field": (None, "text")},
    ):
        answer = service.post("admin", "/v1/cases", files=files, data=data)
        assert answer.status_code == 422, answer.text


def test_metadata_of_a_field_stays_out_of_everything(service: Service) -> None:
    case = service.add_case("case-1", cell_png(1), field=exif_rotated())
    field = service.get("viewer", f"/v1/cases/{case['id']}/field")
    assert b"CANARY" not in field.content + str(field.headers).encode()
    assert b"secret-field-name" not in field.content + str(field.headers).encode()
    for path in service.context.settings.images_folder.rglob("*"):
        assert path.is_dir() or b"CANARY" not in path.read_bytes()


def test_whoever_may_have_the_image_may_have_the_field_and_nobody_else(service: Service) -> None:
    case = service.add_case("case-1", cell_png(1), field=around(), patient="p")
    handle = service.known_as("anna", case["id"])
    for who, name in (
        *((who, case["id"]) for who in ("admin", "viewer", "anna", "ben", "outside", None)),
        *((who, handle) for who in ("anna", "ben", "viewer")),
    ):
        image = service.get(who, f"/v1/cases/{name}/image")
        field = service.get(who, f"/v1/cases/{name}/field")
        assert image.status_code == field.status_code, (who, name)
        if image.status_code != 200:
            assert image.json() == field.json(), (who, name)


def test_annotators_are_told_of_the_field_by_their_own_handle(service: Service) -> None:
    case = service.add_case("secret-name", cell_png(1), field=around(), patient="secret-patient")
    read = service.post("anna", "/v1/reads").json()
    handle = service.known_as("anna", case["id"])
    assert read["field"] == f"/v1/cases/{handle}/field"
    assert service.get("anna", read["field"]).status_code == 200
    page = service.get("anna", f"/cases/{handle}").text
    assert f"/v1/cases/{handle}/field" in page
    assert "secret" not in page
    assert service.get("ben", read["field"]).status_code == 404


def test_erasing_removes_a_field_that_nobody_else_has(service: Service) -> None:
    context = service.context
    shared = around(60)
    gone = service.add_case("gone", cell_png(1), field=around(), patient="p")
    service.add_case("gone-too", cell_png(2), field=shared, patient="p")
    service.add_case("an-image", cell_png(3), field=cell_png(4), patient="p")
    stays = service.add_case("stays", cell_png(5), field=shared, patient="q")
    image = service.add_case("image", cell_png(4), patient="q")
    own, together = stored_file(service, "gone", "field"), stored_file(service, "gone-too", "field")
    report = erase_patient_everywhere(context, "test", "p", "they asked for it")
    assert not own.exists()
    assert together.exists()
    assert set(report.shared) == {stays["id"], image["id"]}
    assert service.get("viewer", f"/v1/cases/{gone['id']}/field").status_code == 404
    assert service.get("viewer", f"/v1/cases/{stays['id']}/field").status_code == 200
    assert service.get("viewer", f"/v1/cases/{image['id']}/image").status_code == 200
    with context.database.read() as session:
        erased = session.execute(select(Case).where(Case.erased_at.is_not(None))).scalars()
        assert {(row.field_sha256, row.stored_field_sha256) for row in erased} == {(None, None)}
    assert service.faults() == []
    erase_patient_everywhere(context, "test", "q", "they asked too")
    assert not together.exists()
    assert not [path for path in context.settings.images_folder.rglob("*") if path.is_file()]


def test_an_export_has_the_fields_beside_the_images(service: Service, tmp_path: Path) -> None:
    case = service.add_case("case-1", cell_png(1), field=around())
    service.add_case("case-2", cell_png(2))
    for images in (True, False):
        service.export(tmp_path / str(images), images=images)
    exported = list((tmp_path / "True" / "fields").iterdir())
    assert [path.name for path in exported] == [f"{case['id']}.png"]
    assert exported[0].read_bytes() == service.get("viewer", f"/v1/cases/{case['id']}/field").content
    assert not (tmp_path / "False" / "fields").exists()


def test_a_proof_for_others_tells_no_digest_of_a_field(service: Service, tmp_path: Path) -> None:
    """Whoever has a field could find out with it whose it is."""
    service.add_case("case-1", cell_png(1), field=around())
    service.export(tmp_path / "proof", images=False, proof=True)
    (digests,) = service.rows(select(Case.field_sha256, Case.stored_field_sha256))
    said = b"".join(path.read_bytes() for path in (tmp_path / "proof").rglob("*") if path.is_file())
    assert b"stored_field_sha256" in said
    assert not [digest for digest in digests if digest.encode() in said]


def archive_with_fields() -> bytes:
    """Rows with a field, without one, with one that is missing, broken, out of the folder, and other than before."""
    lines = [
        "file,external_id,field",
        "1.png,with,field.png",
        "2.png,without,",
        "3.png,missing,nowhere.png",
        "4.png,broken,broken.png",
        "5.png,outside,../../field.png",
        "1.png,with,other.png",
        "2.png,without,field.png",
        "1.png,with,",
    ]
    files = {f"{number}.png": cell_png(number) for number in range(1, 6)} | {"field.png": around()}
    files |= {"other.png": around(51), "broken.png": around()[:-200], "nobodys.png": around(52)}
    files["manifest.csv"] = "\n".join(lines).encode()
    return packed({f"slides/{name}": data for name, data in files.items()})


TOLD = {
    3: "field: file 'nowhere.png' is not in the archive",
    4: "field: ",
    5: "field: file 'field.png' must be in the folder of manifest.csv",
    6: "the cell with this external id has a different field",
    7: "the cell with this external id was stored without a field",
}


@pytest.mark.slow
@pytest.mark.ci
def test_a_manifest_names_fields_and_a_dry_run_says_what_is_wrong_with_them(service: Service, tmp_path: Path) -> None:
    source = tmp_path / "slides.zip"
    source.write_bytes(archive_with_fields())
    checked = check_local(service.context, source, print)
    assert not service.document("/v1/cases")["items"]
    job = send(service, source.read_bytes()).json()["id"]
    work_off(service.context)
    done = service.document(f"/v1/imports/{job}", "admin")
    told = {row["row"]: row["detail"] for row in checked["failures"]}
    assert {row["row"]: row["detail"] for row in done["rows"] if row["detail"]} == told
    for row, said in TOLD.items():
        assert told.pop(row).startswith(said), row
    assert list(told.values()) == ["no row of manifest.csv names it"]  # nobodys.png alone
    assert (checked["created"], checked["known"], checked["failed"]) == (2, 1, 5)
    fields = {row.external_id: row.stored_field_sha256 for row in service.scalars(select(Case))}
    assert {name for name, digest in fields.items() if digest} == {"with"}
