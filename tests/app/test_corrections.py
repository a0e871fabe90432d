"""Labels over HTTP: slips corrected blind before they are final, posteriors, and the reading page."""

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.cases.blindness import record_exposure
from app.database.tables import Annotator, Exposure, Label, ProvisionalLabel, Read, ReadRequest, utc_now
from app.labels.corrections import finalize_labels
from app.labels.leases import MAX_LEASES
from app.metrics.secondary_statistics import count_corrections
from app.web.forms import account_handle
from ml.distributions.decisions import majority_prob
from ml.distributions.families import DirichletCpe
from tests.app.test_leases import classes_of, commit, expire_all, read_next, requests_of, set_policy, twice
from tests.app.test_people import GOOD, first_password, sign_in
from tests.security.test_right_person import answer_form, judging, labels, submit
from tests.support.service import Service, cell_png, raising


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
    return int(service.document("/v1/metrics", partition="all")["n_labels"])


def test_a_slip_is_corrected_blind_and_only_the_last_answer_counts(service: Service) -> None:
    once(service)
    case, codes = service.add_case(), classes_of(service)
    read = read_next(service, "anna")
    first = commit(service, "anna", read, codes[0]).json()
    assert (first["posterior"], first["hidden_because"]) == (None, "until-case-closed")
    path = f"/v1/cases/{case['id']}"
    assert (n_labels(service), judging(service)) == (0, [])
    assert service.document(f"{path}/posterior")["n_labels"] == 0
    answer = correct(service, "anna", read, codes[1], key="k")
    assert answer.status_code == 201, answer.text
    body, label = answer.json(), answer.json()["label"]
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
    posterior = service.document(f"{path}/posterior")
    assert (posterior["n_labels"], posterior["label_counts"][codes[1]]) == (1, 1)
    rows = service.document(f"{path}/labels", history=True)["items"]
    assert [(row["label"], row["kind"]) for row in rows] == [(codes[0], "label"), (codes[1], "correction")]
    assert rows[0]["created_at"] < rows[1]["created_at"]  # the seconds between are kept
    assert service.faults() == []


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.slow_on_second_database
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
        release = UUID(service.document("/v1/releases")["items"][0]["id"])
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


@pytest.mark.slow
@pytest.mark.ci
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
    newest = service.scalars(select(ProvisionalLabel.label_id).order_by(ProvisionalLabel.label_id.desc()))[0]
    of_newest = update(ProvisionalLabel).where(ProvisionalLabel.label_id == newest)
    service.change(of_newest.values(final_at=utc_now() + timedelta(minutes=1)))
    finalize_labels(service.context)
    found = service.document("/v1/metrics", partition="all")["selection"]
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
    found = service.document("/v1/agreement", partition="all")["corrections"]
    assert (found["n_labels"], found["n_corrected"], found["rate"]) == (3, 2, pytest.approx(2 / 3))
    assert found["directions"] == [{"before": codes[0], "after": codes[1], "count": 2}]
    assert 0 <= found["median_seconds"] < 60


def test_the_audit_shows_labels_that_have_become_final(service: Service, tmp_path: Path) -> None:
    """The object of that event is no label: the list, its page and an export of the audit must not take it for one."""
    once(service)
    service.add_case()
    commit(service, "anna", read_next(service, "anna"), classes_of(service)[0])
    assert service.make_labels_final() == 1
    assert service.document("/v1/audit-events", "admin")["items"][0]["action"] == "label.final"
    service.export(tmp_path / "out", images=False)


SECRETS = ("disagreement", "prob", "second_read", "arm", "pi", "prediction", "posterior", "label_counts")


def ahead(service: Service, who: str, of: str | None = None) -> Any:
    """What a page asks for that was made for somebody."""
    account = account_handle(service.context.keys.readers, service.principal(of or who).account_id)
    return service.post(who, "/reads/ahead", data={"account": account})


