"""What drawn annotators could conclude from their queues: nothing of arm, number or others' reads of a case."""

import uuid
from typing import Any

from sqlalchemy import select

from app.accounts.people import reading_annotators
from app.database.tables import Account, ReadRequest
from app.labels.annotator_day import get_day_progress
from app.labels.posterior import reassign_open_requests
from app.triage.planning import random_queue_place
from tests.app.test_drawn_annotators import READERS, asked_of, drawing
from tests.app.test_leases import classes_of, commit, lease, requests_of
from tests.support.service import Service, cell_png


def n_waiting(service: Service, who: str) -> int:
    from app.http.principal import Principal

    with service.context.database.read() as session:
        account = session.execute(select(Account).where(Account.name == who)).scalar_one()
        return get_day_progress(session, Principal(account.id, who, "annotator", frozenset({"reads:own"}))).n_waiting


def mixed(service: Service, n: int = 12) -> list[str]:
    """Cases of which some are read once and some twice, by annotators who are drawn; gives their identifiers."""
    drawing(service, "cleo", "dora", threshold=0.99, audit_rate=0.5)
    cases = [str(service.add_case(f"case {number}", cell_png(number))["id"]) for number in range(n)]
    assert {len(requests_of(service, case)) for case in cases} == {1, 2}
    return cases


def test_a_queue_is_one_place_per_case_whichever_read_is_asked_and_whatever_others_do(service: Service) -> None:
    """An annotator goes through their own cases by the places of the cases: four at a time, as in one queue for all."""
    cases = mixed(service)
    codes = classes_of(service)
    own = {who: [case for case in cases if who in asked_of(service, case)] for who in READERS}
    for who in READERS:
        left = sorted(random_queue_place(uuid.UUID(case)) for case in own[who])
        assert n_waiting(service, who) == len(left)
        while (read := lease(service, who)) is not None:
            place = random_queue_place(uuid.UUID(service.case_of(who, read["case_id"])))
            assert left.index(place) < 4
            left.remove(place)
            assert n_waiting(service, who) == len(left)
            assert commit(service, who, read, codes[0]).status_code == 201
        assert left == []


def test_nothing_that_others_do_in_time_moves_an_annotators_count_or_next_case(service: Service) -> None:
    """Before, a colleague who leased a case with one read took it from everybody's count."""
    cases = mixed(service)
    codes = classes_of(service)
    for who in READERS[1:]:
        seen = []
        for number in range(3):
            seen.append(n_waiting(service, "anna"))
            read = lease(service, who)
            if read is not None and number:
                commit(service, who, read, codes[number])
        assert len(set(seen)) == 1
    assert n_waiting(service, "anna") == sum("anna" in asked_of(service, case) for case in cases)


def test_what_a_read_shows_is_the_same_for_the_first_and_the_second(service: Service) -> None:
    """Every answer that an annotator gets, whichever of the case's reads is theirs."""
    mixed(service)
    shapes: dict[tuple[int, str], set[str]] = {}
    for who in READERS:
        while (read := lease(service, who)) is not None:
            with service.context.database.read() as session:
                case = uuid.UUID(service.case_of(who, read["case_id"]))
                annotators = {one.id: one.name for one in _annotators(service)}
                wanted = select(ReadRequest).where(ReadRequest.case_id == case)
                mine = next(one for one in session.execute(wanted).scalars() if annotators.get(one.annotator_id) == who)
            answer = commit(service, who, read, classes_of(service)[0])
            said: Any = [sorted(read), read["state"], answer.status_code, _plain(answer.json())]
            shapes.setdefault((mine.ordinal, mine.arm), set()).add(str(said))
    assert {key[0] for key in shapes} == {1, 2}
    assert len({frozenset(shape) for shape in shapes.values()}) == 1


def _annotators(service: Service) -> list[Any]:
    with service.context.database.write() as session:
        return list(reading_annotators(session))


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    label = {k: v for k, v in document["label"].items() if k not in _OF_THE_PERSON}
    return document | {"label": label}


_OF_THE_PERSON = {"id", "case_id", "annotator", "reading_seconds", "created_at"}


def test_the_routes_that_tell_who_was_drawn_are_closed_to_annotators(service: Service) -> None:
    mixed(service, 2 + 8)
    for path in ("/v1/worklist", "/v1/policies", "/v1/metrics"):
        assert service.get("anna", path).status_code == 403
    read = next(read for who in READERS if (read := lease(service, who)) is not None)
    assert not {"asked_of", "probability", "ordinal", "arm", "due_at"} & set(read)


def test_all_requests_of_a_case_keep_one_place_after_a_draw_and_another(service: Service) -> None:
    cases = mixed(service)
    who = asked_of(service, cases[0])[0]
    assert who is not None
    read = lease(service, who)
    assert read is not None
    service.post(who, f"/v1/reads/{read['id']}/decline", json={"reason": "not_my_field"})
    assert reassign_open_requests(service.context) == 1
    for case in cases:
        places = {(request.due_on, request.shuffle) for request in requests_of(service, case)}
        assert len(places) == 1
    waiting = [n_waiting(service, name) for name in READERS]
    assert sum(waiting) == sum(len(requests_of(service, case)) for case in cases)
