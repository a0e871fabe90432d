"""A cell is settled by a person or by rule, one at a time, and no estimate knows of it."""

import csv
import itertools
import re
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, text, update

from app.accounts import people as auth
from app.database.tables import Account, Outcome, ReadRequest, Remark
from app.maintenance.erasure import erase_patient_everywhere
from app.outcomes import service as outcome_service
from app.outcomes.rules import RuleDecision, conclude_opinions
from app.outcomes.service import conclude_cells
from app.triage.assignment import cells_without_annotator, list_assignable_annotators, twins_of_case
from tests.app.test_gallery import all_names, names_in, send, what_stands
from tests.app.test_leases import all_once, answer_next, classes_of, commit, read_next, requests_of, set_policy
from tests.app.test_refused_forms import LONG, account_of, form_at, post
from tests.support.service import Service, cell_png, change_append_only
from tests.test_architecture import ROOT

A, B, C = "abc"


@pytest.mark.parametrize(
    ("opinions", "no_annotator_left", "expected"),
    [
        ([], True, None),
        ([A, A], True, None),
        ([A, B], True, None),
        ([A, A, A], False, RuleDecision("majority", A)),
        ([A, B, A], False, RuleDecision("majority", A)),
        ([A, B, C], False, None),
        ([A, B, C], True, RuleDecision("split", None)),
        ([A, A, B, B], False, None),
        ([A, A, B, B], True, RuleDecision("split", None)),
        ([A, A, B, C], True, RuleDecision("split", None)),  # half is no majority
        ([A, A, B, B, A], False, RuleDecision("majority", A)),
        ([A, A, B, B, C], False, RuleDecision("split", None)),
        ([A, A, A, B, B, C], False, RuleDecision("split", None)),
    ],
)
def test_the_rule_by_hand(opinions: list[str], no_annotator_left: bool, expected: RuleDecision | None) -> None:
    assert conclude_opinions(opinions, 5, no_annotator_left=no_annotator_left) == expected


@given(st.lists(st.sampled_from([A, B, C]), max_size=8), st.permutations([A, B, C]), st.booleans(), st.randoms())
def test_the_rule_knows_no_order_of_opinions_and_no_name_of_a_class(
    opinions: list[str], renamed: Sequence[str], no_annotator_left: bool, order: Any
) -> None:
    decided = conclude_opinions(opinions, 5, no_annotator_left=no_annotator_left)
    names = dict(zip([A, B, C], renamed, strict=True))
    shuffled = [names[one] for one in opinions]
    order.shuffle(shuffled)
    again = conclude_opinions(shuffled, 5, no_annotator_left=no_annotator_left)
    if decided is None:
        assert again is None
    else:
        assert again == RuleDecision(decided.rule, names.get(str(decided.class_code)))


def outcome_of(service: Service, case_id: str) -> Any:
    outcome = service.document(f"/v1/cases/{case_id}")["outcome"]
    return None if outcome is None else (outcome["class"] or "split", outcome["by"] or outcome["rule"])


def reopen(service: Service, case_id: str, reason: str = "look again", who: str = "admin") -> httpx.Response:
    return service.call(who, "DELETE", f"/v1/cases/{case_id}/outcome", params={"reason": reason})


def assign(service: Service, case_id: str, annotator: str, who: str = "admin") -> httpx.Response:
    return service.post(who, f"/v1/cases/{case_id}/assignments", json={"annotator": annotator})


def states(service: Service, case_id: str) -> list[tuple[str, str]]:
    return [(request.round, request.state) for request in requests_of(service, case_id)]


def opine(service: Service, case_id: str, *codes: str) -> None:
    """Blind labels of outside annotators, of whom the first answers the only planned read."""
    for number, code in enumerate(codes):
        service.outside_label(case_id, f"r{number}", code)


def listed(service: Service, state: str) -> set[str]:
    return set(re.findall(r"<bdi>(case[ -]\d+)</bdi></a></td>", service.get("admin", f"/cells?state={state}").text))


def disputed(service: Service, **fields: Any) -> str:
    """A case on which anna and ben differ, so that another label is asked for, which cleo may give."""
    service.add_annotator("cleo")
    set_policy(service, **{"threshold": 0.0, "adjudicate_below": 0.999999} | fields)
    case_id, codes = str(service.add_case()["id"]), classes_of(service)
    for who, code in (("anna", codes[0]), ("ben", codes[1])):
        answer_next(service, who, code)
    service.make_labels_final()
    assert states(service, case_id)[2:] == [("adjudication", "open")]
    return case_id


