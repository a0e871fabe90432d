"""What the reading page asks for behind the image: cases ahead, second choices, flags, and what was settled since."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from app.operations.verify import verify_all
from app.pages.handles import account_handle
from app.reads.corrections import settle
from app.reads.leases import MAX_LEASES
from app.tables import Account, Exposure, Label, Read, ReadRequest, now
from tests.app.test_corrections import once, read_next, time_passes
from tests.app.test_leases import classes_of, commit, set_policy
from tests.support.service import Service, cell_png

SECRETS = ("disagreement", "prob", "second_read", "arm", "pi", "prediction", "posterior", "label_counts")


def account_of(service: Service, name: str) -> str:
    """What the pages of an account call it."""
    with service.context.database.read() as session:
        account_id = session.execute(select(Account.id).where(Account.name == name)).scalar_one()
    return account_handle(service.context.keys.readers, account_id)


def ahead(service: Service, who: str, of: str | None = None) -> Any:
    return service.post(who, "/reads/ahead", data={"account": account_of(service, of or who)})


def read_twice(service: Service, **fields: Any) -> None:
    """From now on two annotators read each case, and it stays closed until both have."""
    set_policy(service, **{"threshold": 0.0, "audit_rate": 1.0, "reveal": "after_case_closed"} | fields)


@pytest.mark.both_databases
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
        frozenset({"read", "answer", "case", "number", "image", "mpp", "lease_seconds"})
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
    with service.context.database.read() as session:
        assert session.execute(select(Read.id)).all() == []
    assert ahead(service, "admin", of="anna").status_code == 403


def test_a_case_is_read_from_when_the_page_shows_it(service: Service) -> None:
    """Leased ahead minutes before, shown at last: the seconds count from then."""
    once(service)
    service.add_case()
    read = ahead(service, "anna").json()["reads"][0]
    with service.context.database.write() as session:
        session.execute(update(Read).values(created_at=now() - timedelta(minutes=5)))
    assert service.post("anna", f"/reads/{read['answer']}/display").status_code == 204
    assert service.post("ben", f"/reads/{read['answer']}/display").status_code in {403, 404}
    with service.context.database.write() as session:
        session.execute(update(Read).values(displayed_at=now() - timedelta(seconds=7)))
    service.post("anna", f"/reads/{read['answer']}/label", data={"label": classes_of(service)[0]})
    with service.context.database.read() as session:
        seconds = session.execute(select(Label.reading_seconds)).scalar_one()
    assert 7 <= seconds < 200


@pytest.mark.both_databases
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
    settle(service.context)
    for case in (plain, said):
        posterior = service.get("viewer", f"/v1/cases/{case['id']}/posterior").json()
        assert sum(posterior["label_counts"].values()) == 1
        assert posterior["label_counts"][codes[1]] == 0
    page = service.get("admin", "/flagged", headers={"Accept": "text/html"})
    assert page.text.count("<tr>") == 2  # the heading, and the one whose flag stands
    assert service.get("anna", "/flagged").status_code == 403
    with service.context.database.read() as session:
        assert verify_all(session, service.context).faults == []


@pytest.mark.both_databases
def test_what_was_settled_is_shown_once_and_only_then(service: Service) -> None:
    read_twice(service)
    service.add_case()
    codes = classes_of(service)

    def page(who: str) -> str:
        text: str = service.get(who, "/settled", headers={"Accept": "text/html"}).text
        return text

    def shown() -> int:
        with service.context.database.read() as session:
            return len(session.execute(select(Exposure.id)).all())

    commit(service, "anna", read_next(service, "anna"), codes[0])
    assert "Nothing new" in page("anna")  # the other has not read it
    commit(service, "ben", read_next(service, "ben"), codes[1])
    assert "Nothing new" in page("anna")  # it may still be corrected
    assert shown() == 0
    time_passes(service)
    settle(service.context)
    with service.context.database.write() as session:  # what settling asked for is not planned
        session.execute(update(ReadRequest).where(ReadRequest.round == "adjudication").values(state="closed"))
    text = page("anna")
    assert "no other annotator did; 1 said" in text
    assert "most differ from you" in text
    assert shown() == 1
    assert "Nothing new" in page("anna")
    assert service.get("viewer", "/settled").status_code == 403


def test_a_case_that_nobody_else_has_read_is_not_listed(service: Service) -> None:
    once(service)
    service.add_case()
    commit(service, "anna", read_next(service, "anna"), classes_of(service)[0])
    time_passes(service)
    settle(service.context)
    assert "Nothing new" in service.get("anna", "/settled", headers={"Accept": "text/html"}).text