def test_cases_ahead_are_as_many_as_one_may_hold_and_nothing_but_pixels(service: Service) -> None:
    once(service)
    for number in range(MAX_LEASES + 2):
        service.add_case(f"a{number}", cell_png(number), metadata='{"mpp": "0,25"}' if number else "{}")
    first = ahead(service, "anna")
    assert first.status_code == 200, first.text
    body = first.json()
    assert len(body["reads"]) == MAX_LEASES
    assert (body["n_today"], body["n_waiting"]) == (0, MAX_LEASES + 2)
    assert {frozenset(read) for read in body["reads"]} == {
        frozenset({"read", "answer", "case", "number", "image", "field", "mpp", "lease_seconds"})
    }
    assert {read["mpp"] for read in body["reads"]} <= {0.25, None}
    assert not any(word in first.text for word in SECRETS)
    again = ahead(service, "anna").json()["reads"]
    assert [read["read"] for read in again] == [read["read"] for read in body["reads"]]
    label = classes_of(service)[0]
    one = body["reads"][0]
    assert service.post("anna", f"/reads/{one['answer']}/label", data={"label": label}).status_code == 204
    after = ahead(service, "anna").json()
    assert [read["read"] for read in after["reads"]][:2] == [read["read"] for read in body["reads"]][1:]
    assert (len(after["reads"]), after["n_today"], after["n_waiting"]) == (MAX_LEASES, 1, MAX_LEASES + 1)


def test_cases_ahead_are_for_whom_the_page_was_made(service: Service) -> None:
    once(service)
    service.add_case()
    assert ahead(service, "ben", of="anna").status_code == 403
    assert service.rows(select(Read.id)) == []
    assert ahead(service, "admin", of="anna").status_code == 403


def test_a_second_choice_and_a_flag_are_kept_with_the_answer_and_count_nowhere(service: Service) -> None:
    once(service)
    plain, said = service.add_case("plain"), service.add_case("said", cell_png(1))
    codes = classes_of(service)
    for _ in range(2):
        read = read_next(service, "anna")
        path = f"/v1/reads/{read['id']}/labels"
        assert service.post("anna", path, json={"label": codes[0], "second_choice": "none such"}).status_code == 422
        assert service.post("anna", path, json={"label": codes[0], "second_choice": codes[0]}).status_code == 422
        answer = service.post("anna", path, json={"label": codes[0], "second_choice": codes[1], "flag": True})
        assert answer.status_code == 201, answer.text
        label = answer.json()["label"]
        assert (label["label"], label["second_choice"], label["flagged"]) == (codes[0], codes[1], True)
    corrected = service.post("anna", f"/v1/reads/{read['id']}/correction", json={"label": codes[2]})
    assert (corrected.json()["label"]["second_choice"], corrected.json()["label"]["flagged"]) == (None, False)
    time_passes(service)
    finalize_labels(service.context)
    for case in (plain, said):
        counts = service.document(f"/v1/cases/{case['id']}/posterior")["label_counts"]
        assert (sum(counts.values()), counts[codes[1]]) == (1, 0)
    page = service.get("admin", "/flagged", headers={"Accept": "text/html"})
    assert page.text.count("<tr>") == 2  # the heading, and the one whose flag stands
    assert service.get("anna", "/flagged").status_code == 403
    assert service.faults() == []