def test_a_cell_is_settled_once_with_a_reason_and_reopened(service: Service) -> None:
    all_once(service)
    case_id, code = service.add_case()["id"], classes_of(service)[1]
    for wrong in ({}, {"class": code}, {"class": code, "split": True, "reason": "x"}, {"split": True, "reason": " "}):
        assert service.post("admin", f"/v1/cases/{case_id}/outcome", json=wrong).status_code == 422, wrong
    assert service.settle(case_id, **{"class": "no class", "reason": "x"}).status_code == 422
    assert service.settle(str(uuid.uuid4())).status_code == 404
    for who in ("viewer", "anna", "outside"):
        assert service.settle(case_id, who).status_code == reopen(service, case_id, who=who).status_code == 403
        assert assign(service, case_id, "anna", who).status_code == 403
    body, path = {"class": code, "reason": "granules"}, f"/v1/cases/{case_id}/outcome"
    first = service.post("admin", path, "a key", json=body)
    assert (first.status_code, service.post("admin", path, "a key", json=body).json()) == (201, first.json())
    assert [first.json()[name] for name in ("class", "split", "rule", "by", "reason")] == [
        *(code, False, None, "admin", "granules"),
    ]
    assert next(service.items("/v1/cases"))["outcome"] == first.json()
    second = service.settle(case_id)
    assert (second.status_code, second.json()["type"][-15:]) == (409, "already-settled")
    assert second.json()["detail"].startswith("this cell was settled by admin as ")
    assert states(service, case_id) == [("planned", "open")]
    assert reopen(service, case_id, "").status_code == 422
    assert [reopen(service, case_id).status_code for _ in range(2)] == [204, 409]
    assert outcome_of(service, case_id) is None
    assert service.settle(case_id).status_code == 201
    told = [(one["action"], one["reason"]) for one in service.items("/v1/audit-events", "admin")][:3]
    assert told == [
        ("outcome.settle", "experts differ"),
        ("outcome.reopen", "look again"),
        ("outcome.settle", "granules"),
    ]


@pytest.mark.both_databases
def test_of_two_leads_who_settle_at_once_one_does(service: Service) -> None:
    with service.context.database.write() as session:
        auth.add_account(session, service.context.keys.audit, "second lead", "admin")
        service.keys["second lead"] = auth.add_key(session, service.context.keys.audit, "second lead", [])[1]
    service.before_change = lambda: None
    together = Barrier(2)
    for cell in service.add_cases(4):

        def settle(who: str, case_id: str = cell["id"]) -> int:
            together.wait(20)
            return service.settle(case_id, who).status_code

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(settle, ("admin", "second lead"))) == [201, 409]
    assert [row.number for row in service.scalars(select(Outcome))] == [1] * 4


@pytest.mark.both_databases
def test_adjudications_are_withdrawn_and_none_is_asked_for_until_the_cell_is_open_again(service: Service) -> None:
    case_id = disputed(service, max_labels=9)
    codes = classes_of(service)
    assert service.settle(case_id).status_code == 201
    assert states(service, case_id)[2:] == [("adjudication", "closed")]
    assert service.post("cleo", "/v1/reads").status_code == 204
    service.make_labels_final()
    service.outside_label(case_id, "r", codes[3])
    assert len(requests_of(service, case_id)) == 3
    assert reopen(service, case_id).status_code == 204
    service.outside_label(case_id, "r2", codes[4])
    assert states(service, case_id)[3:] == [("adjudication", "open")]


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
@pytest.mark.parametrize("end", ["answer", "return", "decline", "expiry"])
def test_an_annotator_does_not_notice_that_the_cell_of_their_adjudication_is_settled(
    service: Service, end: str
) -> None:
    case_id = disputed(service)
    read = read_next(service, "cleo")
    path = f"/v1/reads/{read['id']}"
    assert service.settle(case_id).status_code == 201
    assert service.document(path, "cleo") == read
    assert service.call("cleo", "PATCH", path, json={}).status_code == 200
    if end == "answer":
        assert not commit(service, "cleo", read, classes_of(service)[2]).json()["label"]["late"]
    elif end == "return":
        assert service.call("cleo", "DELETE", path).status_code == 204
    elif end == "decline":
        body = {"reason": "image_quality"}
        assert service.post("cleo", f"{path}/decline", json=body).status_code == 200
    else:
        with service.clock.off_by(timedelta(days=1)):
            assert service.post("anna", "/v1/reads").status_code == 204
    assert states(service, case_id)[2:] == [("adjudication", "answered" if end == "answer" else "closed")]
    assert listed(service, "adjudication") | listed(service, "to_read") == set()


