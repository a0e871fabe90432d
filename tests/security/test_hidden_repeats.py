"""A case that comes a second time looks like any other at every exit, and nothing follows from its answer."""

import random
import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError

from app.audit.verify import check_audit
from app.cases import queries as case_queries
from app.database.tables import (
    Account,
    BaseTable,
    CountedLabel,
    HeldBack,
    Label,
    PolicyRow,
    Read,
    ReadRequest,
    Repeat,
    utc_now,
)
from app.http.principal import Principal
from app.http.routing import walk_routes
from app.labels import repeats
from app.labels.annotator_day import DayProgress, get_day_progress
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from tests.app.test_leases import classes_of, commit, expire_all, lease, read_next, set_policy
from tests.app.test_people import first_password
from tests.security.test_blind_by_image import show
from tests.support.label_queries import SEES_REPEATS, SENDERS, list_uses, seen_senders
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png
from tests.support.statements import counted

POLICY: dict[str, Any] = {"threshold": 0.99, "audit_rate": 1e-9, "reveal": "after_case_closed", "repeat_rate": 0.05}
Coin = Callable[[float], None]


@pytest.fixture
def coin(monkeypatch: pytest.MonkeyPatch) -> Coin:
    """Says how the coin falls from now on: 1 never, 0 always."""
    monkeypatch.setattr(repeats, "MIN_TIME_APART", timedelta(0))
    monkeypatch.setattr(repeats, "MIN_CASES_BETWEEN", 0)

    def falls(value: float) -> None:
        for module in (case_queries, repeats):
            monkeypatch.setattr(module, "draw_random_unit", lambda: value)

    falls(1.0)
    return falls


def held_back(service: Service, coin: Coin, **fields: Any) -> None:
    """Nine cases after one that anna has read, and that is held back from her."""
    set_policy(service, **POLICY | fields)
    service.add_case("seen", cell_png(0), field=cell_png(100), patient="p")
    coin(0.0)
    assert commit(service, "anna", read_next(service, "anna"), classes_of(service)[0]).status_code == 201
    coin(1.0)
    assert service.make_labels_final() == 1
    for number in range(1, 10):
        service.add_case(f"case {number}", cell_png(number), field=cell_png(100 + number))


def planned(service: Service, coin: Coin, **fields: Any) -> Repeat:
    """A repeat that waits among some cases, of a case that anna has read."""
    held_back(service, coin, **fields)
    coin(0.0)
    read = read_next(service, "anna")
    coin(1.0)
    assert service.call("anna", "DELETE", f"/v1/reads/{read['id']}").status_code == 204
    return repeats_of(service)[0]


def repeats_of(service: Service) -> list[Repeat]:
    return service.scalars(select(Repeat))


def move_to_the_front(service: Service) -> None:
    """Let the planned repeat be the next case."""
    service.change(update(Repeat).values(due_on="2000-01-01"))


def own_day(service: Service, who: str = "anna") -> DayProgress:
    with service.context.database.read() as session:
        row = session.execute(select(Account).where(Account.name == who)).scalar_one()
        return get_day_progress(session, Principal(row.id, row.name, row.role, frozenset({"reads:own"})))


