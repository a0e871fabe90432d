"""Predictions and cases over HTTP, damaged pictures in number, and one answer per key."""

import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from fastapi import Response
from pydantic import BaseModel
from sqlalchemy import func, select, update

from app.database import idempotency
from app.database.idempotency import KeyReused, Once
from app.database.tables import Case, IdempotencyRecord, utc_now
from app.job_table import run_maintenance
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from ml.distributions.decisions import class_intervals
from ml.images.preprocess import decode_image
from ml.release.artifact import read_release
from ml.release.predictor import Predictor
from tests.app.test_leases import classes_of
from tests.support.images import CORPUS, encode, exif_rotated, photo
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, pixels_of, raising
from tests.support.waiting import patient

_STATUS = {"empty": 422, "broken": 422, "frames": 422, "too-small": 422, "too-large": 413, "format": 415}


def test_a_prediction_has_the_shape_of_the_contract(populated: Service) -> None:
    body = populated.post("viewer", "/v1/predictions", files={"image": ("x.png", cell_png())}).json()
    raw = populated.post("viewer", "/v1/predictions", content=cell_png(), headers={"Content-Type": "image/png"})
    assert raw.json() == body
    release = read_release(populated.context.settings.releases_folder / body["release"])
    assert body["classes"] == list(release.classes)
    expected = Predictor(release).predict([decode_image(cell_png())]).distribution
    assert list(body["class_probs"].values()) == expected.class_probs[0].tolist()
    assert body["disagreement_prob"] == expected.disagreement_probs[0]
    assert body["log_concentration"] == expected.log_concentration[0]  # type: ignore[union-attr]
    low, high = np.array(list(body["class_intervals"].values())).T
    exact = class_intervals(expected)[0].T  # type: ignore[arg-type]
    assert np.all((low <= exact[0]) & (exact[0] - low < 1e-6) & (high >= exact[1]) & (high - exact[1] < 1e-6))
    assert low.min() == 0 or low.min() >= 1e-6
    assert body["disagreement_calibrated"] is True
    assert set(body["triage"]) == {"decision", "priority", "expected_gain", "pi", "reason"}
    assert body["triage"]["decision"] == ("second_read" if body["disagreement_prob"] > 0.2 else "single_read")
    assert len(body["image_sha256"]) == 64


def test_a_prediction_of_nothing_says_where_the_image_goes(shared_service: Service) -> None:
    answer = shared_service.post("viewer", "/v1/predictions")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:secondread:problem:invalid")
    assert "multipart field `image`" in answer.json()["detail"]


@pytest.mark.parametrize("name", CORPUS)
def test_every_upload_is_read_or_refused_clearly(shared_service: Service, name: str) -> None:
    data, reason = CORPUS[name]
    for response in (
        shared_service.post("viewer", "/v1/predictions", files={"image": ("x.png", data)}),
        shared_service.upload(f"case {name}", data),
    ):
        if reason is None:
            assert response.status_code in {200, 201}, response.text
        else:
            assert response.status_code == _STATUS[reason]
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["detail"]


def test_a_file_of_thirty_megabytes_is_refused(shared_service: Service) -> None:
    data = bytes(30 * 1024**2)
    assert shared_service.post("viewer", "/v1/predictions", files={"image": ("x.png", data)}).status_code == 413
    assert shared_service.upload("big", data).status_code == 413

    def chunks() -> Any:  # no declared length
        for _ in range(30):
            yield bytes(1024**2)

    streamed = shared_service.post("viewer", "/v1/predictions", content=chunks(), headers={"Content-Type": "image/png"})
    assert streamed.status_code == 413
    assert streamed.json()["type"] == "urn:secondread:problem:too-large"
    wide = shared_service.post("viewer", "/v1/cases/x/labels", content=bytes(2 * 1024**2))
    assert wide.status_code == 413


def test_a_stored_case_gives_its_prediction_again_bit_for_bit(service: Service) -> None:
    for name in ("CMYK", "16-bit grey", "EXIF-rotated", "palette with alpha", "plain JPEG"):
        case = service.add_case(name, CORPUS[name][0])
        image = service.get("viewer", f"/v1/cases/{case['id']}/image")
        assert image.headers["content-type"] == "image/png"
        again = service.post("viewer", "/v1/predictions", files={"image": ("x.png", image.content)}).json()
        assert again["class_probs"] == case["prediction"]["class_probs"]
        assert again["log_concentration"] == case["prediction"]["log_concentration"]