def test_completed_cells_are_shown_once_they_are_closed_and_stay(service: Service) -> None:
    twice(service)
    service.add_case()
    codes = classes_of(service)

    def page(who: str) -> str:
        text: str = service.get(who, "/settled", headers={"Accept": "text/html"}).text
        return text

    def shown() -> int:
        return len(service.rows(select(Exposure.id)))

    commit(service, "anna", read_next(service, "anna"), codes[0])
    assert "Nothing yet" in page("anna")  # the other has not read it
    commit(service, "ben", read_next(service, "ben"), codes[1])
    assert "Nothing yet" in page("anna")  # it may still be corrected
    assert shown() == 0
    time_passes(service)
    finalize_labels(service.context)
    service.change(update(ReadRequest).where(ReadRequest.round == "adjudication").values(state="closed"))
    names = {info["code"]: info["name"] for info in service.document("/v1/releases")["items"][0]["classes"]}
    text = " ".join(re.sub(r"<[^>]*>", " ", page("anna")).split())
    assert f"You {names[codes[0]]} Others {names[codes[1]]} Compare" in text
    assert f'href="/references?class={codes[0]}&amp;class={codes[1]}"' in page("anna")
    assert shown() == 1
    assert "Older cells" not in text
    assert "No older cells" in service.get("anna", "/settled?after=1", headers={"Accept": "text/html"}).text
    assert service.get("viewer", "/settled").status_code == 403


def test_a_case_that_nobody_else_has_read_is_not_listed(service: Service) -> None:
    once(service)
    service.add_case()
    commit(service, "anna", read_next(service, "anna"), classes_of(service)[0])
    time_passes(service)
    finalize_labels(service.context)
    assert "Nothing yet" in service.get("anna", "/settled", headers={"Accept": "text/html"}).text


def test_a_flag_on_the_same_class_is_a_correction_that_nobody_counts_as_a_slip(service: Service) -> None:
    """Back, a flag, and the same key: the flag is kept, and the next correction finds its place."""
    once(service)
    service.add_case()
    codes, answer = classes_of(service), ahead(service, "anna").json()["reads"][0]["answer"]
    for path, said in (
        ("", {"label": codes[0]}),
        (".0", {"label": codes[0]}),  # says nothing new
        (".0", {"label": codes[0], "flag": "1", "confidence": "0.9"}),
        (".0", {"label": codes[0], "flag": "1", "confidence": "0.9"}),  # sent again
        (".1", {"label": codes[1]}),
    ):
        assert service.post("anna", f"/reads/{answer}{path}/label", data=said).status_code == 204, path
    rows = service.scalars(select(Label).order_by(Label.position))
    said = [(row.kind, row.class_code, row.flagged, row.confidence) for row in rows]
    cases = {row.case_id for row in rows}
    assert said == [
        ("label", codes[0], False, None),
        ("correction", codes[0], True, 0.9),
        ("correction", codes[1], False, None),
    ]
    service.make_labels_final()
    with service.context.database.read() as session:
        counted = count_corrections(session, cases)
    assert [(one.before, one.after, one.count) for one in counted.directions] == [(codes[0], codes[1], 1)]


def test_after_a_long_break_cases_have_their_time_again_and_slips_can_be_corrected(service: Service) -> None:
    """All three leases ran out: they are given anew, and an answer by the name of before keeps its corrections."""
    once(service)
    for number in range(MAX_LEASES):
        service.add_case(f"a{number}", cell_png(number))
    before = ahead(service, "anna").json()["reads"]
    expire_all(service)
    after = ahead(service, "anna").json()["reads"]
    assert {read["case"] for read in after} == {read["case"] for read in before}
    assert all(read["lease_seconds"] > 500 for read in after)
    codes, answer = classes_of(service), before[0]["answer"]
    assert service.post("anna", f"/reads/{answer}/label", data={"label": codes[0]}).status_code == 204
    slip = service.post("anna", f"/reads/{answer}.0/label", data={"label": codes[1]})
    assert slip.status_code == 204, slip.text
    rows = service.rows(select(Label.kind, Label.class_code).order_by(Label.position))
    assert [tuple(row) for row in rows] == [("label", codes[0]), ("correction", codes[1])]


