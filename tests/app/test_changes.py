"""A program that follows the changes learns of each one once, in order, by identifiers alone."""

import base64
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from app.audit.chain import events
from app.database.tables import AuditEvent, AuditHead, CaseChange, Job
from app.maintenance.erasure import erase_patient_everywhere
from app.releases.service import move_alias
from tests.app.test_leases import classes_of
from tests.app.test_specimens import add_specimen, put_policy
from tests.security.test_access import add_program
from tests.support.service import Service, cell_png, change_append_only
from tests.support.tiny_release import write_tiny_release

both_databases = pytest.mark.both_databases
on_postgresql = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
PATH = "/v1/changes"
Change = tuple[str, str, str | None, str | None, str | None]


class Reader:
    """Follows the changes from now on."""

    def __init__(self, service: Service, who: str = "viewer", limit: int = 1000) -> None:
        self._service, self._who, self._limit, self.cursor = service, who, limit, ""
        self.new()

    def new(self) -> list[Change]:
        """What has changed since the last call."""
        return [
            (one["kind"], one["action"], one["id"], one["case"], one["specimen"])
            for page in self.pages()
            for one in page["items"]
        ]

    def pages(self) -> Iterator[dict[str, Any]]:
        while True:
            given = {"after": self.cursor} if self.cursor else {}
            page = self._service.document(PATH, self._who, limit=self._limit, **given)
            self.cursor = page["next_cursor"]
            yield page
            if not page["items"]:
                return


def problem(service: Service, cursor: str) -> tuple[int, str]:
    answer = service.get("viewer", PATH, params={"after": cursor})
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


@both_databases
def test_each_change_comes_once_and_in_order(service: Service) -> None:
    reader, slow = Reader(service), Reader(service, limit=1)
    specimen = add_specimen(service, patient="P1")
    case = service.add_case("a", cell_png(1), specimen="S-1", patient="P1")["id"]
    alone = service.add_case("b", cell_png(2))["id"]
    assert reader.new() == [
        ("specimen", "stored", specimen, None, None),
        ("case", "stored", case, case, specimen),
        ("case", "stored", alone, alone, None),
    ]
    put_policy(service)
    blast, other = classes_of(service)[:2]
    first = service.outside_label(case, "r", blast)["label"]["id"]
    revision = {"label": other, "reason": "a slip"}
    second = service.post("outside", f"/v1/labels/{first}/revisions", json=revision).json()["label"]["id"]
    third = service.post("outside", f"/v1/labels/{second}/retraction", json={"reason": "a slip"}).json()["label"]["id"]
    service.settle(alone)
    service.call("admin", "DELETE", f"/v1/cases/{alone}/outcome", params={"reason": "too early"})
    assert reader.new() == [
        ("posterior", "changed", None, None, None),
        ("label", "stored", first, case, specimen),
        ("label", "changed", second, case, specimen),
        ("label", "withdrawn", third, case, specimen),
        ("outcome", "stored", alone, alone, None),
        ("outcome", "withdrawn", alone, alone, None),
    ]
    assert reader.new() == []
    assert len(slow.new()) == 9
    assert slow.cursor == reader.cursor


@both_databases
def test_a_posterior_follows_an_annotators_label_once_it_is_final(service: Service) -> None:
    put_policy(service, reveal="after_case_closed")
    case = service.add_case()["id"]
    reader = Reader(service)
    label = service.answer("anna", case, classes_of(service)[0]).json()["label"]["id"]
    assert reader.new() == [("label", "stored", label, case, None)]
    assert service.document(f"/v1/cases/{case}/posterior")["n_labels"] == 0
    assert service.make_labels_final() == 1
    assert reader.new() == [("posterior", "changed", case, case, None)]
    assert service.document(f"/v1/cases/{case}/posterior")["n_labels"] == 1


@both_databases
def test_an_erased_patient_is_named_by_identifiers_on_pages_of_any_length(service: Service) -> None:
    empty, whole = add_specimen(service, "S-empty", patient="P1"), add_specimen(service, "S-whole", patient="P1")
    cells = [
        service.add_case(name, cell_png(n), specimen="S-whole", patient="P1")["id"] for n, name in enumerate("abc")
    ]
    kept = service.add_case("kept", cell_png(9), patient="P2")["id"]
    readers = [Reader(service, limit=limit) for limit in (1, 2, 1000)]
    erase_patient_everywhere(service.context, "admin", "P1", "asked for")
    expected: list[Change] = [("specimen", "erased", one, None, None) for one in sorted((empty, whole))]
    expected += [("case", "erased", one, one, whole) for one in sorted(cells)]
    assert [reader.new() for reader in readers] == [expected] * 3
    history = service.document(PATH)["items"]
    assert [one["id"] for one in history if one["kind"] == "case"] == [*cells, kept, *sorted(cells)]
    assert set(history[0]) == {"at", "kind", "action", "id", "case", "specimen"}
    assert not {"P1", "P2", "S-whole", "kept"} & {value for one in history for value in one.values()}


