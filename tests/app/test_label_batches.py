"""Labels of an outside system, many at once by external id."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.database.tables import Annotator, AuditEvent, Case, CountedLabel, ReadRequest
from app.labels import batch
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from tests.app.conftest import _database, _running, _settings, _template
from tests.app.test_leases import classes_of, set_policy
from tests.support.service import Service, cell_png

both_databases = pytest.mark.both_databases
five_at_once = pytest.mark.usefixtures("_five_at_once")


@pytest.fixture
def twin(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Iterator[Service]:
    """Another service like `service`, with the same coins, release and people."""
    folder, template = tmp_path / "twin", _template(request, database_kind)
    folder.mkdir()
    with _running(_settings(folder, _database(request, database_kind, folder, template)), template) as running:
        yield running


@pytest.fixture
def _five_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_AT_ONCE", 5)


def send(service: Service, labels: list[dict[str, Any]], key: str | None = None) -> dict[str, Any]:
    response = service.post("outside", "/v1/labels", key, json={"labels": labels})
    assert response.status_code == 207, response.text
    return dict(response.json())


def statuses(answer: dict[str, Any]) -> list[str]:
    return [result["status"] for result in answer["results"]]


def label_of(number: int, annotator: str, code: str, **fields: Any) -> dict[str, Any]:
    return {"external_id": f"case {number}", "annotator": annotator, "label": code, "blind": True, **fields}


def what_is_stored(service: Service) -> tuple[Any, ...]:
    """Labels, requests and posteriors, by names."""
    label, request = CountedLabel, ReadRequest
    columns = (Case.external_id, Annotator.name, label.class_code, label.blind, label.post_reveal, label.round)
    more = (label.position, label.kind, label.confidence, label.flagged)
    labels = (
        select(*columns, *more).join(Case, Case.id == label.case_id).join(Annotator, Annotator.id == label.annotator_id)
    )
    answered = request.label_id.is_not(None)
    requests = select(Case.external_id, request.ordinal, request.round, request.state, answered, Annotator.name)
    requests = requests.join(Case, Case.id == request.case_id).outerjoin(label, label.id == request.label_id)
    requests = requests.outerjoin(Annotator, Annotator.id == label.annotator_id)
    cases = service.scalars(select(Case.id).order_by(Case.external_id))
    posteriors = [service.document(f"/v1/cases/{case_id}/posterior") for case_id in cases]
    waiting = sorted(service.rows(select(Case.external_id, Case.waiting)))
    found = (service.rows(labels), service.rows(requests))
    return *(sorted(map(tuple, rows), key=str) for rows in found), waiting, posteriors


@both_databases
@five_at_once
def test_labels_sent_together_store_what_labels_sent_alone_store(service: Service, twin: Service) -> None:
    codes = classes_of(service)
    labels = [
        label_of(cell, f"r{reader}", codes[(cell * reader) % 3], confidence=0.5)
        for cell in range(4)
        for reader in range(3)
    ]
    labels += [label_of(cell, "r9", codes[1], blind=False, flag=True) for cell in range(2)]
    labels.append(label_of(1, "r10", codes[0], round="adjudication"))
    for one in (service, twin):
        set_policy(one, threshold=0.0, adjudicate_below=0.999999)
        cases = {case["external_id"]: case["id"] for case in one.add_cases(4)}
        if one is twin:
            for label in labels:
                fields = {name: value for name, value in label.items() if name not in {"external_id", "label"}}
                assert one.label("outside", cases[label["external_id"]], label["label"], **fields).status_code == 201
        else:
            assert statuses(send(one, labels)) == ["stored"] * len(labels)
    assert what_is_stored(service) == what_is_stored(twin)
    events = service.scalars(select(AuditEvent).where(AuditEvent.action == "label.batch"))
    assert [len(event.details["labels"]) for event in events] == [5, 5, 5]
    changes = service.document("/v1/changes")["items"]
    named = Counter((change["id"], change["case"]) for change in changes if change["kind"] == "label")
    assert named.keys() == {(None, str(case_id)) for case_id in service.scalars(select(Case.id))}
    assert service.faults() == []


@five_at_once
def test_what_is_wrong_with_a_label_is_its_own_result(service: Service) -> None:
    codes = classes_of(service)
    set_policy(service)
    service.add_cases(4)
    erased = service.add_case("gone", cell_png(7), patient="p7")["id"]
    with service.context.database.write() as session:
        erase_patient_rows(session, service.context, "lead", ErasureTarget("p7"), "the patient asked")
    sent = [
        label_of(0, "r1", codes[0], note="large"),
        label_of(99, "r1", codes[0]),
        label_of(1, "new", "no such class"),
        label_of(0, "r1", codes[0], note="large"),
        label_of(0, "r1", codes[1]),
        label_of(1, "anna", codes[0]),
        label_of(2, "r1", codes[0]) | {"external_id": f"erased-{erased}"},
        {"external_id": "case 2", "label": codes[0]},
        label_of(2, "r1", codes[0], second_choice="no such class"),
        label_of(2, "r1", codes[0]),
    ]
    answer = send(service, sent, "a key")
    first, *_, last = answer["results"]
    refused = ["refused"] * 5
    assert statuses(answer) == ["stored", "refused", "refused", "known", *refused, "stored"]
    assert (answer["n_stored"], answer["n_known"], answer["n_refused"]) == (2, 1, 7)
    details = [result["detail"] for result in answer["results"] if result["status"] == "refused"]
    words = (
        "no such cell",
        "unknown class",
        "already labelled",
        "has an account",
        "erased",
        "blinded",
        "second choice",
    )
    assert all(word in detail for word, detail in zip(words, details, strict=True)), details
    assert answer["results"][3]["label_id"] == first["label_id"]
    stored = {str(label) for label in service.scalars(select(CountedLabel.id))}
    assert stored == {first["label_id"], last["label_id"]}
    assert "new" not in service.scalars(select(Annotator.name))  # nothing is left of what was refused
    assert send(service, sent, "a key") == answer
    assert service.post("outside", "/v1/labels", "a key", json={"labels": sent[:1]}).status_code == 422
    again = send(service, sent)
    assert statuses(again) == ["known", "refused", "refused", "known", *refused, "known"]
    assert {str(label) for label in service.scalars(select(CountedLabel.id))} == stored
    for labels in ([], [*sent] * 101, [{"label": codes[0]}]):
        assert service.post("outside", "/v1/labels", json={"labels": labels}).status_code == 422


def test_a_retracted_label_is_not_stored_again_by_a_retry(service: Service) -> None:
    code = classes_of(service)[0]
    case = service.add_cases(1)[0]["id"]
    answer = send(service, [label_of(0, "r", code)], "a key")
    label = answer["results"][0]["label_id"]
    assert service.post("outside", f"/v1/labels/{label}/retraction", json={"reason": "a slip"}).status_code == 201
    assert send(service, [label_of(0, "r", code)], "a key") == answer
    assert service.document(f"/v1/cases/{case}/labels")["items"] == []
    assert statuses(send(service, [label_of(0, "r", code)])) == ["stored"]


def test_an_answer_that_shows_an_erased_cell_is_forgotten(service: Service) -> None:
    code = classes_of(service)[0]
    for number, patient in enumerate(["p1", "p2"]):
        service.add_case(f"case {number}", cell_png(number), patient=patient)
    labels = [label_of(number, "r", code) for number in range(2)]
    send(service, labels, "a key")
    with service.context.database.write() as session:
        erase_patient_rows(session, service.context, "lead", ErasureTarget("p1"), "the patient asked")
    assert statuses(send(service, labels, "a key")) == ["refused", "known"]


@pytest.mark.slow
@pytest.mark.ci
@both_databases
def test_requests_at_once_store_each_label_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_AT_ONCE", 12)
    codes = classes_of(service)
    set_policy(service, threshold=0.0)
    cases = [case["id"] for case in service.add_cases(6)]
    labels = [label_of(cell, f"r{reader}", codes[(cell + reader) % 3]) for reader in range(4) for cell in range(6)]
    orders = [labels, labels[::-1], labels[12:] + labels[:12]]

    def send_alone(number: int) -> int:
        cell, reader = number % 6, number // 6
        label = codes[(cell + reader) % 3]
        return service.label("outside", cases[cell], label, annotator=f"r{reader}", blind=True).status_code

    with ThreadPoolExecutor(4) as threads:
        together = [threads.submit(send, service, order) for order in orders]
        alone = Counter(threads.map(send_alone, reversed(range(24))))
        in_all = Counter(status for answer in together for status in statuses(answer.result()))
    assert alone.keys() <= {201, 409}
    assert in_all == {"stored": len(labels) - alone[201], "known": 2 * len(labels) + alone[201]}
    states = service.scalars(select(ReadRequest.state).where(ReadRequest.round == "planned"))
    assert states == ["answered"] * 12  # both of each cell
    rows = service.rows(select(CountedLabel.case_id, CountedLabel.annotator_id))
    assert len(rows) == len(set(rows)) == len(labels)
    assert len(service.scalars(select(Annotator.id).where(Annotator.account_id.is_(None)))) == 4
    assert service.faults() == []
