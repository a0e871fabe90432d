"""Reference cells tell nothing of a case still to be read, and are the same for every case and for everybody."""

import re
from typing import Any
from uuid import UUID

from sqlalchemy import func, insert, select, update

from app.cases.ingest import partition_of
from app.database.tables import Annotator, AuditEvent, Case, CasePrediction, HeldBack, Label, ReadRequest, ReferenceCell
from tests.app.test_leases import classes_of, commit, lease, set_policy
from tests.security.test_practice import THREE, ask_again, make_set
from tests.support.service import Service, cell_png, store

#: Everybody reads a case once, and it is shown once it is closed.
ONCE: dict[str, Any] = {"threshold": 0.99, "audit_rate": 1e-9, "reveal": "after_case_closed"}


def names(service: Service, partition: str = "calibration") -> Any:
    """External ids of cases of one half."""
    key = service.context.keys.partition
    return (f"case {n}" for n in range(1000) if partition_of(key, None, f"case {n}") == partition)


def settle(service: Service, n: int, k: int = 0, first: int = 0, partition: str = "calibration") -> list[str]:
    """Closed cases of a half whose three readers all say the same."""
    known = names(service, partition)
    for _ in range(first):
        next(known)
    return [store(service, next(known), cell_png(first + i), dict.fromkeys(THREE, k)) for i in range(n)]


def choose(service: Service, code: str = "") -> None:
    answer = service.post("admin", "/references/choice", data={"class": code}, follow_redirects=False)
    assert answer.status_code == 303, answer.text


def decide(service: Service, code: str, case_id: str, kind: str, reason: str = "") -> Any:
    body = {"class": code, "case": case_id, "kind": kind, "reason": reason}
    return service.post("admin", "/references/decisions", data=body, follow_redirects=False)


def look(service: Service, code: str, who: str = "anna") -> Any:
    return service.get(who, "/references", params={"class": code})


def images(text: str) -> list[str]:
    return re.findall(r'(?:src|href)="(/references/cells/[^"]+)"', text)


def kinds(service: Service) -> dict[str, str]:
    """The decision that holds on each case."""
    rows = service.scalars(select(ReferenceCell).order_by(ReferenceCell.number))
    return {str(row.case_id): row.kind for row in rows}


def test_only_settled_cells_of_the_calibration_half_are_chosen(service: Service) -> None:
    set_policy(service, **ONCE)
    settled = settle(service, 8)
    evaluated = settle(service, 2, first=8, partition="evaluation")
    differ = store(service, next(names(service)) + " b", cell_png(20), {"outside 1": 0, "outside 2": 1})
    asked = settle(service, 1, first=12)
    ask_again(service, asked)
    held = settle(service, 1, first=14)
    annotator_id = service.scalars(select(Annotator.id))[0]
    service.change(insert(HeldBack).values(annotator_id=annotator_id, case_id=UUID(held[0])))
    service.written_past = True
    choose(service)
    chosen = kinds(service)
    assert len(chosen) == 6
    assert set(chosen) < set(settled)
    assert not set(chosen) & {*evaluated, differ, *asked, *held}
    code = classes_of(service)[0]
    shown = look(service, code)
    assert shown.status_code == 200
    assert len(images(shown.text)) == 6
    assert "all 3 annotators" in shown.text
    choose(service)
    assert kinds(service) == chosen


def test_what_the_policy_never_shows_and_what_is_tested_is_no_reference_cell(service: Service) -> None:
    set_policy(service, **ONCE | {"reveal": "never"})
    settle(service, 2)
    choose(service)
    assert kinds(service) == {}
    set_policy(service, **ONCE)
    settled = settle(service, 4, first=4)
    choose(service)
    assert set(kinds(service)) == set(settled)
    later = settle(service, 3, first=10)
    made = make_set(service, "qualification", n_cells=50, n_per_run=2)
    assert made["report"]["n_candidates"] == 2 + len(later)
    choose(service)
    assert set(kinds(service)) == set(settled)