def test_a_case_keeps_what_came_with_it(service: Service) -> None:
    fields = {"patient": "p1", "site": "Å-Lab", "metadata": json.dumps({"stain": "May-Grünwald"})}
    case = service.add_case("case-1", **fields)
    assert (case["external_id"], case["patient"], case["site"]) == ("case-1", "p1", "Å-Lab")
    assert case["metadata"] == {"stain": "May-Grünwald"}
    assert case["n_labels"] == 0
    assert service.get("viewer", f"/v1/cases/{case['id']}").json() == case


@pytest.mark.both_databases
def test_a_case_is_found_by_each_field_that_came_with_it(service: Service) -> None:
    texts = {"stain": "May-Grünwald", 'a "name", {of}: \\ 記録': '1%_"', "objective": "63x"}
    fields = {"patient": "p1", "site": "north", "specimen": "S-1", "metadata": json.dumps(texts)}
    service.add_case("other", cell_png(1), metadata=json.dumps({"stain": "may-grünwald", "63x": "objective"}))
    case = service.add_case("wanted", cell_png(2), **fields)

    def found(**query: str) -> list[str]:
        return [one["external_id"] for one in service.items("/v1/cases", **query)]

    both = found()
    for name, value in {name: case[name] for name in ("external_id", "patient", "site")}.items():
        assert (found(**{name: value}), found(**{name: value[:-1]})) == (["wanted"], [])
    assert (found(specimen="S-1"), found(specimen="S-2"), found(specimen=case["specimen"])) == (["wanted"], [], [])
    for name, value in texts.items():
        assert found(metadata=json.dumps({name: value})) == ["wanted"]
        assert found(metadata=json.dumps({name: value + "x"}), site="north") == []
    assert (found(metadata=fields["metadata"], **{"site": "north"}), found(metadata="{}")) == (["wanted"], both)


@pytest.mark.parametrize(
    "metadata", ["", "stain", "[]", '{"stain": 1}', '{"stain": ""}', "{" * 9_000, '{"a": "\\u0000"}']
)
def test_metadata_to_look_for_is_a_json_object_of_texts(shared_service: Service, metadata: str) -> None:
    answer = shared_service.get("viewer", "/v1/cases", params={"metadata": metadata})
    assert (answer.status_code, answer.json()["errors"][0]["where"][:2]) == (422, ["query", "metadata"])


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_same_image_again_is_200_another_image_is_409_a_twin_is_flagged(service: Service) -> None:
    first = service.add_case("case-1")
    again = service.upload("case-1", cell_png())
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    other = service.upload("case-1", cell_png(1))
    assert (other.status_code, other.json()["type"]) == (409, "urn:secondread:problem:external-id-taken")
    assert service.add_case("case-2")["same_image_as"] == first["id"]


def test_idempotency_key_is_required_replayed_and_not_reused(service: Service) -> None:
    files = {"image": ("x.png", cell_png())}
    without = service.call("admin", "POST", "/v1/cases", files=files, data={"external_id": "a"})
    assert (without.status_code, without.json()["type"]) == (400, "urn:secondread:problem:idempotency-key-missing")
    assert without.json()["detail"] == (
        "send an Idempotency-Key header: a new value for each new request, the same value for a retry"
    )
    first = service.upload("a", cell_png(), "key-1")
    again = service.upload("a", cell_png(), "key-1")  # a new multipart boundary, the same request
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    reused = service.upload("b", cell_png(), "key-1")
    assert (reused.status_code, reused.json()["type"]) == (422, "urn:secondread:problem:idempotency-key-reused")
    assert len(service.get("viewer", "/v1/cases").json()["items"]) == 1
    second, text = service.add_case("c", cell_png(3)), {"text": "one remark"}
    for case, status in ((first.json(), 201), (second, 422), (first.json(), 201)):  # the same body on another cell
        assert service.post("admin", f"/v1/cases/{case['id']}/comments", "key-2", json=text).status_code == status


