"""Specimens: their cells, their shares, their second reads, and what becomes of them with a patient."""

import csv
import json
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import column, select, table

from app.database.tables import (
    AuditEvent,
    Case,
    ReaderDraw,
    ReadRequest,
    ReleaseRow,
    Specimen,
    SpecimenKnowledge,
    SpecimenResult,
    utc_now,
)
from app.maintenance.erasure import erase_patient_everywhere
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from app.releases.service import served_release_id
from app.specimens.learning import check_specimens, learn, learn_from_specimens
from app.specimens.measuring import refresh_specimen, refresh_stale_specimens
from app.triage.service import cells_of_specimen, plan_specimen
from app.triage.specimen_reads import calibration_mix_on
from ml.specimens.cells import Group, Threshold
from ml.specimens.shares import measure_specimen
from tests.app.test_leases import answer_next, classes_of
from tests.app.test_reader_models import put_model, switch, two_readers
from tests.support.command import run_here
from tests.support.service import Service, cell_png, store
from tests.support.waiting import wait_until

#: Sessions of PostgreSQL that wait for a row.
_WAITING = select(column("pid")).select_from(table("pg_locks")).where(~column("granted"))
GROUP = {"group": "blasts", "classes": ["blast"], "thresholds": [{"at": 0.2, "miss_cost": 5}]}


def put_policy(service: Service, **fields: Any) -> None:
    wanted = {"rule": "disagreement", "threshold": 0.4, "reveal": "after_commit", "repeat_rate": 0, "reason": "a test"}
    answer = service.post("admin", "/v1/policies", json=wanted | fields)
    assert answer.status_code == 201, answer.text


def choose_by_value(service: Service, reads: int, **fields: Any) -> None:
    chosen = {"rule": "specimen_value", "threshold": None, "reads_per_specimen": reads, "specimen_goal": "decision"}
    put_policy(service, **chosen, reporting_groups=[GROUP], **fields)


