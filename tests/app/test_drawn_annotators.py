"""Planned reads are asked of annotators who are drawn at random; what each of them is given, and what is kept of it."""

import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from app.accounts.people import reading_annotators
from app.audit.chain.keys import DerivedKey
from app.audit.verify import check_audit
from app.database.tables import Account, Annotator, Label, ReaderDraw, ReadRequest
from app.labels.posterior import reassign_open_requests
from app.triage.assignment import GRACE_PERIOD, PANEL_SIZE, choose_weekly_panel, pick_annotator
from app.web.forms import PolicyForm
from tests.app.test_leases import answer_next, classes_of, commit, lease, read_next, requests_of, set_policy
from tests.app.test_reader_models import put_model, switch, two_readers
from tests.support.service import Service, cell_png

READERS = ("anna", "ben", "cleo", "dora")


def drawing(service: Service, *more: str, **fields: Any) -> dict[str, Any]:
    """From now on annotators are drawn, and every case is read twice; gives the policy."""
    for name in more:
        service.add_annotator(name)
    return set_policy(service, **{"threshold": 0.0, "reveal": "never", "draw_readers": True} | fields)


def asked_of(service: Service, case_id: str) -> list[str | None]:
    names = {row.id: row.name for row in service.scalars(select(Annotator))}
    return [None if row.annotator_id is None else names[row.annotator_id] for row in requests_of(service, case_id)]


def draws_of(service: Service, case_id: str) -> list[ReaderDraw]:
    found = select(ReaderDraw).where(ReaderDraw.case_id == uuid.UUID(case_id))
    return service.scalars(found.order_by(ReaderDraw.id))


def assert_drawn_by_the_key(service: Service) -> None:
    """Each draw is that of the key, and its event has its digest."""
    with service.context.database.read() as session:
        assert check_audit(session, service.context.keys.audit).faults == []
        drawn = select(ReaderDraw, ReadRequest.ordinal).join(ReadRequest, ReadRequest.id == ReaderDraw.request_id)
        for draw, ordinal in session.execute(drawn.where(ReaderDraw.probability.is_not(None))):
            by_key = pick_annotator(service.context.keys.draws, draw.case_id, ordinal, draw.position, draw.among)
            assert (str(draw.annotator_id), draw.probability) == (by_key, 1 / len(draw.among))


def let_pass(service: Service, time: timedelta) -> None:
    """Everything that is asked for is due earlier by so much."""
    with service.context.database.write() as session:
        for request in session.execute(select(ReadRequest)).scalars():
            request.due_at -= time
    service.written_past = True


@pytest.mark.both_databases
def test_two_annotators_are_drawn_with_their_probabilities_and_only_they_are_given_the_case(service: Service) -> None:
    assert drawing(service, "cleo", "dora")["draw_readers"] is True
    case = service.add_case()
    asked = asked_of(service, case["id"])
    assert len(set(asked)) == 2
    assert [(draw.probability, len(draw.among)) for draw in draws_of(service, case["id"])] == [(0.25, 4), (1 / 3, 3)]
    assert_drawn_by_the_key(service)
    work = service.get("admin", "/v1/worklist").json()["items"][0]["requests"]
    assert [(one["asked_of"], one["probability"]) for one in work] == list(zip(asked, (0.25, 1 / 3), strict=True))
    others_first = sorted(READERS, key=lambda who: who in asked)
    given = {who: lease(service, who) for who in others_first}
    assert {who for who, read in given.items() if read is not None} == set(asked)
    for read, who in ((given[who], who) for who in asked if who is not None):
        assert read is not None
        assert commit(service, who, read, classes_of(service)[0]).status_code == 201
    with service.context.database.read() as session:
        answered = select(ReadRequest.ordinal, Annotator.name).join(Label, Label.id == ReadRequest.label_id)
        named = session.execute(answered.join(Annotator, Annotator.id == Label.annotator_id)).all()
    assert sorted(tuple(row) for row in named) == [(1, asked[0]), (2, asked[1])]