def test_a_retry_costs_no_prediction(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    first = service.upload("a", cell_png(), "key-1")
    monkeypatch.setattr(service.context.inference, "predict", raising(AssertionError("the network ran again")))
    again = service.upload("a", cell_png(), "key-1")
    assert (again.status_code, again.json()) == (201, first.json())
    assert service.upload("b", cell_png(), "key-1").status_code == 422


@pytest.mark.both_databases
def test_pages_of_cases_walk_through_all(service: Service) -> None:
    ids = [case["id"] for case in service.add_cases(5)]
    assert [case["id"] for case in service.items("/v1/cases", limit=2)] == ids[::-1]
    assert service.get("viewer", "/v1/cases", params={"cursor": "nonsense"}).status_code == 422


def test_metadata_in_the_file_stays_out_of_everything(service: Service) -> None:
    case = service.add_case("case-1", exif_rotated())
    image = service.get("viewer", f"/v1/cases/{case['id']}/image").content
    assert b"CANARY" not in image
    assert pixels_of(image).shape == (64, 64, 3)
    shown = service.get("viewer", f"/v1/cases/{case['id']}").text + service.metrics()
    assert "CANARY" not in shown
    assert "secret-file-name" not in shown
    for path in service.context.settings.home.rglob("*"):
        if path.is_file():
            assert b"CANARY" not in path.read_bytes()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"external_id": ""}, 422),
        ({"external_id": "a", "patient": " \t"}, 422),
        ({}, 422),
        ({"external_id": "x" * 201}, 422),
        ({"external_id": "a\x00b"}, 422),
        ({"external_id": "label \u202e1"}, 422),  # turns the direction of what follows it
        ({"external_id": "fine", "site": "\u2067Köln"}, 422),
        ({"external_id": "a", "metadata": "[1]"}, 422),
        ({"external_id": "a", "metadata": "{"}, 422),
        ({"external_id": "a", "metadata": '{"k": 1}'}, 422),
        ({"external_id": "a", "surprise": "b"}, 422),
        ({"external_id": "../../etc/passwd"}, 201),
    ],
)
def test_fields_of_a_case_are_checked(shared_service: Service, fields: dict[str, str], status: int) -> None:
    response = shared_service.post("admin", "/v1/cases", files={"image": ("../../x.png", cell_png())}, data=fields)
    assert response.status_code == status, response.text
    stored = [path for path in shared_service.context.settings.images_folder.rglob("*") if path.is_file()]
    assert all(len(path.name) == 64 for path in stored)


def test_a_case_without_a_prediction_stays_visible_and_is_wanted_first(service: Service) -> None:
    """No upload makes one; a laboratory's own import into the tables, or a future release, may."""
    other = service.add_case("with", cell_png(1))
    service.written_past = True
    with service.context.database.write() as session:
        known = session.execute(select(Case)).scalar_one()
        names = {column.name for column in Case.__table__.columns} - {"id", "external_id", "need", "image_hash"}
        bare = Case(**{name: getattr(known, name) for name in names} | {"external_id": "without", "waiting": True})
        session.add(bare)
        session.flush()
        bare_id = str(bare.id)
    listed = {row["id"]: row for row in service.items("/v1/cases")}
    assert listed[bare_id]["prediction"] is None
    assert listed[other["id"]]["prediction"] is not None
    assert service.document("/v1/worklist")["items"][0]["case"]["id"] == bare_id
    shown = service.get("viewer", f"/v1/cases/{bare_id}")
    assert (shown.status_code, shown.json()["prediction"]) == (200, None)
    assert service.get("viewer", f"/v1/cases/{bare_id}/image").status_code == 200
    for path, status in (("posterior", 404), ("labels", 200), ("predictions", 200)):
        assert service.get("viewer", f"/v1/cases/{bare_id}/{path}").status_code == status
    for who in ("viewer", "anna"):
        for page in ("/worklist", f"/cases/{bare_id}"):
            assert service.get(who, page).status_code == 200, (who, page)
    refused = service.label("outside", bare_id, "blast", annotator="r1", blind=True)
    assert (refused.status_code, refused.json()["detail"]) == (404, "the cell has no prediction")
    assert service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()["selection"]["n_closed"] == 0