def test_a_page_of_a_class_is_the_same_for_every_case_and_for_everybody(service: Service) -> None:
    set_policy(service, **ONCE)
    settled = settle(service, 6) + settle(service, 3, k=1, first=6)
    for number in range(4):
        service.add_case(f"to read {number}", cell_png(40 + number))
    choose(service)
    code, other = classes_of(service)[:2]
    before = [look(service, one).content for one in (code, other)]
    listed = service.get("anna", "/references").content
    pages = {code: {before[0]}, other: {before[1]}}
    opinions = set()
    for who in ("anna", "ben"):
        for _ in range(2):
            read = lease(service, who)
            opened = service.get(who, f"/cases/{read['case_id']}", headers={"Accept": "text/html"})
            assert opened.status_code == 200
            assert 'href="/references"' in opened.text
            for one in (code, other):
                headers = {"Referer": f"http://testserver/cases/{read['case_id']}"}
                answer = service.get(who, "/references", params={"class": one}, headers=headers)
                pages[one].add(answer.content)
                assert "set-cookie" not in answer.headers
            assert service.get(who, "/references").content == listed
            opinions.add(read["case_id"])
            commit(service, who, read, classes_of(service)[len(opinions) % 3])
    assert len(opinions) == 4
    assert {one: len(seen) for one, seen in pages.items()} == {code: 1, other: 1}
    cases = service.scalars(select(Case))
    secret = {str(case.id) for case in cases} | {case.external_id for case in cases} | {"anna", "ben", "admin"}
    secret |= {case.stored_sha256 for case in cases} | set(settled)
    text = before[0].decode() + before[1].decode() + listed.decode()
    assert not [one for one in secret if one in text]
    assert not re.search(r"prob|predict|release|disagree", text)


def test_a_reference_cell_and_its_twins_are_given_to_nobody_to_be_read(service: Service) -> None:
    set_policy(service, **ONCE)
    settled = settle(service, 3)
    choose(service)
    twin_id = service.add_case("twin", cell_png(0))["id"]
    ask_again(service, settled)
    for who in ("anna", "ben"):
        answer = service.post(who, "/v1/reads", json={})
        assert answer.status_code == 204, answer.text
    seen = service.get("admin", f"/cases/{settled[0]}", headers={"Accept": "text/html"}).text
    twin = service.get("admin", f"/cases/{twin_id}", headers={"Accept": "text/html"}).text
    assert "it is no longer assigned" in seen
    assert "it is no longer assigned" in twin
    free = service.add_case("free", cell_png(30))
    assert lease(service, "anna")["case_id"] is not None
    leased = select(ReadRequest.case_id).where(ReadRequest.state == "leased")
    assert [str(one) for one in service.scalars(leased)] == [free["id"]]


def test_what_was_asked_for_before_a_cell_was_chosen_keeps_it_out(service: Service) -> None:
    """Whoever reads a twin now must not find it among the reference cells."""
    set_policy(service, **ONCE)
    settled = settle(service, 2)
    service.add_case("twin", cell_png(0))
    lease(service, "anna")
    choose(service)
    assert set(kinds(service)) == {settled[1]}
    refused = decide(service, classes_of(service)[0], settled[0], "pinned")
    assert refused.status_code == 404
    assert len(images(look(service, classes_of(service)[0]).text)) == 1


def test_an_answer_to_a_twin_that_was_with_somebody_is_not_blind(service: Service) -> None:
    """Chosen in the moment in which the twin was leased: what follows is not counted as blind."""
    set_policy(service, **ONCE)
    service.add_case("twin", cell_png(0))
    read = lease(service, "anna")
    settled = settle(service, 1)
    with service.context.database.write() as session:
        made = {"class_code": classes_of(service)[0], "number": 1, "kind": "chosen", "n_readers": 3, "n_same": 3}
        account_id = session.execute(select(Case.created_by).limit(1)).scalar_one()
        session.add(ReferenceCell(case_id=UUID(settled[0]), created_by=account_id, **made))
    service.written_past = True
    commit(service, "anna", read, classes_of(service)[0])
    store(service, "another twin", cell_png(0), {"outside 9": 0})
    said = select(Annotator.name, Label.blind).join(Annotator, Annotator.id == Label.annotator_id)
    blind = {row.name: row.blind for row in service.rows(said)}
    assert blind["anna"] is False
    assert blind["outside 9"] is True