def test_each_annotator_is_drawn_equally_often_first_and_second(service: Service) -> None:
    """By the keyed number alone: 4,000 cases, five standard deviations."""
    key = DerivedKey(b"k" * 32, b"drawn annotators:")
    first, second = Counter[str](), Counter[tuple[str, str]]()
    for number in range(4000):
        case_id = uuid.UUID(int=number)
        one = pick_annotator(key, case_id, 1, 0, READERS)
        other = pick_annotator(key, case_id, 2, 0, [who for who in READERS if who != one])
        first[one] += 1
        second[one, other] += 1
    assert all(abs(count - 1000) < 5 * 27.4 for count in first.values())
    assert len(second) == 12
    assert all(abs(count - 4000 / 12) < 5 * 17.5 for count in second.values())


def test_of_more_than_ten_a_keyed_panel_of_ten_is_drawn_from_each_week() -> None:
    key = DerivedKey(b"k" * 32, b"drawn annotators:")
    people = [uuid.UUID(int=number) for number in range(25)]
    monday = datetime(2026, 11, 23, tzinfo=UTC)
    weeks = [choose_weekly_panel(key, monday + timedelta(weeks=week), people) for week in range(400)]
    assert {len(week) for week in weeks} == {PANEL_SIZE}
    assert weeks[0] == choose_weekly_panel(key, monday + timedelta(days=6, hours=23), people)
    often = Counter(one for week in weeks for one in week)
    assert all(abs(often[one] - 160) < 5 * 9.8 for one in people)
    assert choose_weekly_panel(key, monday, people[:10]) == people[:10]


def test_no_probability_is_below_a_tenth(service: Service) -> None:
    drawing(service, *(f"reader {number}" for number in range(12)))
    case = service.add_case()
    assert [draw.probability for draw in draws_of(service, case["id"])] == [0.1, 0.1]
    assert_drawn_by_the_key(service)


def test_a_read_is_asked_only_of_people_who_may_read_blind(service: Service) -> None:
    drawing(service, "cleo", "dora")
    service.set_disabled("cleo", disabled=True)
    with service.context.database.write() as session:
        session.add_all([Account(name="taken", role="annotator"), Annotator(name="taken")])  # of an earlier version
    service.written_past = True
    with service.context.database.write() as session:
        names = {annotator.name for annotator in reading_annotators(session)}
    assert names == {"anna", "ben", "dora"}


def test_nobody_is_drawn_for_a_case_whose_twin_is_theirs(service: Service) -> None:
    drawing(service, "cleo", "dora")
    first, twin = (service.add_case(f"case {number}", patient="p") for number in range(2))
    assert set(asked_of(service, first["id"])).isdisjoint(asked_of(service, twin["id"]))
    third = service.add_case("case 2", patient="p")
    assert set(asked_of(service, third["id"])) == {None}  # nobody is left: anybody who may


def test_who_declines_passes_the_read_to_another_who_is_drawn_among_the_rest(service: Service) -> None:
    drawing(service, "cleo", "dora")
    case = service.add_case()
    first, second = asked_of(service, case["id"])
    for n_left in (2, 1):
        who = asked_of(service, case["id"])[0]
        assert who is not None
        read = read_next(service, who)
        declined = service.post(who, f"/v1/reads/{read['id']}/decline", json={"reason": "not_my_field"})
        assert declined.status_code == 200, declined.text
        assert reassign_open_requests(service.context) == 1
        assert asked_of(service, case["id"])[1] == second
        assert draws_of(service, case["id"])[-1].probability == 1 / n_left
    who = asked_of(service, case["id"])[0]
    assert who not in {first, second}
    read = read_next(service, str(who))
    service.post(str(who), f"/v1/reads/{read['id']}/decline", json={"reason": "not_my_field"})
    assert reassign_open_requests(service.context) == 1
    assert reassign_open_requests(service.context) == 0
    assert asked_of(service, case["id"]) == [None, second]
    assert [draw.position for draw in draws_of(service, case["id"])] == [0, 0, 1, 2]
    assert_drawn_by_the_key(service)