@pytest.mark.both_databases
def test_an_answer_that_comes_while_its_cell_is_settled_is_kept_and_nothing_stays_open(service: Service) -> None:
    first, codes = disputed(service), classes_of(service)
    service.before_change = lambda: None
    together = Barrier(3)
    for number in range(4):
        case_id = first if number == 0 else str(service.add_case(f"case {number}", cell_png(number))["id"])
        for who, code in (("anna", codes[0]), ("ben", codes[1])) if number else ():
            answer_next(service, who, code)
        service.make_labels_final()
        read = read_next(service, "cleo")

        def run(act: int, case_id: str = case_id, read: dict[str, Any] = read) -> int:
            together.wait(20)
            if act == 2:
                return conclude_cells(service.context)
            return int((service.settle(case_id) if act else commit(service, "cleo", read, codes[2])).status_code)

        with ThreadPoolExecutor(3) as threads:
            assert list(threads.map(run, range(3))) == [201, 201, 0]
        assert {state for _, state in states(service, case_id)} <= {"answered", "closed"}


def test_planned_reads_stay_as_they_are(service: Service) -> None:
    set_policy(service, threshold=0.0)
    case_id = service.add_case()["id"]
    answer_next(service, "anna", classes_of(service)[0])
    read = read_next(service, "ben")
    assert service.settle(case_id).status_code == 201
    assert states(service, case_id) == [("planned", "answered"), ("planned", "leased")]
    assert not commit(service, "ben", read, classes_of(service)[1]).json()["label"]["late"]


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_no_estimate_knows_of_an_outcome(service: Service, tmp_path: Path) -> None:
    codes = classes_of(service)
    set_policy(service, threshold=0.0, reveal="after_case_closed")
    cells = [service.add_case(f"case {n}", cell_png(n), patient=f"p{n}")["id"] for n in range(6)]
    for who, n in itertools.product(("anna", "ben"), range(5)):
        answer_next(service, who, codes[n % 2])
    service.make_labels_final()
    before = what_stands(service, tmp_path / "before")
    assert service.settle(cells[0]).status_code == service.settle(cells[5]).status_code == 201
    assert service.settle(cells[1], **{"class": codes[5], "reason": "x"}).status_code == 201
    assert reopen(service, cells[5]).status_code == 204
    assert what_stands(service, tmp_path / "settled") == before
    with (tmp_path / "settled" / "predictions.csv").open() as file:
        exported = [(row["outcome"], row["outcome_by"]) for row in csv.DictReader(file)]
    assert sorted(exported) == sorted([("split", "admin"), (codes[5], "admin"), *[("", "")] * 4])


def test_nothing_but_lists_and_pages_reads_outcomes() -> None:
    """What evaluates, fits, plans, repeats or chooses reference cells takes neither the table nor what reads it."""
    reads = re.compile(
        r"^    Outcome,$|import .*\bOutcome\b|\b(read|standing)_outcomes\b|\bsettled_cells\b", re.MULTILINE
    )
    sources = [path for path in (ROOT / "app").rglob("*.py") if reads.search(path.read_text())]
    found = {path.relative_to(ROOT / "app").as_posix() for path in sources}
    assert found == {
        *("database/tables/__init__.py", "cases/queries.py", "cases/gallery.py", "cases/presenters.py"),
        *("cases/service.py", "outcomes/queries.py", "outcomes/service.py", "maintenance/export.py"),
        # a count of cells, which no share follows from
        "specimens/measuring.py",
        # that settles, asks for no adjudication, and withdraws one
        *("labels/gallery.py", "labels/posterior.py", "labels/queries.py"),
    }