def plain(answer: Any) -> tuple[int, list[str], str]:
    """Status, names of headers, and text of an answer, without what differs between any two reads."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", answer.text)
    text = re.sub(r"[0-9a-f]{32}(\.[0-9a-f]{32})?d?", "KEY", text)
    text = re.sub(r"[Cc]ell [0-9A-F]{6}", "cell N", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r'"reading_seconds":[\d.e-]+', "SECONDS", text)
    text = re.sub(r'<p class="day"[^>]*>.*?</p>', "DAY", text, flags=re.DOTALL)
    text = re.sub(r'data-number="[0-9A-F]{6}"', "NUMBER", text)
    text = re.sub(r'data-rest="\d+"', "REST", text)
    text = re.sub(r'<ul class="grid">.*?</ul>', "CASES", text, flags=re.DOTALL)
    text = re.sub(r"\d+ waiting, \d+ read", "COUNTS", text)
    shown = "" if answer.headers.get("content-type") == "image/png" else text
    return answer.status_code, sorted(answer.headers), re.sub(r'"detail":"[^"]*ID[^"]*"', "", shown)


def journey(service: Service, cookie: dict[str, str], read: dict[str, Any]) -> list[tuple[int, list[str], str]]:
    """What comes back for everything that an annotator can do with a read, one after the other."""
    codes, handle = classes_of(service), read["case_id"]
    page, own = f"/cases/{handle}", f"/v1/reads/{read['id']}"
    seen = [service.get("anna", own), service.get("anna", "/v1/reads"), service.get("anna", read["image"])]

    def look() -> None:
        for path in ("", "/predictions", "/labels", "/posterior", "/posterior?x=1"):
            seen.append(service.get("anna", f"/v1/cases/{handle}{path}"))
        seen.append(service.get("anna", f"/v1/cases/{handle}/posterior", params={"exclude_annotator": "x" * 101}))
        seen.append(service.client.get(page, headers=cookie | {"Accept": "text/html"}))
        seen.append(service.client.get("/worklist", headers=cookie | {"Accept": "text/html"}))

    look()
    seen.append(service.call("anna", "PATCH", own))
    seen.append(commit(service, "anna", read, "nonsense"))
    given = {"label": codes[0], "note": "seen", "confidence": 0.7}
    first, again = (service.post("anna", f"{own}/labels", "k" + read["id"], json=given) for _ in range(2))
    seen += [first, again, commit(service, "anna", read, codes[0])]
    seen += [service.get("anna", own), service.call("anna", "PATCH", own)]
    look()
    seen.append(service.post("anna", f"{own}/correction", json={"label": "nonsense"}))
    corrected = service.post("anna", f"{own}/correction", json={"label": codes[1]})
    seen.append(corrected)
    seen.append(service.post("anna", f"{own}/decline", json={"reason": "other"}))
    change = {"label": codes[2], "reason": "another look"}
    seen.append(service.post("anna", f"/v1/labels/{first.json()['label']['id']}/revisions", json=change))
    newest = corrected.json()["label"]["id"]
    seen.append(service.post("anna", f"/v1/labels/{newest}/revisions", json=change))
    newest = seen[-1].json()["label"]["id"]
    seen.append(service.post("anna", f"/v1/labels/{newest}/retraction", json={"reason": "a slip"}))
    newest = seen[-1].json()["label"]["id"]
    seen.append(service.post("anna", f"/v1/labels/{newest}/retraction", json={"reason": "a slip"}))
    seen.append(service.post("anna", f"{own}/correction", json={"label": codes[1]}))
    seen.append(service.post("anna", f"/v1/labels/{newest}/revisions", json=change))
    look()
    return [plain(answer) for answer in seen]


@pytest.mark.slow
@pytest.mark.parametrize("reveal", ["after_case_closed", "never"])
def test_a_repeat_is_like_any_read_at_every_exit(service: Service, coin: Coin, reveal: str) -> None:
    planned(service, coin, reveal=reveal)
    cookie = first_password(service, "anna")
    journey(service, cookie, read_next(service, "anna"))  # so that the next two have one before them
    move_to_the_front(service)
    again = read_next(service, "anna")
    assert repeats_of(service)[0].state == "leased"
    of_repeat = journey(service, cookie, again)
    other = read_next(service, "anna")
    of_other = journey(service, cookie, other)
    for one, another in zip(of_repeat, of_other, strict=True):
        assert one[:2] == another[:2]
        assert one[2].splitlines() == another[2].splitlines()
    assert {status for status, _, _ in of_repeat} >= {200, 201, 403, 409, 422}


@pytest.mark.slow
def test_a_repeat_takes_the_statements_of_any_read(
    service: Service, coin: Coin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time of an answer would tell it."""
    planned(service, coin, threshold=0)  # of cases with another read to come, since the last one closes its case
    cookie = first_password(service, "anna")
    journey(service, cookie, read_next(service, "anna"))
    move_to_the_front(service)
    send, seen = service.client.request, []

    def request(method: str, path: str, **options: Any) -> Any:
        with counted(service.context.database) as statements:
            answer = send(method, path, **options)
        shapes = [(one.split(maxsplit=1)[0], "RETURNING" in one) for one in statements]
        seen.append((method, re.sub(r"[0-9a-f-]{36}", "ID", path), shapes))
        return answer

    monkeypatch.setattr(service.client, "request", request)
    for _ in range(2):  # the repeat, and another case
        journey(service, cookie, read_next(service, "anna"))
    half = len(seen) // 2
    assert seen[:half] == seen[half:]


@undone(
    "T20",
    "a hidden repeat is known by another handle than the case",
    Read,
    "named",
    property(lambda read: read.case_id),
)
def test_the_handle_of_a_repeat_is_not_that_of_the_case(service: Service, coin: Coin) -> None:
    planned(service, coin)
    move_to_the_front(service)
    seen = {service.known_as("anna", str(repeats_of(service)[0].case_id))}
    read = read_next(service, "anna")
    assert read["case_id"] not in seen
    first = seen.pop()
    for name in ("image", "field"):
        assert service.get("anna", read[name]).content == service.get("anna", f"/v1/cases/{first}/{name}").content
        assert service.get("ben", read[name]).status_code == 404


