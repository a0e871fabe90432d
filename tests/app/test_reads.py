"""Labels, blindness and posteriors over HTTP, on both databases."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sqlalchemy import select

from app.database.tables import Label
from ml.distributions.decisions import majority_prob
from ml.distributions.families import DirichletCpe
from tests.app.test_people import first_password
from tests.support.service import Service, cell_png


def test_posterior_is_the_closed_form_of_the_stored_prior(service: Service) -> None:
    case = service.add_case()
    classes, prior = case["prediction"]["classes"], case["prediction"]
    counts = np.zeros((1, len(classes)), dtype=int)
    for reader, code in (("r1", classes[2]), ("r2", classes[2]), ("r3", classes[0])):
        body = service.outside_label(case["id"], reader, code)
        counts[0, classes.index(code)] += 1
        expected = DirichletCpe(
            np.array([list(prior["class_probs"].values())]), np.array([prior["log_concentration"]])
        ).posterior(counts)
        after = body["posterior"]
        np.testing.assert_allclose(list(after["class_probs"].values()), expected.class_probs[0], atol=1e-12)
        assert after["log_concentration"] == pytest.approx(expected.log_concentration[0], abs=1e-12)
        assert after["disagreement_prob"] == pytest.approx(expected.disagreement_probs[0], abs=1e-12)
        assert after["majority_prob"] == pytest.approx(majority_prob(expected)[0], abs=1e-12)
        assert after["n_labels"] == counts.sum()
    assert service.get("viewer", f"/v1/cases/{case['id']}/posterior").json() == after


def test_without_labels_the_posterior_is_the_prior(service: Service) -> None:
    case = service.add_case()
    posterior = service.get("viewer", f"/v1/cases/{case['id']}/posterior").json()
    for name in ("class_probs", "log_concentration", "disagreement_prob", "class_intervals"):
        assert posterior[name] == case["prediction"][name]
    assert posterior["n_labels"] == 0


def test_excluding_an_annotator_takes_its_label_out(service: Service) -> None:
    case = service.add_case()
    posterior = service.outside_label(case["id"], "r1", case["prediction"]["classes"][0])["posterior"]
    service.outside_label(case["id"], "r2", case["prediction"]["classes"][3])
    without = service.get("viewer", f"/v1/cases/{case['id']}/posterior", params={"exclude_annotator": "r2"}).json()
    # sets for the next answer are calibrated on all labels of a case, not on some
    assert without == posterior | {"answer_set": None}


def test_labels_that_were_not_blind_stay_out_of_the_posterior(service: Service) -> None:
    case = service.add_case()
    body = service.outside_label(case["id"], "r1", case["prediction"]["classes"][0], blind=False)
    assert body["posterior"]["n_labels"] == 0
    assert body["posterior"]["class_probs"] == case["prediction"]["class_probs"]
    assert service.get("viewer", "/v1/metrics").json()["n_labels"] == 0


def test_a_form_of_another_site_is_refused(service: Service) -> None:
    case = service.add_case()
    cookie = first_password(service, "anna")["Cookie"]
    form = {"label": case["prediction"]["classes"][0]}
    service.lease_on("anna", case["id"])
    shown = service.client.get(f"/cases/{case['id']}", headers={"Accept": "text/html", "Cookie": cookie}).text
    action = shown.split('data-answer="')[1].split('"')[0]
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://elsewhere.example"}):
        answer = service.client.post(f"/reads/{action}/label", data=form, headers=headers | {"Cookie": cookie})
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:secondread:problem:cross-site-request")
    same = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin", "Accept": "text/html"}
    for _ in range(2):  # sent twice, stored once
        answer = service.client.post(
            f"/reads/{action}/label", data=form, headers=same | {"Cookie": cookie}, follow_redirects=False
        )
        assert answer.status_code == 303
    assert len(service.get("viewer", f"/v1/cases/{case['id']}/labels").json()["items"]) == 1


def test_a_label_is_given_once_and_only_for_oneself(service: Service) -> None:
    case = service.add_case()
    code = case["prediction"]["classes"][0]
    path = f"/v1/reads/{service.lease_on('anna', case['id'])}/labels"
    assert service.post("anna", path, json={"label": "dragon"}).status_code == 422
    assert service.post("anna", path, json={"label": code, "annotator": "ben"}).status_code == 422
    assert service.post("anna", path, json={"label": code}).status_code == 201
    again = service.post("anna", path, json={"label": code})
    assert (again.status_code, again.json()["type"]) == (409, "urn:secondread:problem:lease-lost")
    for who in ("ben", "viewer", "admin"):
        assert service.label(who, case["id"], code).status_code == 403
        assert service.label(who, case["id"], code, annotator="anna", blind=True).status_code == 403
    assert service.label("outside", case["id"], code, annotator="anna", blind=True).status_code == 403
    assert service.label("outside", case["id"], code).status_code == 422


@pytest.mark.both_databases
def test_a_retry_with_the_same_key_stores_one_label(service: Service) -> None:
    case = service.add_case()
    code, other = case["prediction"]["classes"][:2]
    path = f"/v1/reads/{service.lease_on('anna', case['id'])}/labels"
    first, again = (service.post("anna", path, "k", json={"label": code}) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert service.post("anna", path, "k", json={"label": other}).status_code == 422
    spelled = {"content": f' {{"note": null,  "label": "{code}"}}', "headers": {"Content-Type": "application/json"}}
    assert service.post("anna", path, "k", **spelled).json() == first.json()
    elsewhere = service.post("anna", path.replace("/labels", "/correction"), "k", json={"label": code})
    assert elsewhere.json()["type"] == "urn:secondread:problem:idempotency-key-reused"


@pytest.mark.both_databases
def test_many_at_once_store_each_label_exactly_once(service: Service) -> None:
    cases = [service.add_case(f"case-{i}", cell_png(i))["id"] for i in range(3)]
    code = service.get("viewer", f"/v1/cases/{cases[0]}").json()["prediction"]["classes"][0]
    wanted = [(case, f"r{r}") for case in cases for r in range(4)] * 3  # every one three times, same key

    def send(job: tuple[str, str]) -> int:
        case, reader = job
        return service.label("outside", case, code, f"{case}-{reader}", annotator=reader, blind=True).status_code

    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(send, wanted))
    assert set(statuses) <= {201, 503}, statuses
    for job, status in zip(wanted, statuses, strict=True):  # what was told to try again is tried again
        assert status == 201 or send(job) == 201
    assert len(service.scalars(select(Label))) == 12
    for case in cases:
        assert service.get("viewer", f"/v1/cases/{case}/posterior").json()["n_labels"] == 4


@pytest.mark.both_databases
def test_a_commit_that_fails_is_never_answered_with_success(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.orm import Session

    case = service.add_case()

    path = f"/v1/reads/{service.lease_on('anna', case['id'])}/labels"

    def fail(self: Session) -> None:
        raise RuntimeError("disk gone")

    monkeypatch.setattr(Session, "commit", fail)
    response = service.post("anna", path, json={"label": case["prediction"]["classes"][0]})
    monkeypatch.undo()
    assert response.status_code == 500
    assert service.get("viewer", f"/v1/cases/{case['id']}/labels").json()["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"label": NaN}', b'{"label": "x", "confidence": NaN}', b'{"label": "x", "confidence": Infinity}',
        b'{"label": "x", "confidence": 1e999}', b'{"label": "\\ud800"}', b'{"\\ud800": 1}', b'{"label": "a\\u0000b"}',
        b'{"label": "x", "note": "\\u0000"}', b'{"label": "x", "confidence": 99999999999999999999999999}', b"{", b"",
        b"[]", b"null", b'"x"', b'{"label": "x", "surprise": 1}', b"\xff\xfe", b'{"label": ' + b"[" * 5000,
        b'{"label": "x", "blind": 9223372036854775808}', b'{"label": "' + b"x" * 300 + b'"}',
    ],
)  # fmt: skip
def test_malformed_json_is_4xx_and_never_echoed(shared_service: Service, body: bytes) -> None:
    case = shared_service.add_case(uuid.uuid4().hex)
    response = shared_service.post(
        "outside", f"/v1/cases/{case['id']}/labels", content=body, headers={"Content-Type": "application/json"}
    )
    assert 400 <= response.status_code < 500, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert "xxxxxxxxxx" not in response.text