def test_reads_of_an_annotator_who_left_are_drawn_again(service: Service) -> None:
    drawing(service, "cleo", "dora")
    case = service.add_case()
    assert reassign_open_requests(service.context) == 0
    gone, second = asked_of(service, case["id"])
    service.set_disabled(str(gone), disabled=True)
    assert reassign_open_requests(service.context) == 1
    now_asked = asked_of(service, case["id"])
    assert now_asked[1] == second
    assert now_asked[0] not in {gone, second, None}
    assert draws_of(service, case["id"])[-1].probability == 0.5
    assert reassign_open_requests(service.context) == 0
    assert_drawn_by_the_key(service)


def test_what_is_overdue_may_be_taken_by_anybody_and_is_told(service: Service) -> None:
    drawing(service, "cleo", "dora", due_days=7)
    case = service.add_case()
    asked = asked_of(service, case["id"])
    other = next(who for who in READERS if who not in asked)
    let_pass(service, timedelta(days=7) + GRACE_PERIOD - timedelta(hours=1))
    assert lease(service, other) is None
    let_pass(service, timedelta(hours=2))
    read = read_next(service, str(asked[1]))  # theirs is given to them, and not the lowest
    assert commit(service, str(asked[1]), read, classes_of(service)[0]).status_code == 201
    answer_next(service, other, classes_of(service)[1])
    assert asked_of(service, case["id"]) == asked  # of whom it was asked stays known
    told = service.document("/v1/policies")["draws"]
    assert told == {"n_answered": 2, "n_as_drawn": 1, "n_drawn_again": 0, "n_overdue": 0}


def test_requests_without_a_draw_are_anybodys(service: Service) -> None:
    set_policy(service, threshold=0.0, reveal="never")
    case = service.add_case()
    drawing(service, "cleo", "dora")
    assert asked_of(service, case["id"]) == [None, None]
    assert lease(service, "cleo") is not None
    assert draws_of(service, case["id"]) == []


def test_an_adjudication_is_asked_of_whose_label_teaches_most_per_waiting_read(service: Service) -> None:
    codes = classes_of(service)
    drawing(service, "careful", "careless", adjudicate_below=0.999999, max_labels=4)
    for name in ("careful", "careless"):  # they read what is adjudicated and nothing else
        service.set_disabled(name, disabled=True)
    assert switch(service, put_model(service, two_readers(len(codes))), 0).status_code == 200
    cases = [service.add_case(f"case {number}", cell_png(number))["id"] for number in range(2)]
    for name in ("careful", "careless"):
        service.set_disabled(name, disabled=False)
    for place, who in enumerate(("anna", "ben")):
        while (read := lease(service, who)) is not None:
            assert commit(service, who, read, codes[place]).status_code == 201
    service.make_labels_final()
    assert [asked_of(service, case)[2] for case in cases].count("careful") >= 1
    preferred = [draw for case in cases for draw in draws_of(service, case) if draw.probability is None]
    assert len(preferred) == 2
    assert all(draw.gain is not None and draw.gain > 0 for draw in preferred)
    assert {draw.load for draw in preferred} <= {0, 1}
    assert_drawn_by_the_key(service)
    held = read_next(service, "careful")
    case = service.case_of("careful", held["case_id"])
    assert asked_of(service, case)[2] == "careful"
    declined = service.post("careful", f"/v1/reads/{held['id']}/decline", json={"reason": "not_my_field"})
    assert declined.status_code == 200
    assert reassign_open_requests(service.context) == 1
    assert asked_of(service, case)[2] == "careless"


def test_without_a_model_an_adjudication_is_anybodys(service: Service) -> None:
    drawing(service, "cleo", adjudicate_below=0.999999)
    case = service.add_case()
    for place, who in enumerate(asked_of(service, case["id"])):
        assert who is not None
        answer_next(service, who, classes_of(service)[place])
    service.make_labels_final()
    assert asked_of(service, case["id"])[2:] == [None]
    other = next(who for who in ("anna", "ben", "cleo") if who not in asked_of(service, case["id"]))
    assert lease(service, other) is not None


@pytest.mark.parametrize(
    ("typed", "draws"), [({"draw_readers": "true"}, True), ({"draw_readers": "false"}, False), ({}, False)]
)
def test_the_form_of_the_policy_page_says_who_is_asked(typed: dict[str, str], draws: bool) -> None:
    policy = PolicyForm(rule="disagreement", threshold="0.2", reason="who is quick reads most", **typed).policy()
    assert policy.draw_readers is draws