_SOURCES = {
    "PNG": encode(photo(1, 32)),
    "JPEG": encode(photo(2, 32), "JPEG"),
    "TIFF": encode(photo(3, 32), "TIFF"),
    "TIFF, deflated": encode(photo(4, 32), "TIFF", compression="tiff_deflate"),
    "palette": CORPUS["palette with alpha"][0],
    "16-bit grey": CORPUS["16-bit grey"][0],
    "CMYK": CORPUS["CMYK"][0],
}
#: Values that are limits of some field.
_EDGES = (b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x80")


def mutant(rng: random.Random) -> bytes:
    """A picture with bytes changed, cut, doubled or taken from another one."""
    data = bytearray(rng.choice(list(_SOURCES.values())))
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        # what a decoder goes by stands at the beginning, and in TIFF at the end
        place = rng.randrange(min(rng.choice((64, 512, len(data))), len(data)))
        place = len(data) - 1 - place if rng.random() < 0.25 else place
        how = rng.randrange(5)
        if how == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif how == 1:
            edge = rng.choice(_EDGES)
            data[place : place + len(edge)] = edge
        elif how == 2:
            del data[place : place + rng.randrange(1, 64)]
        elif how == 3:
            data[place:place] = data[place : place + rng.randrange(1, 64)]
        else:
            data[place:] = rng.choice(list(_SOURCES.values()))[place:]
        if not data:
            break
    return bytes(data)


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    "count", [pytest.param(100, marks=pytest.mark.slow), pytest.param(5000, marks=pytest.mark.heavy)]
)
def test_mutants_of_pictures_are_read_or_refused(shared_service: Service, count: int) -> None:
    rng, statuses = random.Random(count), Counter[int]()
    for _ in range(count):
        content = mutant(rng)
        headers = {"Content-Type": "application/octet-stream"}
        answer = shared_service.post("viewer", "/v1/predictions", content=content, headers=headers)
        assert answer.status_code in {200, 413, 415, 422}, (answer.text, content[:64])
        statuses[answer.status_code] += 1
    assert shared_service.get(None, "/healthz").status_code == 200
    assert statuses[200] > 0
    assert statuses[422] > count / 10


class Stored(BaseModel):
    """What an action answers with."""

    number: int


Action = Callable[[], tuple[int, Stored]]