def test_erasure_takes_the_reasons_and_leaves_the_outcome(service: Service) -> None:
    case_id = service.add_case(patient="P-1")["id"]
    assert service.settle(case_id, split=True, reason="as in June").status_code == 201
    assert reopen(service, case_id, "it is hers").status_code == 204
    assert sorted(service.scalars(select(Remark.reason))) == ["as in June", "it is hers"]
    erase_patient_everywhere(service.context, "admin", "P-1", "asked for")
    assert service.scalars(select(Remark.reason)) == []
    assert [row.kind for row in service.scalars(select(Outcome).order_by(Outcome.number))] == ["split", "reopened"]
    told = [one["reason"] for one in service.items("/v1/audit-events", "admin") if one["action"].startswith("outcome")]
    assert told == [None, None]
    assert service.settle(case_id).status_code == 404
    assert service.faults() == []


@pytest.mark.parametrize("change", ["kind = 'split', class_code = NULL", "class_code = 'blast'", "number = 7"])
def test_an_outcome_that_was_changed_is_found(service: Service, change: str) -> None:
    service.settle(service.add_case()["id"], **{"class": "monocyte", "reason": "x"})
    with service.context.database.write() as session:
        change_append_only(session, "outcomes", text(f"UPDATE outcomes SET {change}"))
    assert any("outcomes" in fault for fault in service.faults())
    service.written_past = True


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_the_worker_concludes_what_the_rule_decides(service: Service) -> None:
    all_once(service)
    codes = classes_of(service)
    opinions = [codes[:1] * 3, codes[:3], codes[:1] * 2, [*codes[:2]] * 2 + codes[2:3], codes[:1] * 3]
    cells = [cell["id"] for cell in service.add_cases(5)]
    for case_id, given_classes in zip(cells[:4], opinions, strict=False):
        opine(service, case_id, *given_classes)
    for number, code in enumerate(opinions[4]):  # the planned read is still open
        service.label("outside", cells[4], code, annotator=f"r{number}", blind=True, round="adjudication")
    service.settle(cells[2])
    assert [conclude_cells(service.context) for _ in range(2)] == [2, 0]
    told = [(codes[0], "majority"), None, ("split", "admin"), ("split", "split"), None]
    assert [outcome_of(service, case_id) for case_id in cells] == told
    done = [(one["actor"], one["action"]) for one in service.items("/v1/audit-events", "admin")][:2]
    assert done == [("worker", "outcome.conclude")] * 2
    # what a person reopened waits for a new label, whoever asks
    assert reopen(service, cells[0]).status_code == 204
    assert (conclude_cells(service.context), service.settle(cells[0], by_rule=True).status_code) == (0, 409)
    service.outside_label(cells[0], "another", codes[0])
    assert (conclude_cells(service.context), outcome_of(service, cells[0])) == (1, told[0])


def test_a_label_that_may_still_be_corrected_concludes_nothing(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="after_case_closed")
    case_id, code = service.add_case()["id"], classes_of(service)[0]
    answer_next(service, "anna", code)
    opine(service, case_id, code, code)
    assert (conclude_cells(service.context), service.settle(case_id, by_rule=True).status_code) == (0, 409)
    service.make_labels_final()
    assert conclude_cells(service.context) == 1


def test_a_pass_that_is_cut_off_goes_on_and_concludes_each_cell_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_once(service)
    for cell in service.add_cases(4):
        opine(service, cell["id"], *classes_of(service)[:1] * 3)
    monkeypatch.setattr(outcome_service, "_BATCH", 2)
    conclude, n_done = outcome_service._conclude, itertools.count()

    def cut_off(*arguments: Any) -> None:
        if next(n_done) == 3:  # in the second transaction, after its first cell
            raise KeyboardInterrupt
        conclude(*arguments)

    monkeypatch.setattr(outcome_service, "_conclude", cut_off)
    with pytest.raises(KeyboardInterrupt):
        conclude_cells(service.context)
    assert len(service.scalars(select(Outcome))) == 2
    assert conclude_cells(service.context) == 2
    assert [row.number for row in service.scalars(select(Outcome))] == [1] * 4


