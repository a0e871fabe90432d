"""What the reading page asks for behind the image: cases ahead, second choices, flags, and what was settled since."""

from datetime import timedelta
from typing import Any

from sqlalchemy import select, update

from app.database.tables import Account, Exposure, Label, Read, ReadRequest, utc_now
from app.labels.corrections import finalize_labels
from app.labels.leases import MAX_LEASES
from app.metrics.secondary_statistics import count_corrections
from app.web.forms import account_handle
from tests.app.test_corrections import once, time_passes
from tests.app.test_leases import classes_of, commit, expire_all, read_next, set_policy
from tests.support.service import Service, cell_png

SECRETS = ("disagreement", "prob", "second_read", "arm", "pi", "prediction", "posterior", "label_counts")


def account_of(service: Service, name: str) -> str:
    """What the pages of an account call it."""
    account_id = service.one(select(Account.id).where(Account.name == name))
    return account_handle(service.context.keys.readers, account_id)


def ahead(service: Service, who: str, of: str | None = None) -> Any:
    return service.post(who, "/reads/ahead", data={"account": account_of(service, of or who)})


def read_twice(service: Service, **fields: Any) -> None:
    """From now on two annotators read each case, and it stays closed until both have."""
    set_policy(service, **{"threshold": 0.0, "audit_rate": 1.0, "reveal": "after_case_closed"} | fields)


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
    refused = ahead(service, "ben", of="anna")
    assert refused.status_code == 403
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
        posterior = service.get("viewer", f"/v1/cases/{case['id']}/posterior").json()
        assert sum(posterior["label_counts"].values()) == 1
        assert posterior["label_counts"][codes[1]] == 0
    page = service.get("admin", "/flagged", headers={"Accept": "text/html"})
    assert page.text.count("<tr>") == 2  # the heading, and the one whose flag stands
    assert service.get("anna", "/flagged").status_code == 403
    assert service.faults() == []


def test_what_was_settled_is_shown_once_and_only_then(service: Service) -> None:
    read_twice(service)
    service.add_case()
    codes = classes_of(service)

    def page(who: str) -> str:
        text: str = service.get(who, "/settled", headers={"Accept": "text/html"}).text
        return text

    def shown() -> int:
        return len(service.rows(select(Exposure.id)))

    commit(service, "anna", read_next(service, "anna"), codes[0])
    assert "Nothing new" in page("anna")  # the other has not read it
    commit(service, "ben", read_next(service, "ben"), codes[1])
    assert "Nothing new" in page("anna")  # it may still be corrected
    assert shown() == 0
    time_passes(service)
    finalize_labels(service.context)
    service.change(update(ReadRequest).where(ReadRequest.round == "adjudication").values(state="closed"))
    text = page("anna")
    assert "no other annotator did; others said: 1 “" in text
    assert "most differ" in text
    assert f'href="/references?class={codes[0]}&amp;class={codes[1]}"' in text
    assert shown() == 1
    assert "Nothing new" in page("anna")
    assert service.get("viewer", "/settled").status_code == 403


def test_a_case_that_nobody_else_has_read_is_not_listed(service: Service) -> None:
    once(service)
    service.add_case()
    commit(service, "anna", read_next(service, "anna"), classes_of(service)[0])
    time_passes(service)
    finalize_labels(service.context)
    assert "Nothing new" in service.get("anna", "/settled", headers={"Accept": "text/html"}).text


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
    with service.context.database.read() as session:
        rows = session.execute(select(Label).order_by(Label.position)).scalars().all()
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
    seconds = service.one(select(Label.reading_seconds))
    assert 7 <= seconds < 200