def test_a_case_is_read_from_when_the_page_shows_it(service: Service) -> None:
    """Leased ahead minutes before, shown at last: the seconds count from then."""
    once(service)
    service.add_case()
    read = ahead(service, "anna").json()["reads"][0]
    service.change(update(Read).values(created_at=utc_now() - timedelta(minutes=5)))
    assert service.post("anna", f"/reads/{read['answer']}/display").status_code == 204
    assert service.post("ben", f"/reads/{read['answer']}/display").status_code in {403, 404}
    service.change(update(Read).values(displayed_at=utc_now() - timedelta(seconds=7)))
    service.post("anna", f"/reads/{read['answer']}/label", data={"label": classes_of(service)[0]})
    assert 7 <= service.one(select(Label.reading_seconds)) < 200


def test_posterior_is_the_closed_form_of_the_stored_prior(service: Service) -> None:
    case = service.add_case()
    classes, prior = case["prediction"]["classes"], case["prediction"]
    before = service.document(f"/v1/cases/{case['id']}/posterior")
    for name in ("class_probs", "log_concentration", "disagreement_prob", "class_intervals"):
        assert before[name] == prior[name]
    assert before["n_labels"] == 0
    counts = np.zeros((1, len(classes)), dtype=int)
    for reader, code in (("r1", classes[2]), ("r2", classes[2]), ("r3", classes[0])):
        body = service.outside_label(case["id"], reader, code)
        counts[0, classes.index(code)] += 1
        concentration = np.array([prior["log_concentration"]])
        expected = DirichletCpe(np.array([list(prior["class_probs"].values())]), concentration).posterior(counts)
        after = body["posterior"]
        np.testing.assert_allclose(list(after["class_probs"].values()), expected.class_probs[0], atol=1e-12)
        assert after["log_concentration"] == pytest.approx(expected.log_concentration[0], abs=1e-12)
        assert after["disagreement_prob"] == pytest.approx(expected.disagreement_probs[0], abs=1e-12)
        assert after["majority_prob"] == pytest.approx(majority_prob(expected)[0], abs=1e-12)
        assert after["n_labels"] == counts.sum()
    assert service.document(f"/v1/cases/{case['id']}/posterior") == after


def test_labels_that_were_not_blind_and_those_of_excluded_annotators_stay_out(service: Service) -> None:
    case = service.add_case()
    seen = service.outside_label(case["id"], "r0", case["prediction"]["classes"][0], blind=False)["posterior"]
    assert (seen["n_labels"], seen["class_probs"]) == (0, case["prediction"]["class_probs"])
    assert service.document("/v1/metrics")["n_labels"] == 0
    posterior = service.outside_label(case["id"], "r1", case["prediction"]["classes"][0])["posterior"]
    service.outside_label(case["id"], "r2", case["prediction"]["classes"][3])
    without = service.document(f"/v1/cases/{case['id']}/posterior", exclude_annotator="r2")
    # sets for the next answer are calibrated on all labels of a case, not on some
    assert without == posterior | {"answer_set": None}


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
    same = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin", "Accept": "text/html", "Cookie": cookie}
    for _ in range(2):  # sent twice, stored once
        answer = service.client.post(f"/reads/{action}/label", data=form, headers=same, follow_redirects=False)
        assert answer.status_code == 303
    assert len(service.document(f"/v1/cases/{case['id']}/labels")["items"]) == 1


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
    cases = [case["id"] for case in service.add_cases(3)]
    code = service.document("/v1/releases")["items"][0]["classes"][0]["code"]
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
        assert service.document(f"/v1/cases/{case}/posterior")["n_labels"] == 4


@pytest.mark.both_databases
def test_a_commit_that_fails_is_never_answered_with_success(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    case = service.add_case()
    path = f"/v1/reads/{service.lease_on('anna', case['id'])}/labels"
    monkeypatch.setattr(Session, "commit", raising(RuntimeError("disk gone")))
    response = service.post("anna", path, json={"label": case["prediction"]["classes"][0]})
    monkeypatch.undo()
    assert response.status_code == 500
    assert service.document(f"/v1/cases/{case['id']}/labels")["items"] == []


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
