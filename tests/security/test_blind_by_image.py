"""Blindness belongs to the annotator and the image: whoever saw anything of it gives no label that counts as blind."""

import secrets
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from PIL import Image
from sqlalchemy import delete, select, update

from app.accounts.people import add_account, add_key, hash_secret, revoke_key
from app.cases.blindness import record_exposure
from app.cases.queries import same_images
from app.database.tables import Account, Annotator, ApiKey, Case, CasePrediction, CaseTwin, Exposure, ReadRequest
from app.maintenance.erasure import erase_patient_everywhere
from app.metrics.queries import blind_labels
from app.triage import planning
from tests.app.test_fields import around
from tests.app.test_imports import checked
from tests.app.test_leases import all_once, all_twice, classes_of, commit, lease, read_next, requests_of, set_policy
from tests.support.images import encode
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, pixels_of, stored_image

Upgrade = Callable[[], None]


def judging(service: Service) -> list[str]:
    """Annotators of the labels that may judge or fit."""
    return [row[1] for row in service.rows(blind_labels(("planned", "adjudication")))]


def show(service: Service, who: str, case_id: str) -> None:
    """Record that the prediction of a case was shown to somebody."""
    annotator = service.one(select(Annotator.id).where(Annotator.name == who))
    release = service.one(select(CasePrediction.release_id).where(CasePrediction.case_id == UUID(case_id)))
    with service.context.database.write() as session:
        record_exposure(session, annotator, UUID(case_id), release, None)


def as_bitmap(data: bytes) -> bytes:
    """The same pixels in another file."""
    buffer = BytesIO()
    Image.open(BytesIO(data)).save(buffer, "tiff")
    return buffer.getvalue()


def almost(data: bytes) -> bytes:
    """Nearly the same pixels."""
    pixels = np.array(pixels_of(data))
    pixels[0, 0] ^= 1
    return encode(pixels)


def old_key(service: Service, name: str, scopes: list[str]) -> None:
    """A key as an earlier version made it, whatever its scopes."""
    value, service.written_past = secrets.token_hex(32), True
    with service.context.database.write() as session:
        account = session.execute(select(Account).where(Account.name == name)).scalar_one()
        key = ApiKey(account_id=account.id, secret_sha256=hash_secret(value), scopes=scopes)
        session.add(key)
        session.flush()
        service.keys[name] = f"sr_{key.id.hex}_{value}"


@pytest.mark.parametrize(
    ("name", "before", "scopes"),
    [
        ("robot", [], ["reads:own", "cases:read"]),
        ("robot", [], ["reads:own", "predict"]),
        ("robot", ["labels:write"], ["reads:own"]),
        ("robot", ["reads:own"], ["metrics:read"]),
        ("viewer", [], ["reads:own"]),
        ("admin", [], ["reads:own"]),
        ("anna", [], ["cases:read"]),
    ],
)
def test_no_account_gets_a_key_with_which_it_reads_and_sees(
    service: Service, name: str, before: list[str], scopes: list[str]
) -> None:
    with service.context.database.write() as session:
        secret = service.context.keys.audit
        if name == "robot":
            add_account(session, secret, name, "service")
        if before:
            revoke_key(session, secret, add_key(session, secret, name, before)[0].id)
        with pytest.raises(ValueError, match="blind"):
            add_key(session, secret, name, scopes)


@pytest.mark.parametrize("looks", [True, False])
def test_an_account_that_sees_everything_leases_nothing_and_what_it_holds_is_not_blind(
    service: Service, looks: bool
) -> None:
    all_once(service)
    case = service.add_case()
    old_key(service, "outside", ["reads:own"])
    newest = service.scalars(select(ApiKey.id).order_by(ApiKey.created_at))[-1]
    account = select(Account.id).where(Account.name == "outside").scalar_subquery()
    service.change(delete(ApiKey).where(ApiKey.account_id == account, ApiKey.id != newest))  # has never seen anything
    read = read_next(service, "outside")
    blind_key = service.keys["outside"]
    old_key(service, "outside", ["cases:read", "reads:own"])
    if looks:
        assert service.get("outside", f"/v1/cases/{case['id']}").json()["prediction"] == case["prediction"]
    assert len(service.scalars(select(Exposure))) == looks  # by account, not by scope
    service.keys["outside"] = blind_key
    label = commit(service, "outside", read, classes_of(service)[0]).json()["label"]
    assert (label["blind"], label["post_reveal"]) == (False, True)
    assert judging(service) == []
    service.add_case("another", cell_png(7))
    refused = service.post("outside", "/v1/reads")
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:secondread:problem:forbidden")
    assert "blind" in refused.json()["detail"]
    assert [request.state for request in requests_of(service, case["id"])] == ["open"]  # somebody else reads it