class Counted:
    """An action that counts how often it is done."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self) -> tuple[int, Stored]:
        self.done += 1
        return 201, Stored(number=self.done)


def send(service: Service, who: str, key: str, body: Any, action: Action, request: str = "POST /v1/things") -> Response:
    account_id = service.principal(who).account_id
    with service.context.database.write() as session:
        return Once(account_id, key, request)(session, body, action)


@undone("F16", "a retry stores nothing twice", idempotency, "insert_if_absent", lambda *_: True)
@pytest.mark.both_databases
def test_the_first_answer_is_given_again_and_says_so(service: Service) -> None:
    action = Counted()
    first = send(service, "admin", "k", "d", action)
    again = send(service, "admin", "k", "d", action)
    assert action.done == 1
    assert (first.status_code, json.loads(first.body)) == (201, {"number": 1})
    assert (again.status_code, again.body) == (201, first.body)
    assert (again.headers["Idempotent-Replayed"], "Idempotent-Replayed" in first.headers) == ("true", False)


@undone("F16", "a key is of one request", idempotency, "request_digest", lambda *_: "")
@pytest.mark.both_databases
def test_a_key_is_of_one_request_and_one_account(service: Service) -> None:
    action = Counted()
    send(service, "admin", "k", "d", action)
    with pytest.raises(KeyReused, match=r"^this Idempotency-Key was sent with another request; choose a new one$"):
        send(service, "admin", "k", "another", action)
    with pytest.raises(KeyReused):
        send(service, "admin", "k", "d", action, "POST /v1/things/1")
    assert action.done == 1
    assert json.loads(send(service, "viewer", "k", "another", action).body) == {"number": 2}
    in_order = [send(service, "admin", "m", dict.fromkeys(names), action).body for names in ("ab", "ba")]
    assert in_order == [b'{"number":3}'] * 2
    assert json.loads(send(service, "admin", "l", "d", action).body) == {"number": 4}


@pytest.mark.both_databases
def test_an_action_that_fails_leaves_its_key_free(service: Service) -> None:
    with pytest.raises(RuntimeError, match="no room"):
        send(service, "admin", "k", "d", raising(RuntimeError("no room")))
    assert json.loads(send(service, "admin", "k", "d", Counted()).body) == {"number": 1}


@pytest.mark.both_databases
def test_the_same_key_at_the_same_time_does_the_work_once(service: Service) -> None:
    action, together = Counted(), threading.Barrier(4)

    def ask(_: int) -> Response:
        together.wait(patient(20))
        return send(service, "admin", "k", "d", action)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    assert action.done == 1
    assert {answer.body for answer in answers} == {b'{"number":1}'}
    assert len([answer for answer in answers if "Idempotent-Replayed" in answer.headers]) == 3


def kept(service: Service) -> int:
    return service.one(select(func.count()).select_from(IdempotencyRecord))


def test_old_answers_are_swept_and_young_ones_stay(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.database.idempotency.SWEEP_ROWS", 2)
    monkeypatch.setattr("app.job_table.SWEEP_ROWS", 2)
    for number in range(6):
        service.upload(f"case {number}", cell_png(number), f"key {number}")
    old = utc_now() - idempotency.KEPT - timedelta(minutes=1)
    keys = [f"key {number}" for number in range(5)]
    service.change(update(IdempotencyRecord).where(IdempotencyRecord.key.in_(keys)).values(created_at=old))
    run_maintenance(service.context)
    assert kept(service) == 1
    assert service.upload("case 5", cell_png(5), "key 5").headers["idempotent-replayed"] == "true"
    again = service.upload("case 0", cell_png(0), "key 0")
    assert (again.status_code, "idempotent-replayed" in again.headers) == (200, False)  # the case itself is known


def test_an_answer_swept_meanwhile_is_asked_for_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL the sweep may commit between the insertion that meets the key and the reading of its answer."""
    service.post("anna", "/v1/reads", "key")
    monkeypatch.setattr(idempotency, "insert_if_absent", lambda *_: False)
    swept = service.post("anna", "/v1/reads", "another key")
    assert (swept.status_code, "retry-after" in swept.headers) == (503, True)
    assert swept.json()["detail"] == "the answer to this Idempotency-Key has expired; send the request again"


def test_an_erasure_forgets_the_answers_that_show_its_cases_and_no_others(service: Service) -> None:
    case = service.add_case("gone", cell_png(0), patient="p")
    service.upload("gone", cell_png(0), patient="p")  # stored already, so that nothing is written of it
    service.outside_label(case["id"], "r", classes_of(service)[0])
    service.upload("stays", cell_png(1), "stays", patient="q")
    before = kept(service)
    with service.context.database.write() as session:
        erase_patient_rows(session, service.context, "test", ErasureTarget("p"), "asked for")
    assert kept(service) == before - 3
    bodies = service.scalars(select(IdempotencyRecord.body))
    assert not [body for body in bodies if isinstance(body, dict) and body.get("external_id") == "gone"]
    assert uuid.UUID(case["id"]) not in service.scalars(select(IdempotencyRecord.case_id))


def test_an_external_id_with_another_patient_or_site_is_refused_by_name(service: Service) -> None:
    data, said = cell_png(4), {"patient": "P-1", "site": "Zürich"}
    first = service.upload("one id", data, **said)
    again = [service.upload("one id", data, **fields) for fields in (said, {}, said | {"metadata": '{"mpp": "0.1"}'})]
    assert [(answer.status_code, answer.json()["id"]) for answer in again] == [(200, first.json()["id"])] * 3
    for changed, named in (
        ({"site": "Köln"}, "different site;"),
        ({"patient": "P-2"}, "different patient;"),
        ({"patient": "P-2", "site": "Köln"}, "different patient and site;"),
    ):
        answer = service.upload("one id", data, **said | changed)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:secondread:problem:external-id-taken")
        assert named in answer.json()["detail"]
    case = service.document(f"/v1/cases/{first.json()['id']}")
    assert (case["patient"], case["site"]) == ("P-1", "Zürich")