@pytest.mark.parametrize("ends", ["decline", "release", "expire"])
def test_a_repeat_ends_like_any_read(service: Service, coin: Coin, ends: str) -> None:
    planned(service, coin)
    move_to_the_front(service)
    answers = []
    for _ in range(2):  # the repeat, and another case
        read = read_next(service, "anna")
        own = f"/v1/reads/{read['id']}"
        if ends == "decline":
            answers.append([plain(service.post("anna", f"{own}/decline", json={"reason": "image_quality"}))])
        elif ends == "release":
            answers.append([plain(service.call("anna", "DELETE", own))])
        else:
            expire_all(service)
            service.change(update(Repeat).where(Repeat.state == "leased").values(lease_expires_at=utc_now()))
            after = read_next(service, "anna")
            assert after["case_id"] == read["case_id"]
            assert after["id"] != read["id"]
            answers.append(
                [plain(service.get("anna", own)), plain(commit(service, "anna", read, classes_of(service)[0]))]
            )
        answers[-1].append(plain(service.get("anna", own)))
        service.written_past = True
        service.change(update(Repeat).values(state="closed"))
    assert answers[0] == answers[1]


def test_the_number_of_waiting_cases_falls_by_one_with_each_lease(service: Service, coin: Coin) -> None:
    planned(service, coin)
    counts, upcoming, given = [own_day(service).n_waiting], [], []
    cookie = first_password(service, "anna")
    while True:
        coming = service.client.get("/reads/upcoming", headers=cookie, follow_redirects=False)
        read = lease(service, "anna")
        if read is None:
            break
        upcoming.append(coming.headers["location"])
        given.append(read["image"])
        counts.append(own_day(service).n_waiting)
        assert commit(service, "anna", read, classes_of(service)[0]).status_code == 201
    assert upcoming == given
    assert counts == list(range(counts[0], -1, -1))
    assert repeats_of(service)[0].state == "answered"
    assert own_day(service).n_today == len(given) + 1
    service.change(update(Repeat).values(back_at=utc_now() - timedelta(seconds=1)))
    service.written_past = True
    assert own_day(service).n_waiting == 1  # the case whose seat it took comes back
    assert lease(service, "anna") is not None


def test_planning_moves_neither_the_count_nor_the_next_cases(service: Service, coin: Coin) -> None:
    held_back(service, coin)
    before, first = own_day(service).n_waiting, read_next(service, "anna")
    assert own_day(service).n_waiting == before - 1
    service.call("anna", "DELETE", f"/v1/reads/{first['id']}")
    coin(0.0)
    again = read_next(service, "anna")
    coin(1.0)
    assert again["case_id"] == first["case_id"]
    assert len(repeats_of(service)) == 1
    assert own_day(service).n_waiting == before - 1
    service.call("anna", "DELETE", f"/v1/reads/{again['id']}")
    assert read_next(service, "anna")["case_id"] == first["case_id"]


def everything_counted(service: Service) -> list[Any]:
    """What is computed and shown of cases to those who manage reads."""
    paths = ["/v1/metrics?partition=all", "/v1/agreement?partition=all", "/v1/worklist", "/v1/cases"]
    case_id = service.one(select(Repeat.case_id))
    n_labels = len(service.rows(select(CountedLabel.id)))
    paths += [f"/v1/cases/{case_id}{what}" for what in ("", "/posterior", "/labels?history=true")]
    documents = [service.get("admin", path).json() for path in paths]
    return [n_labels, *documents, service.document("/v1/changes")["items"]]


def test_nothing_follows_from_the_answer_to_a_repeat(service: Service, coin: Coin) -> None:
    planned(service, coin)
    move_to_the_front(service)
    before = everything_counted(service)
    read = read_next(service, "anna")
    assert everything_counted(service)[1:3] == before[1:3]
    assert commit(service, "anna", read, classes_of(service)[3]).status_code == 201
    assert service.make_labels_final() == 0
    assert everything_counted(service) == before
    assert service.one(select(Label.class_code).where(Label.purpose == "repeat")) == classes_of(service)[3]


def test_only_what_was_held_back_comes_again_and_only_once(service: Service, coin: Coin) -> None:
    repeat = planned(service, coin)
    coin(0.0)
    for _ in range(8):
        read = lease(service, "anna")
        if read is not None:
            coin(1.0)  # the others are not held back
            commit(service, "anna", read, classes_of(service)[0])
            coin(0.0)
    assert [row.id for row in repeats_of(service)] == [repeat.id]
    assert service.scalars(select(HeldBack.case_id)) == [repeat.case_id]