def test_decisions_are_kept_undone_and_in_the_audit(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 8)
    choose(service)
    code = classes_of(service)[0]
    first = next(case_id for case_id, kind in kinds(service).items() if kind == "chosen")
    address = shown_by_case(service)
    assert decide(service, code, first, "excluded", "out of focus").status_code == 303
    assert service.get("anna", address[first]).status_code == 404
    assert len(images(look(service, code).text)) == 5
    choose(service, code)
    assert kinds(service)[first] == "excluded"
    assert len(images(look(service, code).text)) == 6
    assert decide(service, code, first, "pinned").status_code == 303
    assert decide(service, code, first, "pinned").status_code == 303  # sent twice: decided once
    choose(service, code)
    assert kinds(service)[first] == "pinned"
    assert list(kinds(service).values()).count("dropped") == 1
    assert decide(service, code, first, "chosen").status_code == 303
    managed = service.get("admin", "/references", params={"class": code}, headers={"Accept": "text/html"}).text
    assert "replaced" in managed
    actions = service.scalars(select(AuditEvent.action).order_by(AuditEvent.sequence))
    wanted = ["choose", "excluded", "choose", "pinned", "choose", "chosen"]
    assert [one for one in actions if one.startswith("reference.")] == [f"reference.{one}" for one in wanted]
    trail = service.get("admin", "/audit", headers={"Accept": "text/html"}).text
    assert "from the reference cells of" in trail
    assert service.faults() == []


def shown_by_case(service: Service) -> dict[str, str]:
    """Address of each cell's image, by case."""
    rows = service.scalars(select(ReferenceCell).order_by(ReferenceCell.number))
    return {str(row.case_id): f"/references/cells/{row.id}/image" for row in rows}


def test_images_of_cells_are_for_readers_and_of_shown_cells_only(service: Service) -> None:
    set_policy(service, **ONCE)
    settled = settle(service, 1)
    choose(service)
    address = shown_by_case(service)[settled[0]]
    for who, status in (("anna", 200), ("viewer", 200), ("outside", 403), (None, 401)):
        assert service.get(who, address).status_code == status, who
    answer = service.get("anna", address)
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["cache-control"].startswith("private")
    assert service.get("anna", f"/references/cells/{settled[0]}/image").status_code == 404
    service.change(update(Case).where(Case.id == UUID(settled[0])).values(erased_at=func.now()))
    service.written_past = True
    assert service.get("anna", address).status_code == 404
    assert "No reference cells" in look(service, classes_of(service)[0]).text


def test_definitions_have_versions(service: Service) -> None:
    code, other = classes_of(service)[:2]

    def write(text: str, of: str = code) -> int:
        sent = service.post(
            "admin", "/references/definitions", data={"class": of, "text": text}, follow_redirects=False
        )
        return int(sent.status_code)

    assert "No definition" in look(service, code).text
    assert [write("large <b>nucleus</b>"), write("little cytoplasm"), write(" little cytoplasm ")] == [303] * 3
    assert "little cytoplasm" in look(service, code).text
    assert "No definition" in look(service, other).text
    managed = service.get("admin", "/references", params={"class": code}).text
    assert "large &lt;b&gt;nucleus&lt;/b&gt;" in managed
    assert "Use version 1 again" in managed
    assert write("large <b>nucleus</b>") == 303
    assert "large &lt;b&gt;nucleus" in look(service, code).text
    assert write("") == 303
    assert "No definition" in look(service, code).text
    assert write("x", of="no such class") == 404
    n_events = select(func.count()).select_from(AuditEvent).where(AuditEvent.action == "definition.change")
    assert service.one(n_events) == 4
    assert service.faults() == []


def test_the_pair_at_stake_is_shown_once_a_case_is_closed(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 3)
    settle(service, 3, k=1, first=6)
    choose(service)
    codes = classes_of(service)
    service.add_case("read", cell_png(50))
    read = lease(service, "anna")
    page = {"headers": {"Accept": "text/html"}}
    assert "reference-cells" not in service.get("anna", f"/cases/{read['case_id']}", **page).text
    commit(service, "anna", read, codes[0])
    case = service.one(select(Case).where(Case.external_id == "read"))
    assert service.scalars(select(CasePrediction).where(CasePrediction.case_id == case.id)) != []
    service.outside_label(str(case.id), "outside 1", codes[1])
    seen = service.get("admin", f"/cases/{case.id}", **page).text
    assert len(images(seen)) == 6
    assert f'data-reference-class="{codes[0]}"' in seen
    assert f'data-reference-class="{codes[1]}"' in seen
    both = service.get("anna", "/references", params={"class": [codes[0], codes[1]]})
    assert len(images(both.text)) == 6
    assert service.get("anna", "/references", params={"class": codes[:3]}).status_code == 422
    assert look(service, "no such class").status_code == 404