@undone(
    "T20",
    "blindness belongs to the image, not to the case",
    planning,
    "are_twins",
    lambda case, other: case.id == other.id,
)
@pytest.mark.parametrize("how", ["same pixels", "encoded anew", "nearly, one patient", "nearly, two patients"])
def test_who_saw_a_twin_is_not_offered_the_read(service: Service, upgrade_encoder: Upgrade, how: str) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="after_commit")
    data = cell_png(3)
    first = service.add_case("first", data, patient="p")
    assert service.answer("anna", first["id"], classes_of(service)[0]).json()["posterior"] is not None
    if how == "encoded anew":
        upgrade_encoder()
    twin = almost(data) if how.startswith("nearly") else as_bitmap(data)
    other = service.add_case("second", twin, patient="p" if how == "nearly, one patient" else "q")
    offered = lease(service, "anna")
    if how == "nearly, two patients":
        assert offered is not None
        return
    assert offered is None
    assert service.get("anna", f"/v1/cases/{other['id']}").status_code == 403
    assert service.answer("ben", other["id"], classes_of(service)[0]).json()["label"]["blind"] is True
    assert sorted(judging(service)) == ["anna", "ben"]


def test_who_declined_or_holds_a_twin_is_not_offered_the_read_either(service: Service) -> None:
    all_once(service)
    service.add_case("first", cell_png(3))
    service.add_case("second", cell_png(3))
    read = read_next(service, "anna")
    assert lease(service, "anna") is None
    body = {"reason": "know_this_case"}
    assert service.post("anna", f"/v1/reads/{read['id']}/decline", json=body).status_code == 200
    assert lease(service, "anna") is None
    assert "0 waiting" in service.get("anna", "/worklist", headers={"Accept": "text/html"}).text


def test_what_is_seen_of_a_twin_while_a_read_is_open_makes_its_label_not_blind(service: Service) -> None:
    all_once(service)
    held = service.add_case("first", cell_png(3), patient="p")
    read = read_next(service, "anna")
    twin = service.add_case("second", almost(cell_png(3)), patient="p")
    show(service, "anna", twin["id"])
    service.written_past = True
    service.change(update(ReadRequest).where(ReadRequest.case_id == UUID(twin["id"])).values(state="closed"))
    answer = commit(service, "anna", read, classes_of(service)[0])
    assert answer.status_code == 201  # nothing that was answered is lost
    label = answer.json()["label"]
    assert (label["blind"], label["post_reveal"], label["round"]) == (False, True, "planned")
    assert judging(service) == []
    assert [(r.state, r.label_id) for r in requests_of(service, held["id"])] == [("open", None)]
    assert service.answer("ben", held["id"], classes_of(service)[0]).json()["label"]["blind"] is True
    assert judging(service) == ["ben"]


def test_a_revision_after_a_twin_was_shown_is_not_blind(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="never")
    first = service.add_case("first", cell_png(3))
    codes = classes_of(service)
    label = service.answer("anna", first["id"], codes[0]).json()["label"]
    twin = service.add_case("second", cell_png(3))
    show(service, "anna", twin["id"])
    body = {"label": codes[1], "reason": "slip"}
    changed = service.post("anna", f"/v1/labels/{label['id']}/revisions", json=body).json()["label"]
    assert (changed["blind"], changed["post_reveal"]) == (False, True)
    service.make_labels_final()
    assert [row[2] for row in service.rows(blind_labels())] == [codes[0]]


def test_a_retraction_does_not_wash_away_what_was_seen(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="after_commit")
    case, codes = service.add_case(), classes_of(service)
    label = service.answer("anna", case["id"], codes[0]).json()["label"]
    gone = service.post("anna", f"/v1/labels/{label['id']}/retraction", json={"reason": "no"}).json()["label"]
    body = {"label": codes[1], "reason": "again"}
    again = service.post("anna", f"/v1/labels/{gone['id']}/revisions", json=body).json()["label"]
    assert (again["blind"], again["post_reveal"]) == (False, True)
    # nor does taking back what was said blind: it goes on to judge
    assert judging(service) == ["anna"]
    assert [row[2] for row in service.rows(blind_labels())] == [codes[0]]


def test_an_outside_reader_who_was_not_blind_once_is_not_blind_again(service: Service) -> None:
    all_twice(service)
    first, twin, codes = service.add_case("first"), service.add_case("second"), classes_of(service)
    label = service.outside_label(first["id"], "r1", codes[0], blind=False)["label"]
    change = {"label": codes[1], "reason": "slip", "blind": True}
    changed = service.post("outside", f"/v1/labels/{label['id']}/revisions", json=change).json()["label"]
    of_twin = [service.outside_label(twin["id"], name, codes[1])["label"] for name in ("r1", "r2")]
    assert [label["blind"] for label in (changed, *of_twin)] == [False, False, True]
    assert [request.state for request in requests_of(service, twin["id"])] == ["answered", "open"]


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
    return {case.external_id: case for case in service.scalars(select(Case))}


def pairs(service: Service) -> set[tuple[str, str]]:
    names = {case.id: name for name, case in rows(service).items()}
    return {(names[row.case_id], names[row.twin_id]) for row in service.scalars(select(CaseTwin))}


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
    assert service.faults() == []


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
    assert {row["detail"] for row in report["failures"]} == {"duplicate image of first"}


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
    assert service.faults() == []