def test_a_case_that_was_read_a_short_time_ago_does_not_come_again(
    service: Service, coin: Coin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "MIN_TIME_APART", timedelta(days=14))
    with pytest.raises(IndexError):
        planned(service, coin)
    assert repeats_of(service) == []


def test_a_case_does_not_come_again_while_a_page_lists_it(
    service: Service, coin: Coin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of the day shows the pictures of what was read: nobody is to see one twice there."""
    monkeypatch.setattr(repeats, "MIN_CASES_BETWEEN", 2)
    with pytest.raises(IndexError):
        planned(service, coin)
    for _ in range(2):
        assert repeats_of(service) == []
        coin(1.0)
        commit(service, "anna", read_next(service, "anna"), classes_of(service)[0])
        coin(0.0)
        service.call("anna", "DELETE", f"/v1/reads/{read_next(service, 'anna')['id']}")
    assert len(repeats_of(service)) == 1


def test_as_many_repeats_as_the_policy_says(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the coin alone: a share of the leases is planned, and five times as many cases are held back."""
    rng = random.Random(0)
    monkeypatch.setattr(case_queries, "draw_random_unit", rng.random)
    policy = PolicyRow(repeat_rate=0.02, reveal="after_case_closed")
    kept: list[Any] = []
    monkeypatch.setattr(repeats, "_choose_replaced_request", lambda *_: kept.append("planned"))
    monkeypatch.setattr(repeats, "_choose_repeated_label", lambda *_: None)
    with service.context.database.read() as session:
        monkeypatch.setattr(session, "add", kept.append)
        for _ in range(5000):
            repeats.maybe_schedule_repeat(session, uuid.uuid4(), policy)
            case_queries.maybe_hold_back(session, Label(annotator_id=uuid.uuid4(), case_id=uuid.uuid4()), policy)
    n_planned = kept.count("planned")
    assert 70 <= n_planned <= 130  # 100 of 5,000, five standard deviations
    assert 400 <= len(kept) - n_planned <= 600


def test_a_case_held_back_stays_closed_to_its_annotator_alone(service: Service, coin: Coin) -> None:
    set_policy(service, **POLICY)
    cases = [service.add_case(f"case {number}", cell_png(number)) for number in range(2)]
    by_handle = {service.known_as("anna", case["id"]): case["id"] for case in cases}
    statuses = {}
    for value in (0.0, 1.0):
        coin(value)
        read = read_next(service, "anna")
        commit(service, "anna", read, classes_of(service)[0])
        service.make_labels_final()
        case_id = by_handle[read["case_id"]]
        for what in ("", "/posterior", "/labels", "/predictions"):
            statuses.setdefault(value, set()).add(service.get("anna", f"/v1/cases/{case_id}{what}").status_code)
        assert service.get("viewer", f"/v1/cases/{case_id}").status_code == 200
    assert statuses == {0.0: {403}, 1.0: {200}}


@pytest.mark.parametrize("fields", [{"repeat_rate": 0}, {"reveal": "after_commit"}])
def test_a_policy_without_repeats_takes_back_those_that_wait(
    service: Service, coin: Coin, fields: dict[str, Any]
) -> None:
    planned(service, coin)
    before = own_day(service).n_waiting
    set_policy(service, **POLICY | fields)
    coin(0.0)
    assert (own_day(service).n_waiting, repeats_of(service)[0].state) == (before, "closed")
    while lease(service, "anna") is not None:
        for read in service.get("anna", "/v1/reads").json()["items"]:
            commit(service, "anna", read, classes_of(service)[0])
    assert len(repeats_of(service)) == 1


def test_what_an_annotator_has_seen_of_a_twin_takes_the_repeat_back(service: Service, coin: Coin) -> None:
    planned(service, coin)
    twin = service.add_case("twin", cell_png(0), patient="p")
    show(service, "anna", twin["id"])
    move_to_the_front(service)
    read_next(service, "anna")
    assert repeats_of(service)[0].state == "closed"


def test_erasing_the_patient_ends_a_repeat_and_forgets_its_note(service: Service, coin: Coin) -> None:
    planned(service, coin)
    move_to_the_front(service)
    read = read_next(service, "anna")
    commit(service, "anna", read, classes_of(service)[0], note="a note about the patient")
    with service.context.database.write() as session:
        erased = erase_patient_rows(session, service.context, "lead", ErasureTarget("p"), "asked for")
    assert (erased.n_remarks, erased.n_answers > 0) == (1, True)


def test_an_older_policy_has_no_repeats(service: Service) -> None:
    policies = service.get("viewer", "/v1/policies").json()["items"]
    assert [policy["repeat_rate"] for policy in policies] == [0.0]


def let_leases_run_out(service: Service) -> None:
    """Let every lease end by itself, and Ben ask for a case, by which it is seen."""
    past = utc_now() - timedelta(hours=1)
    with service.context.database.write() as session:
        for asked in (ReadRequest, Repeat):
            session.execute(update(asked).where(asked.state == "leased").values(lease_expires_at=past))
        session.execute(update(Read).where(Read.state == "leased").values(expires_at=past))
    assert lease(service, "ben") is not None


def test_a_repeat_whose_lease_ran_out_goes_back_when_others_do(service: Service, coin: Coin) -> None:
    """Anna holds three cases for too long; when Ben asks for one, none of hers may stay behind."""
    planned(service, coin)
    move_to_the_front(service)
    held = [read_next(service, "anna") for _ in range(3)]
    assert repeats_of(service)[0].state == "leased"
    let_leases_run_out(service)
    assert service.get("anna", "/v1/reads").json()["items"] == []
    states = {service.get("anna", f"/v1/reads/{read['id']}").json()["state"] for read in held}
    assert states == {"expired"}


def test_an_answer_to_a_repeat_that_was_withdrawn_meanwhile_is_late_as_to_any_read(
    service: Service, coin: Coin
) -> None:
    """A refusal would tell that it was one."""
    planned(service, coin)
    move_to_the_front(service)
    read = read_next(service, "anna")
    let_leases_run_out(service)
    set_policy(service, **POLICY | {"repeat_rate": 0})
    assert repeats_of(service)[0].state == "closed"
    before = everything_counted(service)
    assert commit(service, "anna", read, classes_of(service)[3]).status_code == 201
    assert everything_counted(service) == before
    late = service.scalars(select(Label.late).where(Label.purpose == "repeat"))
    assert late == [True]


# of these an admin is to see what became of a repeat, or that time has passed
CHANGING = {"/v1/audit-events", "/v1/jobs", "/readyz", "/metrics"}


def test_no_code_selects_from_the_labels_but_that_which_must_see_repeats() -> None:
    assert set(list_uses()) == SEES_REPEATS.keys()


def documents(service: Service, case_id: str) -> dict[str, Any]:
    """What an admin gets of every route that needs no more than a case, and of every page."""
    answers = {}
    for route in walk_routes(service.client.app):  # type: ignore[arg-type]
        path = re.sub(r"{name}", "anna", re.sub(r"{case_id}", case_id, route.path))
        path += "?partition=all" if path in {"/v1/metrics", "/v1/agreement"} else ""
        if "GET" in (route.methods or ()) and "{" not in path:
            answer = service.get("admin", path, follow_redirects=False)
            if path not in CHANGING and answer.headers.get("content-type") == "application/json":
                answers[path] = answer.json()
    return answers


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_whole_flows_see_a_repeat_only_where_they_must(service: Service, coin: Coin) -> None:
    """Each statement of each test is looked at; here that the watch sees them, and that no document changes."""
    seen_senders.clear()
    case_id = str(planned(service, coin).case_id)
    cookie = first_password(service, "anna")
    move_to_the_front(service)
    before = documents(service, case_id)
    assert len(before) > 15
    assert before["/v1/metrics?partition=all"]["n_labels"] == 1
    read = read_next(service, "anna")
    journey(service, cookie, read)
    assert service.make_labels_final() == 0
    for page in ("/own", "/worklist"):
        service.client.get(page, headers=cookie | {"Accept": "text/html"})
    assert documents(service, case_id) == before
    with service.context.database.write() as session:
        erase_patient_rows(session, service.context, "lead", ErasureTarget("p"), "asked for")
    with service.context.database.read_moment() as session:
        assert check_audit(session, service.context.keys.audit).faults == []
    assert seen_senders >= SENDERS | {"app.audit.proof"}


@pytest.mark.both_databases
def test_nothing_is_changed_through_the_view(service: Service) -> None:
    case = service.add_case()
    service.outside_label(case["id"], "reader", case["prediction"]["classes"][0])
    for statement in ("UPDATE counted_labels SET blind = :yes", "DELETE FROM counted_labels WHERE blind = :yes"):
        with pytest.raises(DBAPIError), service.context.database.write() as session:
            session.execute(text(statement), {"yes": True})


def test_the_view_has_the_columns_of_the_labels() -> None:
    columns = [[column.name for column in table.__table__.columns] for table in (Label, CountedLabel)]
    assert columns[0] == columns[1]
    assert "counted_labels" not in BaseTable.metadata.tables