def add_specimen(service: Service, external_id: str = "S-1", **fields: str) -> str:
    answer = service.post("admin", "/v1/specimens", json={"external_id": external_id, **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["specimen"])


def add_cells(service: Service, specimen: str, n: int, start: int = 0) -> list[str]:
    return [
        store(service, f"{specimen} cell {number}", cell_png(number), {}, specimen=specimen)
        for number in range(start, start + n)
    ]


def plan(service: Service, specimen_id: str) -> list[str]:
    with service.context.database.write() as session:
        return [str(one) for one in plan_specimen(session, service.context.keys, uuid.UUID(specimen_id))]


def command_line(service: Service, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    settings = service.context.settings
    assert settings.secret_key is not None
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", settings.secret_key.get_secret_value())
    done = run_here(*arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def shown(service: Service, specimen_id: str) -> dict[str, Any]:
    return dict(service.document(f"/v1/specimens/{specimen_id}"))


@pytest.mark.both_databases
def test_the_same_specimen_again_is_the_stored_one_and_other_fields_are_refused(service: Service) -> None:
    fields = {"external_id": "S-1", "patient": "P1", "site": "north", "collected_at": "2026-11-20T08:00:00Z"}
    first, again = (service.post("admin", "/v1/specimens", json=fields) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    for name, value in {"patient": "P2", "site": None, "collected_at": "2026-11-21T08:00:00Z"}.items():
        other = service.post("admin", "/v1/specimens", json=fields | {name: value})
        assert (other.status_code, name in other.json()["detail"]) == (409, True), other.text
    assert service.one(select(Specimen.external_id)) == "S-1"
    assert not service.faults()


@pytest.mark.both_databases
def test_a_list_of_what_has_changed_since_has_new_and_newly_measured_specimens(service: Service) -> None:
    specimens = {name: add_specimen(service, name) for name in ("S-1", "S-2")}

    def changed() -> list[str]:
        return [one["external_id"] for one in service.items("/v1/specimens", after=moment)]

    shown(service, specimens["S-1"])
    moment = utc_now().isoformat()
    assert changed() == []
    (cell,) = add_cells(service, specimens["S-1"], 1)
    shown(service, specimens["S-1"])
    assert changed() == ["S-1"]
    moment = utc_now().isoformat()
    shown(service, specimens["S-1"])  # as it was
    assert changed() == []
    service.outside_label(cell, "r", classes_of(service)[0])
    add_specimen(service, "S-3")
    refresh_stale_specimens(service.context)
    assert changed() == ["S-3", "S-2", "S-1"]


def test_a_cell_makes_its_specimen_takes_its_patient_and_stays_in_it(service: Service) -> None:
    first = service.add_case("a", cell_png(1), specimen="S-1", patient="P1", site="north")
    second = service.add_case("b", cell_png(2), specimen=first["specimen"])
    assert (second["specimen"], second["patient"], second["site"]) == (first["specimen"], "P1", "north")
    for fields in ({"specimen": "S-1", "patient": "P2"}, {"specimen": "S-1", "patient": "P1", "site": "south"}):
        refused = service.upload("c", cell_png(3), **fields)
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (409, "specimen-mismatch")
    moved = service.upload("b", cell_png(2), specimen="S-2")
    assert (moved.status_code, "specimen" in moved.json()["detail"]) == (409, True)
    assert service.upload("b", cell_png(2), specimen="S-1").status_code == 200
    assert service.scalars(select(Specimen.external_id)) == ["S-1"]


@pytest.mark.slow
@pytest.mark.ci
def test_the_shares_are_those_of_the_library(service: Service) -> None:
    put_policy(service, reporting_groups=[GROUP])
    specimen_id = add_specimen(service)
    add_cells(service, "S-1", 24)
    document = shown(service, specimen_id)
    with service.context.database.read() as session:
        cells = cells_of_specimen(session, uuid.UUID(specimen_id))
    assert cells is not None
    others = [Group(code, (code,)) for code in cells.classes if code != "blast"]
    expected = measure_specimen(cells.measured(), [Group("blasts", ("blast",), (Threshold(0.2, 5.0),)), *others])
    assert [one["group"] for one in document["groups"]] == [group.group for group in expected.groups]
    assert sum(one["slide"]["share"] for one in document["groups"]) == pytest.approx(1)
    share, group = expected.groups[0], document["groups"][0]
    assert (document["n_cells"], document["mix"], document["version"], document["stale"]) == (24, "own", 1, False)
    assert group["patient"] == {"share": share.patient.share, "interval": [share.patient.low, share.patient.high]}
    assert group["slide"]["share"] == share.slide.share
    total = sum(group["components"].values())
    assert total == pytest.approx(share.components.total)
    assert group["thresholds"][0]["probability_above"] == share.thresholds[0].probability_above
    listed = service.document(f"/v1/specimens/{specimen_id}/cells", limit=200)["items"]
    probs = {case["id"]: list(case["class_probs_in_specimen"].values()) for case in listed}
    assert np.array([probs[str(one)] for one in cells.case_ids]) == pytest.approx(expected.class_probs)
    assert "cells independent within the specimen" in document["assumes"]


def test_without_groups_each_class_is_one_and_few_cells_keep_the_training_mix(service: Service) -> None:
    specimen_id = add_specimen(service)
    empty = shown(service, specimen_id)
    assert (empty["n_cells"], empty["groups"], empty["state"]) == (0, [], "open")
    add_cells(service, "S-1", 3)
    document = shown(service, specimen_id)
    classes = service.add_case("other", cell_png(50))["prediction"]["classes"]
    assert [group["group"] for group in document["groups"]] == classes
    assert sum(group["slide"]["share"] for group in document["groups"]) == pytest.approx(1)
    assert sum(group["count"] for group in document["groups"]) == 3
    assert (document["mix"], len(document["warnings"])) == ("training", 1)


def test_a_release_has_the_mix_of_its_predictions_or_else_of_its_calibration_cells(service: Service) -> None:
    """A folder with partitions `train` and `valid` has no partition `calibration`."""
    with service.context.database.read_moment() as session:
        card = session.get_one(ReleaseRow, served_release_id(session)).card
    assert calibration_mix_on(card) == pytest.approx(card["calibration"]["class_mix"])
    old = card | {"calibration": {name: made for name, made in card["calibration"].items() if name != "class_mix"}}
    n_classes = len(card["classes"])
    rare_last = [10] * (n_classes - 1) + [1]
    by_labels = (np.array(rare_last) + 0.5 / n_classes) / (sum(rare_last) + 0.5)
    for part in ("calibration", "valid"):
        counted = old | {"data": card["data"] | {"class_counts": {part: rare_last, "train": [5] * n_classes}}}
        assert calibration_mix_on(counted) == pytest.approx(by_labels)
    assert calibration_mix_on(old | {"data": card["data"] | {"class_counts": {"train": rare_last}}}) is None


@pytest.mark.both_databases
def test_the_cells_of_a_specimen_are_counted_before_they_are_measured(service: Service) -> None:
    first, second = add_specimen(service), add_specimen(service, "S-2")
    for name, n in (("S-1", 3), ("S-2", 1)):
        add_cells(service, name, n, 10 * n)
    listed = list(service.items("/v1/specimens"))
    assert [(row["specimen"], row["n_cells"], row["stale"]) for row in listed] == [(second, 1, True), (first, 3, True)]
    add_cells(service, "S-1", 1)
    shown(service, first)
    service.add_case("a copy", cell_png(0), specimen="S-1")
    assert service.document("/v1/specimens")["items"][1]["n_cells"] == 5
    assert (shown(service, first)["n_cells"], len(shown(service, first)["warnings"])) == (5, 2)
    erase_patient_everywhere(service.context, "admin", "a copy", "asked for", without_patient=True)
    assert service.document("/v1/specimens")["items"][1]["n_cells"] == 4


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_a_label_makes_the_shares_stale_until_they_are_measured_again(service: Service) -> None:
    put_policy(service, reporting_groups=[GROUP])
    specimen_id = add_specimen(service)
    cases = add_cells(service, "S-1", 22)
    before = shown(service, specimen_id)
    service.outside_label(cases[0], "r1", "blast")
    service.outside_label(cases[0], "r2", "blast", blind=False)
    listed = service.document("/v1/specimens")["items"][0]
    assert (listed["stale"], listed["version"], listed["groups"]) == (True, 1, before["groups"])
    refresh_stale_specimens(service.context)
    listed = service.document("/v1/specimens")["items"][0]
    after = shown(service, specimen_id)
    assert listed == after
    assert (after["stale"], after["version"], after["reads"]) == (False, 2, {"labels": 1, "annotators": 1})
    assert after["groups"] != before["groups"]
    assert "annotator variance unknown" in after["assumes"]
    again = service.one(select(SpecimenResult.computed_at))
    refresh_stale_specimens(service.context)
    assert service.one(select(SpecimenResult.computed_at)) == again


@pytest.mark.slow
@pytest.mark.ci
def test_an_outcome_counts_and_changes_no_share(service: Service) -> None:
    put_policy(service, reporting_groups=[GROUP])
    specimen_id = add_specimen(service)
    cases = add_cells(service, "S-1", 21)
    before = shown(service, specimen_id)["groups"][0]
    for number, case_id in enumerate(cases):
        assert service.settle(case_id, **{"class": "blast", "reason": "seen"}).status_code == 201
        if number == 0:
            one = shown(service, specimen_id)["groups"][0]["count"]
            assert one in {before["count"], before["count"] + 1}
    after = shown(service, specimen_id)["groups"][0]
    assert (after["count"], after["slide"], after["patient"]) == (21, before["slide"], before["patient"])
    assert shown(service, specimen_id)["deciding_cells"] == []


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_the_rule_chooses_so_many_cells_of_a_specimen_and_no_label_enters(service: Service) -> None:
    choose_by_value(service, 4, audit_rate=0.05)
    specimen_id = add_specimen(service)
    cases = add_cells(service, "S-1", 25)
    u = {str(row.id): row.u for row in service.rows(select(Case.id, Case.u))}
    unlike = {str(one) for one in service.scalars(select(Case.id).where(Case.pi == 1))}
    before = Counter(map(str, service.scalars(select(ReadRequest.case_id))))
    assert all(before[one] == 1 + (one in unlike or u[one] < 0.05) for one in cases)
    for case_id in cases[:10]:  # what annotators answer meanwhile changes no choice
        service.outside_label(case_id, "r1", "blast")
    plan(service, specimen_id)
    chosen = {str(one) for one in service.scalars(select(Case.id).where(Case.pi == 1))}
    assert 0 < len(chosen - unlike) <= 4
    requests = service.rows(select(ReadRequest).where(ReadRequest.round == "planned"))
    after = Counter(str(row[0].case_id) for row in requests)
    assert all(after[one] == 1 + (one in chosen or u[one] < 0.05) for one in cases)
    added = [row[0] for row in requests if str(row[0].case_id) in chosen - unlike and row[0].arm == "triage"]
    assert {row.pi for row in added} == {1.0}
    first = {row[0].case_id: row[0] for row in requests if row[0].arm == "first"}
    assert all(row.due_at == first[row.case_id].due_at for row in added)
    assert plan(service, specimen_id) == []
    assert len(service.scalars(select(AuditEvent.sequence).where(AuditEvent.action == "specimen.plan"))) == 1
    add_cells(service, "S-1", 15, 25)  # a later look: the same coin, and the largest probability
    plan(service, specimen_id)
    now = {str(one) for one in service.scalars(select(Case.id).where(Case.pi == 1))}
    assert chosen <= now
    assert len(now - unlike) <= 8 + 5
    assert {str(row.id): row.u for row in service.rows(select(Case.id, Case.u)) if str(row.id) in u} == u
    case = service.document(f"/v1/cases/{min(chosen - unlike)}")
    assert case["prediction"]["triage"]["reason"] == "chosen among the cells of its specimen"
    assert not service.faults()


@pytest.mark.slow
@pytest.mark.ci
def test_the_choice_is_that_of_the_same_cells_without_labels(service: Service) -> None:
    choose_by_value(service, 3)
    for name in ("S-1", "S-2"):
        add_specimen(service, name)
    cells = {name: add_cells(service, name, 21) for name in ("S-1", "S-2")}
    for case_id in cells["S-2"]:
        service.outside_label(case_id, "r1", "blast")
    chosen = []
    for name, ids in cells.items():
        plan(service, str(service.one(select(Specimen.id).where(Specimen.external_id == name))))
        pis = {str(row.id): row.pi for row in service.rows(select(Case.id, Case.pi))}
        chosen.append([row for row, one in enumerate(ids) if pis[one] == 1])
    assert len(chosen[0]) == 3
    # the draws differ by specimen; the cells of most value do not
    assert set(chosen[0]) & set(chosen[1])


def test_a_single_cell_is_planned_with_the_cells_of_its_specimen(service: Service) -> None:
    choose_by_value(service, 2)
    for number in range(4):
        service.add_case(f"c{number}", cell_png(number), specimen="S-1")
    assert len(service.scalars(select(Case.id).where(Case.pi == 1))) >= 2
    alone = service.add_case("alone", cell_png(40))
    assert alone["prediction"]["triage"]["decision"] == "single_read"


def test_drawn_reads_of_a_specimen_are_spread_over_annotators(service: Service) -> None:
    for name in ("cleo", "dora"):
        service.add_annotator(name)
    choose_by_value(service, 6, draw_readers=True)
    specimen_id = add_specimen(service)
    add_cells(service, "S-1", 24)
    plan(service, specimen_id)
    drawn = Counter(service.scalars(select(ReaderDraw.annotator_id)))
    assert sum(drawn.values()) == len(service.scalars(select(ReadRequest.id)))
    assert max(drawn.values()) - min(drawn.values()) <= 2
    assert len(drawn) == 4
    assert all(row >= 0.1 for row in service.scalars(select(ReaderDraw.probability)))


def test_deciding_cells_come_first_in_the_worklist(service: Service) -> None:
    put_policy(service, reporting_groups=[GROUP])
    specimen_id = add_specimen(service)
    add_cells(service, "S-1", 21)
    for number in range(30, 40):
        service.add_case(f"other {number}", cell_png(number))
    document = shown(service, specimen_id)
    deciding = [row["case"] for row in document["deciding_cells"]]
    assert document["state"] == "open"
    assert 0 < len(deciding) <= 10
    worklist = list(service.items("/v1/worklist", limit=50))
    first = worklist[: len(deciding)]
    assert {row["case"]["id"] for row in first} == set(deciding)
    assert [row["deciding"] for row in worklist] == [True] * len(deciding) + [False] * (31 - len(deciding))
    assert all(0 <= row["need"] <= 1 for row in worklist)
    values = [row["value"] for row in document["deciding_cells"]]
    assert values == sorted(values, reverse=True)


def test_specimens_are_listed_by_state_patient_and_site(service: Service) -> None:
    for number in range(3):
        add_specimen(service, f"S-{number}", patient=f"P{number % 2}", site=("north", "south")[number // 2])
    assert [row["external_id"] for row in service.items("/v1/specimens", limit=2)] == ["S-2", "S-1", "S-0"]
    named = [
        [row["external_id"] for row in service.items("/v1/specimens", **chosen)]
        for chosen in (
            {"patient": "P0"},
            {"site": "south"},
            {"state": "open"},
            {"state": "signed"},
            {"after": "2100-01-01T00:00:00Z"},
        )
    ]
    assert named == [["S-2", "S-0"], ["S-2"], ["S-2", "S-1", "S-0"], [], []]
    assert service.get("viewer", f"/v1/specimens/{uuid.uuid4()}").status_code == 404


@pytest.mark.both_databases
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_first_and_the_last_of_all_days_are_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setattr(service.context.settings, "timezone", zone)
    for day, status in (("0001-01-01", 422), ("0001-01-02", 200), ("9999-12-30", 200), ("9999-12-31", 422)):
        for name in ("on", "since"):
            assert service.get("viewer", "/specimens", params={name: day}).status_code == status, (name, day)
    form = {"act": "due", "cell": str(uuid.uuid4()), "due": "9999-12-31"}
    assert service.post("admin", "/cells/reads", data=form).status_code == 422


def test_annotators_see_neither_specimens_nor_what_other_cells_tell_of_theirs(service: Service) -> None:
    put_policy(service, reporting_groups=[GROUP])
    specimen_id = add_specimen(service)
    (case_id,) = add_cells(service, "S-1", 1)
    shown(service, specimen_id)
    for path in ("/v1/specimens", f"/v1/specimens/{specimen_id}", f"/v1/specimens/{specimen_id}/cells"):
        assert service.get("anna", path).status_code == 403
    assert service.answer("anna", case_id, "blast").status_code == 201
    own = service.document(f"/v1/cases/{service.known_as('anna', case_id)}", "anna")
    assert (own["specimen"], own["class_probs_in_specimen"]) == (None, None)
    assert service.document(f"/v1/cases/{case_id}")["class_probs_in_specimen"] is not None


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.both_databases
def test_an_erased_patient_leaves_no_specimen(service: Service) -> None:
    kept, gone = add_specimen(service, "S-kept", patient="P1"), add_specimen(service, "S-gone", patient="P2")
    for name in ("S-kept", "S-gone"):
        add_cells(service, name, 2, 10 * len(name))
    for specimen_id in (kept, gone):
        shown(service, specimen_id)
    erase_patient_everywhere(service.context, "admin", "P2", "asked for")
    assert service.get("viewer", f"/v1/specimens/{gone}").status_code == 404
    assert [row["external_id"] for row in service.items("/v1/specimens")] == ["S-kept"]
    row = service.one(select(Specimen).where(Specimen.id == uuid.UUID(gone)))
    assert row.patient != "P2"
    assert "S-gone" not in row.external_id
    assert service.scalars(select(SpecimenResult.specimen_id)) == [uuid.UUID(kept)]
    assert not service.faults()
    add_specimen(service, "S-gone", patient="P3")
    assert shown(service, kept)["n_cells"] == 2


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_shares_of_cells_that_are_erased_meanwhile_are_not_stored(service: Service) -> None:
    specimen_id = add_specimen(service, patient="P1")
    add_cells(service, "S-1", 2)
    with ThreadPoolExecutor(1) as threads:
        with service.context.database.write() as session:
            erase_patient_rows(session, service.context, "admin", ErasureTarget("P1"), "asked for")
            measuring = threads.submit(refresh_specimen, service.context, uuid.UUID(specimen_id))
            wait_until(lambda: bool(service.rows(_WAITING)), 20, "nobody waits for the erasure")
        measuring.result(20)
    assert service.scalars(select(SpecimenResult.specimen_id)) == []


@pytest.mark.both_databases
def test_a_specimen_with_a_label_retracted_before_the_reveal_is_not_completely_read(service: Service) -> None:
    put_policy(service)
    add_cells(service, "S-0", 1)
    revealed = answer_next(service, "anna", "blast")["label"]["id"]
    blind = service.outside_label(add_cells(service, "S-1", 1, 1)[0], "r1", "blast")["label"]["id"]
    store(service, "S-2 cell", cell_png(9), {"r1": 0}, specimen="S-2")
    service.make_labels_final()

    def n_read() -> set[tuple[int, int]]:
        with service.context.database.read() as session:
            checks = [check for check in check_specimens(session) if check.group == "blast"]
        return {(check.n_specimens, check.by_share[-1].n_specimens) for check in checks}

    assert n_read() == {(3, 3)}
    for who, label, n_left in (("anna", revealed, 3), ("outside", blind, 2)):
        gone = service.post(who, f"/v1/labels/{label}/retraction", json={"reason": "a slip"})
        assert (gone.status_code, n_read()) == (201, {(n_left, n_left)})


@pytest.mark.both_databases
def test_annotators_differ_by_what_they_mean_and_not_by_their_slips(service: Service) -> None:
    cells, slips = add_cells(service, "S-1", 3), []
    for case_id in cells:
        service.outside_label(case_id, "r1", "blast")
        slips.append(service.outside_label(case_id, "r2", "lymphocyte")["label"]["id"])

    def tilt() -> float | None:
        with service.context.database.read() as session:
            return learn(session).groups["blast"]["tilt"]

    assert (tilt() or 0) > 0
    meant = [
        service.post("outside", f"/v1/labels/{one}/revisions", json={"label": "blast", "reason": "slip"})
        for one in slips
    ]
    assert ({answer.status_code for answer in meant}, tilt()) == ({201}, 0)
    for answer in meant:
        path = f"/v1/labels/{answer.json()['label']['id']}/retraction"
        assert service.post("outside", path, json={"reason": "another slide"}).status_code == 201
    assert tilt() is None


@pytest.mark.slow
@pytest.mark.ci
def test_a_laboratory_learns_from_completely_read_specimens(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    put_policy(service, reporting_groups=[GROUP])
    rng = np.random.default_rng(5)
    classes = service.add_case("probe", cell_png(900))["prediction"]["classes"]
    for number in range(21):
        for cell in range(5):
            labels = {"r1": int(rng.integers(8)), "r2": int(rng.integers(8))}
            name, data = f"S-{number} {cell}", cell_png(5 * number + cell)
            store(service, name, data, labels, specimen=f"S-{number}", patient=f"P{number}")
    store(service, "unread", cell_png(800), {}, specimen="S-unread")
    assert learn_from_specimens(service.context)
    assert not learn_from_specimens(service.context)
    known = service.one(select(SpecimenKnowledge))
    assert (known.version, known.groups["blasts"]["n_specimens"]) == (1, 21)
    assert known.groups["blasts"]["tilt"] >= 0
    assert known.groups["blasts"]["tilt_interval"] is None  # of two annotators
    specimen_id = str(service.one(select(Specimen.id).where(Specimen.external_id == "S-0")))
    document = shown(service, specimen_id)
    assert "cells independent within the specimen" not in document["assumes"]
    assert "annotator variance unknown" not in document["assumes"]
    assert len(classes) == 8
    check, *_ = json.loads(command_line(service, monkeypatch, "specimens", "check", "--json"))
    assert (check["group"], check["n_specimens"]) == ("blasts", 21)
    assert sum(band["n_specimens"] for band in check["by_share"]) == 21
    assert check["overdispersion"] >= 1
    assert check == known.groups["blasts"]["check"]
    page = service.get("viewer", "/report/specimens").text
    assert f'{check["n_covered"]} of 21 <span class="muted">({check["n_covered"] / 21:.0%})' in page
    text = command_line(service, monkeypatch, "specimens", "check")
    assert "21 completely read specimens" in text
    assert f"in {check['n_covered']} of 21" in text
    assert not service.faults()


@pytest.mark.slow
@pytest.mark.ci
def test_an_export_has_the_specimen_of_each_cell_and_its_shares(service: Service, tmp_path: Path) -> None:
    put_policy(service, reporting_groups=[GROUP])
    specimen_id = add_specimen(service)
    add_cells(service, "S-1", 3)
    service.add_case("alone", cell_png(40))
    document = shown(service, specimen_id)
    service.export(tmp_path / "out", images=False)
    cells = list(csv.DictReader((tmp_path / "out" / "predictions.csv").read_text().splitlines()))
    assert sorted(row["specimen"] for row in cells) == ["", "S-1", "S-1", "S-1"]
    row, *_ = csv.DictReader((tmp_path / "out" / "specimens.csv").read_text().splitlines())
    share = document["groups"][0]["patient"]
    assert (row["specimen"], row["group"], row["n_cells"]) == ("S-1", "blasts", "3")
    assert [float(row[f"patient_{name}"]) for name in ("share", "low", "high")] == [share["share"], *share["interval"]]


@pytest.mark.slow
@pytest.mark.ci
def test_labels_weigh_by_who_gave_them_once_a_model_is_in_use(service: Service) -> None:
    put_policy(service, reporting_groups=[GROUP])
    specimens = {name: add_specimen(service, name) for name in ("careful", "careless")}
    for name in specimens:
        for case_id in add_cells(service, name, 20):
            service.outside_label(case_id, name, "blast")
    alike = {name: shown(service, one) for name, one in specimens.items()}
    version = put_model(service, two_readers(len(classes_of(service))))
    assert switch(service, version, 0).status_code == 200
    assert all(row["stale"] for row in service.items("/v1/specimens"))
    named = {name: shown(service, one) for name, one in specimens.items()}
    shares = {name: document["groups"][0]["slide"]["share"] for name, document in named.items()}
    assert shares["careful"] > shares["careless"] + 0.05
    for name, document in named.items():
        assert "annotator variance unknown" in alike[name]["assumes"]
        assert "annotator variance unknown" not in document["assumes"]
        assert document["groups"][0]["components"]["annotators"] >= 0
