"""Today: its numbers are those of the lists they lead to, and each need has one button to the page that ends it."""

import re
from datetime import timedelta
from html import unescape
from uuid import UUID

from sqlalchemy import update

from app.database.tables import Account, Case, ReadRequest, utc_now
from app.maintenance.erasure import erase_patient_everywhere
from app.outcomes.service import conclude_cells
from tests.app.test_imports import packed, send
from tests.app.test_leases import answer_all, classes_of, set_policy
from tests.app.test_outcomes import reopen
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png


def today(service: Service, who: str = "admin") -> str:
    answer = service.get(who, "/today")
    assert answer.status_code == 200, answer.text
    return unescape(answer.text)


def numbers(page: str) -> dict[str, int]:
    found = re.findall(r'data-number="([^"]+)"><a href="[^"]+"><b>(\d+)</b>', page)
    return {name: int(n) for name, n in found}


def needs(page: str) -> dict[str, str]:
    """The address behind each button, by what it is about."""
    text = r'<li><span>([^<]+)(?: <span class="muted"><time.*?</span>)?</span>'
    return dict(re.findall(text + r' <a class="button[^"]*" href="([^"]+)">', page))


def differ(service: Service, n: int = 1) -> list[str]:
    """Cells about which both annotators have answered, and differ, so that an adjudication is open."""
    set_policy(service, threshold=0.0, adjudicate_below=0.99, reveal="after_case_closed")
    codes, cells = classes_of(service), [str(case["id"]) for case in service.add_cases(n)]
    for who, code in (("anna", codes[0]), ("ben", codes[1])):
        assert answer_all(service, who, [code]) == n
    service.make_labels_final()
    return cells


def test_cells_that_no_annotator_is_left_to_read_are_counted_and_lead_to_their_list(service: Service) -> None:
    cells = differ(service, 2)
    service.add_case("that nobody has read", cell_png(40))
    page = today(service)
    assert numbers(page)["to-settle"] == 2
    (address,) = [to for text, to in needs(page).items() if "no annotator is left" in text]
    found = service.get("admin", address).text
    assert all(f"/cases/{case}" in found for case in cells)
    body = {"class": classes_of(service)[0], "reason": "seen by both"}
    assert service.post("admin", f"/v1/cases/{cells[0]}/outcome", json=body).status_code == 201
    page = today(service)
    assert numbers(page)["to-settle"] == 1
    assert "1 cell settled" in page
    assert reopen(service, cells[0]).status_code == 204
    assert "0 cells settled" in today(service)


def test_reads_that_were_due_are_overdue(service: Service) -> None:
    cases = [UUID(case["id"]) for case in service.add_cases(3)]
    assert numbers(today(service)) == {"to-read": 3, "overdue": 0, "to-settle": 0}
    late = utc_now() - timedelta(hours=1)
    service.change(update(ReadRequest).where(ReadRequest.case_id == cases[0]).values(due_at=late))
    service.written_past = True
    page = today(service)
    assert numbers(page) == {"to-read": 3, "overdue": 1, "to-settle": 0}
    address = needs(page)["1 cell is overdue."]
    listed = set(re.findall(r"/cases/([0-9a-f-]{36})", service.get("admin", address).text))
    assert listed == {str(cases[0])}


def test_a_settled_cell_is_to_read_and_overdue_while_an_annotator_is_left(service: Service) -> None:
    set_policy(service, threshold=0.0, reveal="after_case_closed")
    case = service.add_case()["id"]
    answer_all(service, "anna", classes_of(service)[:1])
    assert service.settle(case).status_code == 201
    with service.clock.off_by(timedelta(days=30)):
        assert numbers(today(service)) == {"to-read": 1, "overdue": 1, "to-settle": 0}
        service.set_disabled("ben", disabled=True)
        assert numbers(today(service)) == {"to-read": 0, "overdue": 0, "to-settle": 0}
        for path in ("/worklist", "/cells?state=overdue", "/cells?state=to_read"):
            assert f"/cases/{case}" not in service.get("admin", path).text


def test_a_flag_needs_a_lead_until_a_person_settles_its_cell(service: Service) -> None:
    set_policy(service, threshold=0.0, reveal="after_case_closed")
    case, codes = service.add_case()["id"], classes_of(service)
    for who in ("anna", "ben"):
        assert service.answer(who, case, codes[0], flag=who == "anna").status_code == 201
    service.make_labels_final()
    service.outside_label(case, "r", codes[0])
    assert conclude_cells(service.context) == 1  # a rule, which looks at no flag
    for step, listed in ((None, True), ("reopen", True), ("settle", False), ("reopen", True)):
        if step == "settle":
            assert service.settle(case).status_code == 201
        elif step == "reopen":
            assert reopen(service, case).status_code == 204
        assert ("Annotators flagged 1 cell." in needs(today(service))) == listed
        for path in ("/flagged", "/cells?state=flagged"):
            assert (f"/cases/{case}" in service.get("admin", path).text) == listed


def test_what_happened_before_yesterday_is_not_counted(service: Service) -> None:
    old, new = service.add_cases(2)
    service.add_case("gone", cell_png(9), patient="p")
    assert "3 cells stored" in today(service)
    erase_patient_everywhere(service.context, "admin", "p", "asked")
    service.change(update(Case).where(Case.id == UUID(old["id"])).values(created_at=utc_now() - timedelta(days=3)))
    service.written_past = True
    assert "1 cell stored" in today(service)
    set_policy(service, threshold=0.4)
    assert "created version" in (page := today(service))
    assert " more</a>" not in page
    for threshold in (0.5, 0.6, 0.7, 0.8):
        set_policy(service, threshold=threshold)
    page = today(service)
    assert (page.count("created version"), 'href="/audit?since=' in page, "and 2 more</a>" in page) == (3, True, True)
    assert new["id"]


def test_a_policy_that_needs_more_annotators_asks_for_one(service: Service) -> None:
    service.add_cases(1)
    set_policy(service, threshold=0.3, adjudicate_below=0.9)
    assert needs(today(service))["The reading policy needs 1 more annotator."] == "/people"
    set_policy(service, threshold=0.4, adjudicate_below=None)
    assert not any("more annotator" in text for text in needs(today(service)))
    for who in ("anna", "ben"):
        service.set_disabled(who, disabled=True)
    assert "The reading policy needs 2 more annotators." in needs(page := today(service))
    assert numbers(page)["to-settle"] == 1
    service.change(update(Account).where(Account.role == "annotator").values(role="viewer"))
    page = today(service)  # outside systems alone label
    assert ("more annotator" in page, numbers(page)["to-settle"]) == (False, 0)


def test_viewers_see_numbers_and_nothing_to_do_and_annotators_go_to_their_reads(service: Service) -> None:
    service.add_cases(1)
    page = today(service, "viewer")
    assert numbers(page)["to-read"] == 1
    assert "What needs you" not in page
    answer = service.call("anna", "GET", "/today", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/worklist")


def test_an_empty_service_begins_with_its_first_steps(service: Service) -> None:
    assert "First steps" in today(service)


def test_failed_rows_of_an_import_are_named_for_a_week(service: Service) -> None:
    service.add_case("a cell")
    archive = packed({"x.png": cell_png(3), "manifest.csv": b"file,external_id\nlost.png,lost\n"})
    job = send(service, archive).json()["id"]
    for number in range(5):  # newer ones do not hide it
        send(service, packed({f"{number}.png": cell_png(number)}))
    work_off(service.context)
    assert f"/imports/{job}?status=failed" in needs(today(service)).values()
    with service.clock.off_by(timedelta(days=8)):
        assert not any("failed" in text for text in needs(today(service)))