def test_a_cell_that_a_lead_settles_while_the_worker_decides_stays_with_the_lead(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_once(service)
    case_id = service.add_case()["id"]
    opine(service, case_id, *classes_of(service)[:1] * 3)
    decide = outcome_service._decide_cells

    def decide_too_early(*arguments: Any, **options: Any) -> Any:
        decided = decide(*arguments, **options)
        monkeypatch.undo()
        assert service.settle(case_id).status_code == 201
        return decided

    monkeypatch.setattr(outcome_service, "_decide_cells", decide_too_early)
    assert (conclude_cells(service.context), outcome_of(service, case_id)) == (0, ("split", "admin"))


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_the_worker_leaves_a_read_that_somebody_may_do_and_a_lead_need_not(service: Service) -> None:
    case_id, codes = disputed(service), classes_of(service)
    service.label("outside", case_id, codes[0], annotator="r", blind=True, round="planned")
    assert states(service, case_id)[2:] == [("adjudication", "open")]
    assert (conclude_cells(service.context), listed(service, "to_settle")) == (0, set())
    service.set_disabled("cleo", disabled=True)
    assert listed(service, "to_settle") == {"case-1"}
    assert "No annotator is left who may read this cell" in service.get("admin", f"/cases/{case_id}").text
    service.set_disabled("cleo", disabled=False)
    assert service.settle(case_id, by_rule=True).json()["rule"] == "majority"
    assert states(service, case_id)[2:] == [("adjudication", "closed")]


def test_a_cell_on_which_all_differ_is_split_once_nobody_is_left(service: Service) -> None:
    case_id, codes = disputed(service), classes_of(service)
    service.label("outside", case_id, codes[2], annotator="r", blind=True, round="planned")
    assert service.settle(case_id, by_rule=True).status_code == 409
    service.set_disabled("cleo", disabled=True)
    assert (conclude_cells(service.context), outcome_of(service, case_id)) == (1, ("split", "split"))
    assert listed(service, "settled") == {"case-1"}
    assert listed(service, "to_settle") == set()


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_cells_without_an_annotator_are_those_of_whose_requests_none_can_be_assigned(service: Service) -> None:
    """The list in one statement and the single request, on cells that some have met, and on twins of these."""
    set_policy(service, threshold=0.0)
    stuck, code = service.add_case("stuck")["id"], classes_of(service)[0]
    answer_next(service, "anna", code)
    service.post("ben", f"/v1/reads/{read_next(service, 'ben')['id']}/decline", json={"reason": "not_my_field"})
    service.add_case("twin of stuck")
    service.add_cases(4)
    for who in ("anna", "anna", "ben"):
        answer_next(service, who, code)
    service.add_case("twin", cell_png(1))
    with service.context.database.read() as session:
        expected = set()
        for request in session.execute(select(ReadRequest).where(ReadRequest.state == "open")).scalars():
            twins = twins_of_case(session, request.case_id)
            if not list_assignable_annotators(session, request, twins):
                expected.add(request.case_id)
        assert set(session.execute(cells_without_annotator(session)).scalars()) == expected
    assert len(expected) >= 2
    assert uuid.UUID(stuck) in expected


def test_reads_are_assigned_to_who_may_read_and_one_is_asked_for_where_none_is_open(service: Service) -> None:
    case_id = disputed(service)
    assert assign(service, case_id, "cleo").json()["asked_of"] == "cleo"
    answer_next(service, "cleo", classes_of(service)[2])
    for name in ("anna", "cleo", "nobody", "admin"):
        refused = assign(service, case_id, name)
        assert (refused.status_code, refused.json()["type"][-8:]) == (409, "conflict"), name
    service.add_annotator("dora")
    before = len(requests_of(service, case_id))
    service.settle(case_id)
    assert assign(service, case_id, "dora").json()["type"].endswith("already-settled")
    reopen(service, case_id)
    answer = assign(service, case_id, "dora").json()
    assert (answer["ordinal"], answer["round"], answer["asked_of"]) == (before + 1, "adjudication", "dora")
    assert service.known_as("dora", case_id) == read_next(service, "dora")["case_id"]


def test_a_policy_that_needs_more_annotators_than_there_are_is_refused(service: Service) -> None:
    body = {"threshold": 0.3, "reason": "x"}
    set_policy(service)
    refused = service.post("admin", "/v1/policies", json=body | {"adjudicate_below": 0.9})
    assert (refused.status_code, "adjudication needs three annotators" in refused.json()["detail"]) == (422, True)
    page = post(service, "/policy", rule="disagreement", threshold="0.3", adjudicate_below="0.9", reason="my reason")
    assert 'id="adjudicate_below-fault"' in page.text
    assert "my reason" in page.text
    service.set_disabled("ben", disabled=True)
    for more in ({"threshold": 0.1}, {"audit_rate": 0.2}, {"rule": "expected_gain"}, {"adjudicate_below": 0.9}):
        asked = body | {"threshold": 0.2, "adjudicate_below": None} | more
        assert service.post("admin", "/v1/policies", json=asked).status_code == 422
    fewer = body | {"threshold": 0.9, "audit_rate": 0.01, "adjudicate_below": None}
    assert service.post("admin", "/v1/policies", json=fewer).status_code == 201
    service.change(update(Account).where(Account.role == "annotator").values(role="viewer"))
    assert service.post("admin", "/v1/policies", json=body | {"adjudicate_below": 0.9}).status_code == 201  # outside


def test_the_gallery_settles_and_undo_brings_the_earlier_outcome_back(service: Service) -> None:
    all_once(service)
    codes = classes_of(service)
    cells = [cell["id"] for cell in service.add_cases(3)]
    opine(service, cells[0], *codes[:1] * 3)
    conclude_cells(service.context)
    service.settle(cells[1])
    before = [outcome_of(service, case_id) for case_id in cells]
    assert before == [(codes[0], "majority"), ("split", "admin"), None]
    assert names_in(service)["(split)"] == [cells[1]]
    done = send(service, "labels", cell=cells, label=codes[3]).json()
    assert [outcome_of(service, case_id) for case_id in cells] == [(codes[3], "admin")] * 3
    assert send(service, "labels", cell=cells, label=codes[3]).json()["n"] == 0
    reopen(service, cells[2])  # the label is there already, and the outcome is not
    assert send(service, "labels", cell=cells, label=codes[3]).json()["n"] == 1
    assert send(service, "undo", first=done["first"]).json()["n"] == 2
    assert [outcome_of(service, case_id) for case_id in cells] == [*before[:2], (codes[3], "admin")]
    assert set(all_names(service)) == set(cells)


def test_the_forms_of_the_page_settle_reopen_and_assign_and_keep_what_was_typed(service: Service) -> None:
    case_id = disputed(service)
    path, send_form = f"/cases/{case_id}", partial(post, service, account=account_of(service))
    refused = send_form(f"{path}/outcome", form_key="k", outcome="", by_rule="", reason="my reason")
    assert (refused.status_code, "my reason" in form_at(refused.text, f"{path}/outcome")) == (422, True)
    refused = send_form(f"{path}/outcome", form_key="k", outcome="(split)", by_rule="", reason=LONG)
    assert (refused.status_code, LONG in form_at(refused.text, f"{path}/outcome")) == (422, True)
    refused = send_form(f"{path}/assignments", form_key="k", annotator="anna")
    assert (refused.status_code, "has met the cell" in form_at(refused.text, f"{path}/assignments")) == (409, True)
    back = send_form(f"{path}/assignments", form_key="k", annotator="cleo", listed="site=S&down=false")
    assert back.headers["Location"] == f"{path}?site=S&down=false"
    done = send_form(f"{path}/outcome", form_key="k2", outcome="(split)", reason="no one is right")
    assert (done.status_code, done.headers["Location"]) == (303, path)
    page = service.get("admin", path).text
    assert "<b>split</b>, settled by <bdi>admin</bdi>" in page
    assert "no one is right" in page
    assert f'action="{path}/outcome"' not in page
    assert "reopening" not in service.get("viewer", path).text
    refused = send_form(f"{path}/reopening", reason=" ")
    assert (refused.status_code, "fault" in form_at(refused.text, f"{path}/reopening")) == (422, True)
    assert send_form(f"{path}/reopening", reason="look again").status_code == 303
    assert outcome_of(service, case_id) is None


def test_annotators_see_an_outcome_where_they_see_the_cell_in_full(service: Service) -> None:
    set_policy(service, threshold=0.0, reveal="after_case_closed")
    case_id, codes = service.add_case()["id"], classes_of(service)
    service.settle(case_id, **{"class": codes[4], "reason": "seen in person"})
    read = read_next(service, "anna")
    pages = [f"/cases/{read['case_id']}", f"/v1/cases/{read['case_id']}"]
    assert "Outcome" not in service.get("anna", pages[0]).text
    commit(service, "anna", read, codes[0])
    assert service.get("anna", pages[1]).status_code == 403
    assert "Outcome" not in service.get("anna", pages[0]).text
    answer_next(service, "ben", codes[1])
    service.make_labels_final()
    assert "seen in person" in service.get("anna", pages[0]).text
    assert service.get("anna", pages[1]).json()["outcome"]["class"] == codes[4]


def test_the_rule_takes_no_read_that_an_annotator_holds(service: Service) -> None:
    case_id = disputed(service)
    service.label("outside", case_id, classes_of(service)[0], annotator="r", blind=True, round="planned")
    read_next(service, "cleo")
    assert conclude_cells(service.context) == 0
    assert "An annotator is reading this cell now" in service.get("admin", f"/cases/{case_id}").text


def test_the_rule_takes_no_read_that_a_guest_is_asked_for(service: Service) -> None:
    case_id = disputed(service)
    service.label("outside", case_id, classes_of(service)[2], annotator="r", blind=True, round="planned")
    service.set_disabled("cleo", disabled=True)
    assert len(listed(service, "to_settle")) == 1
    body = {"annotator": "Dr. Gast", "cases": [case_id]}
    assert service.post("admin", "/v1/invitations", json=body).status_code == 201
    assert listed(service, "to_settle") == set()
    assert conclude_cells(service.context) == 0
    assert states(service, case_id)[-1] == ("adjudication", "open")


def test_a_read_that_is_held_is_not_asked_of_another_annotator(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9)
    case_id = service.add_case()["id"]
    read_next(service, "anna")
    answer = assign(service, case_id, "ben")
    assert (answer.status_code, states(service, case_id)) == (409, [("planned", "leased")])


def add_lead(service: Service, name: str) -> None:
    with service.context.database.write() as session:
        auth.add_account(session, service.context.keys.audit, name, "admin")
        service.keys[name] = auth.add_key(session, service.context.keys.audit, name, [])[1]


def take_back(service: Service, case_id: str) -> None:
    """A class by mistake in the gallery, and undo."""
    done = send(service, "labels", cell=[case_id], label=classes_of(service)[3]).json()
    assert send(service, "undo", first=done["first"]).status_code == 201


def test_undo_in_the_gallery_brings_everything_back(service: Service) -> None:
    case_id = disputed(service)
    before = states(service, case_id)
    take_back(service, case_id)
    assert states(service, case_id)[-1] == before[-1] == ("adjudication", "open")
    add_lead(service, "second lead")
    assert service.settle(case_id, "second lead", split=True, reason="discussed on Monday").status_code == 201
    take_back(service, case_id)
    outcome = service.document(f"/v1/cases/{case_id}")["outcome"]
    assert (outcome["split"], outcome["by"], outcome["reason"]) == (True, "second lead", "discussed on Monday")


def test_undo_in_the_gallery_leaves_what_another_lead_has_settled_since(service: Service) -> None:
    case_id = disputed(service)
    add_lead(service, "second lead")
    done = send(service, "labels", cell=[case_id], label=classes_of(service)[3]).json()
    assert reopen(service, case_id).status_code == 204
    assert service.settle(case_id, "second lead").status_code == 201
    assert send(service, "undo", first=done["first"]).status_code == 201
    assert outcome_of(service, case_id) == ("split", "second lead")


def test_undo_in_the_gallery_leaves_a_cell_to_the_rule(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9)
    case_id = service.add_case()["id"]
    opine(service, case_id, *classes_of(service)[:1] * 3)
    take_back(service, case_id)
    assert conclude_cells(service.context) == 1


@pytest.mark.parametrize("form", ["outcome", "reopening", "assignments", "comments"])
def test_a_form_of_another_leads_page_is_refused(service: Service, form: str) -> None:
    case_id = service.add_case()["id"]
    add_lead(service, "second lead")
    page = service.get("admin", f"/cases/{case_id}").text
    account = re.findall(r'name="account" value="([^"]+)"', page)[0]
    typed = {"form_key": "k", "account": account, "outcome": classes_of(service)[0], "reason": "r", "text": "t"}
    answer = service.call("second lead", "POST", f"/cases/{case_id}/{form}", data=typed | {"annotator": "anna"})
    assert (answer.status_code, answer.json()["type"][-13:]) == (403, "other-account")