@pytest.mark.slow
@both_databases
def test_a_reader_among_writers_misses_nothing_and_gets_nothing_twice(service: Service) -> None:
    reader = Reader(service, limit=3)

    def write(writer: int) -> list[str]:
        return [service.add_case(f"{writer} {n}", cell_png(100 * writer + n))["id"] for n in range(8)]

    seen: list[Change] = []
    with ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(write, writer) for writer in range(1, 5)]
        while not all(writer.done() for writer in writers):
            seen += reader.new()
    seen += reader.new()
    stored = sorted(case for writer in writers for case in writer.result())
    assert sorted(str(one[2]) for one in seen) == stored
    assert [one["id"] for one in service.document(PATH)["items"] if one["kind"] == "case"] == [one[2] for one in seen]


@on_postgresql
def test_what_began_first_and_commits_last_comes_last(service: Service) -> None:
    reader, keys = Reader(service), service.context.keys.audit
    cases = [uuid.UUID(one["id"]) for one in service.add_cases(2)]
    reader.new()

    def note(session: Any, case: uuid.UUID) -> None:
        session.add(Job(kind="test", parameters={}))
        events.record_event(session, keys, actor="x", action="outcome.settle", object_id=case, cases=[case])
        session.flush()

    with service.context.database.write() as slow:
        note(slow, cases[0])
        with service.context.database.write() as fast:
            note(fast, cases[1])
        assert [one[2] for one in reader.new()] == [str(cases[1])]
    assert [one[2] for one in reader.new()] == [str(cases[0])]


def go_back(service: Service, sequence: int, digest: str) -> None:
    """Let the chain end where it ended earlier, as in an older backup."""
    service.written_past = True
    with service.context.database.write() as session:
        for table in (CaseChange, AuditEvent):
            later = delete(table.__table__).where(table.__table__.c.sequence > sequence)
            change_append_only(session, table.__tablename__, later)
        session.execute(update(AuditHead.__table__).values(sequence=sequence, digest=digest))


@both_databases
def test_a_cursor_from_after_the_restored_backup_is_refused_and_not_passed_over(service: Service) -> None:
    service.before_change = lambda: None
    service.add_case("before", cell_png(1))
    old = Reader(service).cursor
    with service.context.database.read() as session:
        head = events.read_head(session)
    service.add_case("lost", cell_png(2))
    new = Reader(service).cursor
    go_back(service, *head)
    assert problem(service, new) == (409, "cursor-lost")
    later = service.add_case("later", cell_png(3))["id"]  # an event of the same number takes the place of the lost one
    assert problem(service, new) == (409, "cursor-lost")
    page = service.document(PATH, after=old)
    assert [one["id"] for one in page["items"]] == [later]


@both_databases
@pytest.mark.parametrize("cursor", ["", "x", "?!", "ä", "AAAA", base64.urlsafe_b64encode(b"\xff" * 29).decode()])
def test_an_invalid_cursor_is_named(service: Service, cursor: str) -> None:
    assert problem(service, cursor) == (422, "invalid")


def test_a_cursor_of_another_service_is_refused(service: Service) -> None:
    for number in (-1, 0, 1, 2**31 - 1):
        forged = number.to_bytes(4, "little", signed=True) + b"\x01" * 26
        assert problem(service, base64.urlsafe_b64encode(forged).decode()) == (409, "cursor-lost")


def test_who_may_not_read_cells_gets_nothing(service: Service) -> None:
    service.add_case()
    add_program(service, "predicting", "predict")
    callers = (None, "anna", "outside", "predicting")
    assert [service.get(who, PATH).status_code for who in callers] == [401, 403, 403, 403]


@pytest.mark.slow_on_second_database
@both_databases
def test_releases_are_those_that_the_caller_may_list_and_the_champion(service: Service, tmp_path: Path) -> None:
    add_program(service, "cells", "cases:read")
    readers = [Reader(service, who) for who in ("viewer", "cells")]
    added = str(service.put_release(write_tiny_release(tmp_path / "other", "other")).id)
    for name in ("challenger", "champion"):
        with service.context.database.write() as session:
            move_alias(session, service.context, "x", name, uuid.UUID(added), "a test", None, despite_gate=True)
    champion: Change = ("release", "changed", added, None, None)
    assert [reader.new() for reader in readers] == [[("release", "stored", added, None, None), champion], [champion]]
