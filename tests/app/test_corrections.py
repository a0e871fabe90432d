"""A slip is corrected blind while the label is provisional, and nothing follows from a label before it is final."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from app.cases.blindness import record_exposure
from app.database.tables import Annotator, ProvisionalLabel, utc_now
from app.labels.corrections import finalize_labels
from tests.app.test_leases import classes_of, commit, read_next, requests_of, set_policy
from tests.app.test_people import GOOD, first_password, sign_in
from tests.security.test_right_person import answer_form, judging, labels, submit
from tests.support.service import Service, cell_png


def once(service: Service, **fields: Any) -> None:
    """From now on a case is read once, and shown when it is closed."""
    set_policy(service, **{"threshold": 0.99, "audit_rate": 1e-9, "reveal": "after_case_closed"} | fields)


def correct(service: Service, who: str, read: dict[str, Any], code: str, key: str | None = None) -> Any:
    return service.post(who, f"/v1/reads/{read['id']}/correction", key, json={"label": code})


def time_passes(service: Service, minutes: float = 16) -> None:
    """Provisional labels grow older."""
    with service.context.database.write() as session:
        for row in session.execute(select(ProvisionalLabel)).scalars():
            row.final_at -= timedelta(minutes=minutes)


def n_labels(service: Service) -> int:
    count: int = service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()["n_labels"]
    return count


def test_a_slip_is_corrected_blind_and_only_the_last_answer_counts(service: Service) -> None:
    once(service)
    case, codes = service.add_case(), classes_of(service)
    read = read_next(service, "anna")
    first = commit(service, "anna", read, codes[0]).json()
    assert (first["posterior"], first["hidden_because"]) == (None, "until-case-closed")
    path = f"/v1/cases/{case['id']}"
    assert (n_labels(service), judging(service)) == (0, [])
    assert service.get("viewer", f"{path}/posterior").json()["n_labels"] == 0
    answer = correct(service, "anna", read, codes[1], key="k")
    assert answer.status_code == 201, answer.text
    body = answer.json()
    label = body["label"]
    assert (label["kind"], label["blind"], label["post_reveal"]) == ("correction", True, False)
    assert (label["supersedes"], label["label"], label["round"]) == (first["label"]["id"], codes[1], None)
    assert (body["posterior"], body["hidden_because"]) == (None, "until-case-closed")
    assert correct(service, "anna", read, codes[1], key="k").json() == body
    assert service.get("anna", path).status_code == 403
    assert finalize_labels(service.context) == 0
    time_passes(service)
    assert finalize_labels(service.context) == 1
    assert (n_labels(service), judging(service)) == (1, [("anna", codes[1])])
    assert service.get("anna", path).status_code == 200
    posterior = service.get("viewer", f"{path}/posterior").json()
    assert (posterior["n_labels"], posterior["label_counts"][codes[1]]) == (1, 1)
    rows = service.get("viewer", f"{path}/labels", params={"history": True}).json()["items"]
    assert [(row["label"], row["kind"]) for row in rows] == [(codes[0], "label"), (codes[1], "correction")]
    assert rows[0]["created_at"] < rows[1]["created_at"]  # the seconds between are kept
    assert service.faults() == []


@pytest.mark.parametrize("how", ["minutes", "seen", "twin seen", "ten cases", "signed out"])
def test_a_final_label_is_not_corrected(service: Service, how: str) -> None:
    once(service)
    case, codes = service.add_case(), classes_of(service)
    cookie = first_password(service, "anna")
    read = read_next(service, "anna")
    commit(service, "anna", read, codes[0])
    if how == "minutes":
        time_passes(service, 14)
        assert correct(service, "anna", read, codes[1]).status_code == 201
        time_passes(service, 2)
    elif how in {"seen", "twin seen"}:
        shown = case if how == "seen" else service.add_case("twin")
        release = UUID(service.get("viewer", "/v1/releases").json()["items"][0]["id"])
        with service.context.database.write() as session:
            anna = session.execute(select(Annotator.id).where(Annotator.name == "anna")).scalar_one()
            record_exposure(session, anna, UUID(shown["id"]), release, None)
    elif how == "ten cases":
        for number in range(1, 11):
            assert correct(service, "anna", read, codes[number % 2]).status_code == 201
            service.add_case(f"case {number}", cell_png(number))
            other = read_next(service, "anna")
            if number % 3:
                assert commit(service, "anna", other, codes[2]).status_code == 201
            else:
                declined = service.post("anna", f"/v1/reads/{other['id']}/decline", json={"reason": "other"})
                assert declined.status_code == 200
    else:
        service.client.post("/logout", headers=cookie)
    before = labels(service)
    refused = correct(service, "anna", read, codes[3])
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:secondread:problem:label-final")
    assert labels(service) == before
    assert finalize_labels(service.context) == (0 if how == "twin seen" else 1)  # that of a twin waits for its minutes
    assert correct(service, "anna", read, codes[3]).json()["type"].endswith("label-final")


def test_nobody_corrects_what_is_not_their_answer(service: Service) -> None:
    once(service)
    service.add_case()
    codes, read = classes_of(service), read_next(service, "anna")
    assert correct(service, "anna", read, codes[0]).json()["type"].endswith("label-final")
    commit(service, "anna", read, codes[0])
    assert correct(service, "ben", read, codes[1]).status_code == 404
    assert correct(service, "anna", read, "no such class").status_code == 422
    assert labels(service) == [("anna", codes[0])]


@pytest.mark.parametrize("agree", [False, True])
def test_adjudication_is_asked_for_by_final_labels_alone(service: Service, agree: bool) -> None:
    once(service, threshold=0.0, adjudicate_below=0.999)
    case, codes = service.add_case(), classes_of(service)
    reads = {who: read_next(service, who) for who in ("anna", "ben")}
    commit(service, "anna", reads["anna"], codes[0])
    time_passes(service)
    assert finalize_labels(service.context) == 1
    commit(service, "ben", reads["ben"], codes[1])
    assert len(requests_of(service, case["id"])) == 2, "ben may still correct"
    if agree:
        correct(service, "ben", reads["ben"], codes[0])
    time_passes(service)
    assert finalize_labels(service.context) == 1
    arms = [request.arm for request in requests_of(service, case["id"])]
    undecided = service.get("viewer", f"/v1/cases/{case['id']}/posterior").json()["majority_prob"] < 0.999
    assert arms == ["first", "triage"] + ["adjudication"] * undecided
    assert agree or undecided
    waiting = [row["case"]["id"] for row in service.get("viewer", "/v1/worklist").json()["items"]]
    assert (case["id"] in waiting) == undecided


def test_a_correction_is_answered_alike_whatever_others_did(service: Service) -> None:
    """Nobody else has read the case; somebody has, otherwise or alike, finally or not yet; somebody has declined."""
    once(service, threshold=0.0, adjudicate_below=0.999)
    codes, answers = classes_of(service), []
    for number, others in enumerate(("nobody", "otherwise", "alike", "final", "declined")):
        service.add_case(f"case {number}", cell_png(number))
        anna, ben = read_next(service, "anna"), read_next(service, "ben")
        if others == "declined":
            service.post("ben", f"/v1/reads/{ben['id']}/decline", json={"reason": "cannot_tell"})
        elif others == "nobody":
            service.call("ben", "DELETE", f"/v1/reads/{ben['id']}")
        else:
            commit(service, "ben", ben, codes[1 if others == "otherwise" else 0])
        if others == "final":
            time_passes(service)
            finalize_labels(service.context)
        given = [commit(service, "anna", anna, codes[2]), correct(service, "anna", anna, codes[0])]
        assert [answer.status_code for answer in given] == [201, 201]
        documents = [answer.json() for answer in given]
        for document in documents:
            for name in ("id", "case_id", "supersedes", "created_at", "reading_seconds"):
                document["label"].pop(name)
        answers.append(documents)
        if others == "nobody":
            service.post("ben", f"/v1/reads/{read_next(service, 'ben')['id']}/decline", json={"reason": "other"})
    assert all(documents == answers[0] for documents in answers)


def test_a_provisional_label_shows_the_case_to_nobody(service: Service) -> None:
    once(service, threshold=0.0)
    case, codes = service.add_case(), classes_of(service)
    for who in ("anna", "ben"):
        body = commit(service, who, read_next(service, who), codes[0]).json()
        assert (body["hidden_because"], body["posterior"]) == ("until-case-closed", None)
        time_passes(service)
        for reader in ("anna", "ben"):
            assert service.get(reader, f"/v1/cases/{case['id']}").status_code == 403
        assert finalize_labels(service.context) == 1
    assert [service.get(who, f"/v1/cases/{case['id']}").status_code for who in ("anna", "ben")] == [200, 200]


def test_a_case_that_is_shown_at_once_has_a_final_label_at_once(service: Service) -> None:
    once(service, reveal="after_commit")
    service.add_case()
    codes, read = classes_of(service), read_next(service, "anna")
    assert commit(service, "anna", read, codes[0]).json()["posterior"]["n_labels"] == 1
    assert n_labels(service) == 1
    assert correct(service, "anna", read, codes[1]).json()["type"].endswith("label-final")


def test_an_open_case_of_a_provisional_label_is_left_out_of_the_weighted_cohort(service: Service) -> None:
    once(service)
    for number in range(3):
        service.add_case(f"case {number}", cell_png(number))
        commit(service, "anna", read_next(service, "anna"), classes_of(service)[0])
    time_passes(service)
    with service.context.database.write() as session:
        newest = session.execute(select(ProvisionalLabel.label_id).order_by(ProvisionalLabel.label_id.desc())).scalars()
        session.execute(
            update(ProvisionalLabel)
            .where(ProvisionalLabel.label_id == newest.first())
            .values(final_at=utc_now() + timedelta(minutes=1))
        )
    finalize_labels(service.context)
    found = service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()["selection"]
    assert (found["n_closed"], found["n_open"]) == (2, 1)


def test_the_page_goes_back_to_the_last_answer_and_corrects_it_once(service: Service) -> None:
    once(service)
    codes, cookie = classes_of(service), first_password(service, "anna")
    page = {"headers": cookie | {"Accept": "text/html"}}
    service.add_cases(2)
    first = read_next(service, "anna")
    form = answer_form(service, cookie, first["case_id"])
    assert submit(service, cookie, form, label=codes[0]) == (204, "")
    second = read_next(service, "anna")
    shown = service.client.get(f"/cases/{second['case_id']}", **page).text
    back = shown.split('data-action="back"')[0].rsplit('href="', 1)[1].split('"')[0]
    shown = service.client.get(back, **page).text
    assert f'value="{codes[0]}" required checked' in shown
    assert f'src="/v1/cases/{first["case_id"]}/image"' in shown
    assert f'data-next="/cases/{second["case_id"]}"' in shown
    correction = shown.split('action="/reads/')[1].split('"')[0]
    assert correction != form.removeprefix("/reads/")
    for _ in range(2):
        assert submit(service, cookie, f"/reads/{correction}", label=codes[1]) == (204, "")
    assert submit(service, cookie, f"/reads/{correction}", label=codes[2]) == (409, "superseded")
    assert submit(service, cookie, form, label=codes[0]) == (204, "")  # the first answer, sent again
    assert labels(service) == [("anna", codes[0]), ("anna", codes[1])]
    service.client.post("/logout", headers=cookie)
    cookie = sign_in(service, "anna", GOOD)[1]
    page = {"headers": cookie | {"Accept": "text/html"}}
    assert "data-answer" not in service.client.get(back, **page).text
    assert "/correction" not in service.client.get(f"/cases/{second['case_id']}", **page).text


def test_corrections_are_reported(service: Service) -> None:
    once(service)
    codes = classes_of(service)
    for number in range(3):
        service.add_case(f"case {number}", cell_png(number))
        read = read_next(service, "anna")
        commit(service, "anna", read, codes[0])
        if number:
            correct(service, "anna", read, codes[1])
    time_passes(service)
    finalize_labels(service.context)
    found = service.get("viewer", "/v1/agreement", params={"partition": "all"}).json()["corrections"]
    assert (found["n_labels"], found["n_corrected"], found["rate"]) == (3, 2, pytest.approx(2 / 3))
    assert found["directions"] == [{"before": codes[0], "after": codes[1], "count": 2}]
    assert 0 <= found["median_seconds"] < 60


def test_the_audit_shows_labels_that_have_become_final(service: Service, tmp_path: Path) -> None:
    """The object of that event is no label: the list, its page and an export of the audit must not take it for one."""
    once(service)
    service.add_case()
    commit(service, "anna", read_next(service, "anna"), classes_of(service)[0])
    assert service.make_labels_final() == 1
    shown = service.get("admin", "/v1/audit-events")
    assert shown.status_code == 200
    assert shown.json()["items"][0]["action"] == "label.final"
    service.export(tmp_path / "out", images=False)
