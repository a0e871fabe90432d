"""The demos: filled once, whoever interrupts it; real cells with their sources, simulated ones that teach something."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from app.annotators.reference_cells.selection import cells_of
from app.annotators.reference_cells.service import list_definitions
from app.database.tables import Annotator, AuditEvent, Case, Label, PolicyRow, ReadRequest, Specimen
from app.demo import laboratory, real_cells, simulated
from app.demo import people as accounts
from app.demo.filling import fill_demo
from app.demo.people import read_notice
from app.demo.real_cells import ANNOTATORS, FOLDER, RELEASE, ensure_real_cases, ensure_shipped_release
from app.demo.simulated import DemoExtent, ensure_simulated_cases, opinion_of
from app.releases.queries import reading_classes
from ml.datasets.cells import simulate_cell
from ml.datasets.pbc import load_pbc, load_pbc_nucleus
from ml.release.artifact import read_release
from tests.support.process import Installation
from tests.support.service import Service
from tools.demo_cells import demo_cells

SMALL = DemoExtent(studied=2, recent=1, waiting=1)


def said(service: Service) -> dict[str, dict[str, str]]:
    """Label of each annotator, by cell."""
    with service.context.database.read() as session:
        found: dict[str, dict[str, str]] = {name: {} for name in session.execute(select(Case.external_id)).scalars()}
        columns = (Case.external_id, Annotator.name, Label.class_code)
        joined = select(*columns).join(Label, Label.case_id == Case.id).join(Annotator)
        for cell, annotator, code in session.execute(joined):
            assert annotator not in found[cell]
            found[cell][annotator] = str(code)
    return found


def n_events(service: Service) -> int:
    return service.one(select(func.max(AuditEvent.sequence)))


@pytest.fixture
def people(service: Service) -> Service:
    with service.context.database.write() as session:
        accounts.ensure_accounts(session, service.context)
    return service


def test_an_interrupted_filling_goes_on_and_is_finished_once(people: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    drawn: list[int] = []

    def impatient(number: int, **options: Any) -> Any:
        drawn.append(number)
        if len(drawn) == 3:
            raise KeyboardInterrupt
        return simulate_cell(number, **options)

    monkeypatch.setattr(laboratory, "_BATCH", 1)
    monkeypatch.setattr(simulated, "simulate_cell", impatient)
    with pytest.raises(KeyboardInterrupt):
        ensure_simulated_cases(people.context, heard.append, SMALL)
    assert "`secondread demo` resumes" in heard[-1]
    before = said(people)
    assert len(before) == 2
    ensure_simulated_cases(people.context, heard.append, SMALL)
    after = said(people)
    assert after | before == after
    assert Counter(map(len, after.values())) == {4: SMALL.studied, 3: SMALL.recent, 0: SMALL.waiting}
    assert len(drawn) == 3 + len(SMALL) - 2  # nothing is made twice
    with people.context.database.read() as session:
        assert session.execute(select(func.count(PolicyRow.version))).scalar_one() == 3
        waiting = select(Case.partition).where(~Case.id.in_(select(Label.case_id)))
        assert set(session.execute(waiting).scalars()) == {"calibration"}
        studied = select(Label.case_id).group_by(Label.case_id).having(func.count() == 4)
        still_open = select(ReadRequest.id).where(ReadRequest.case_id.in_(studied), ReadRequest.state == "open")
        assert session.execute(still_open).first() is None
    events = n_events(people)
    ensure_simulated_cases(people.context, heard.append, SMALL)
    assert n_events(people) == events


def test_cases_of_somebody_else_are_left_alone(people: Service) -> None:
    people.add_case("mine")
    events = n_events(people)
    ensure_simulated_cases(people.context, print, SMALL)
    assert n_events(people) == events


def test_the_laboratory_disagrees_more_than_the_crowd_behind_the_release() -> None:
    rng = np.random.default_rng(0)
    probs = np.stack([simulate_cell(17 * number, seed=2021, size=16).true_probs for number in range(20)])
    opinions = np.stack([[opinion_of(row, rng) for row in probs] for _ in range(50)])
    assert opinions.sum(axis=-1) == pytest.approx(1)
    disagreement = 1 - np.square(opinions).sum(axis=-1)
    assert disagreement.mean() > 1.5 * (1 - np.square(probs).sum(axis=1)).mean()
    assert (opinions.mean(axis=0).argmax(axis=1) == probs.argmax(axis=1)).mean() > 0.9


@pytest.mark.slow
def test_whoever_reads_what_waits_does_not_take_the_judgement_from_the_laboratory(people: Service) -> None:
    ensure_simulated_cases(people.context, print, DemoExtent(studied=8, recent=2, waiting=3))
    before = people.get("admin", "/v1/metrics").json()
    for _ in range(3):
        read = people.post("anna", "/v1/reads").json()
        assert people.post("anna", f"/v1/reads/{read['id']}/labels", json={"label": "lymphocyte"}).status_code == 201
    people.make_labels_final()
    after = people.get("admin", "/v1/metrics").json()
    assert before["n_labels"] > 4
    assert after["n_labels"] == before["n_labels"]


def test_what_is_shipped_is_small_and_names_its_sources() -> None:
    release = read_release(RELEASE)
    images = sorted((FOLDER / "images").iterdir())
    assert len(images) == 200
    assert sum(path.stat().st_size for path in images) <= 4_000_000
    assert sum(path.stat().st_size for path in RELEASE.iterdir()) <= 3_000_000
    for name, words in (
        ("CC-BY-4.0.txt", "Attribution 4.0 International Public License"),
        ("MIT-WBCAtt.txt", "Permission is hereby granted, free of charge"),
        ("README.md", "Acevedo"),
        ("README.md", "Tsutsui"),
    ):
        assert words in (FOLDER / name).read_text()
    cells = real_cells.real_cells()
    assert {cell.file for cell in cells} == {path.name for path in images}
    assert {label for cell in cells for label in cell.labels} <= set(release.classes)
    card = release.card
    assert card["data"]["name"] == "pbc_nucleus"
    assert "CC BY 4.0" in card["licence"]
    assert card["limits_of_use"][0].startswith("For research.")
    assert isinstance(card["seed"], int)
    skill = card["held_out"]["with concentration head"]["skill_D"]
    assert None not in (skill["value"], skill["low"], skill["high"])


def test_three_specimens_lie_below_near_and_above_the_threshold_by_the_labels() -> None:
    specimens: dict[str, list[tuple[str, str]]] = {}
    for cell in real_cells.real_cells():
        if cell.specimen is not None:
            specimens.setdefault(cell.specimen, []).append(cell.labels)
    (threshold,) = real_cells.GROUP.thresholds
    assert set(real_cells.GROUP.classes) <= set(read_release(RELEASE).classes)
    assert [len(labels) for labels in specimens.values()] == [60, 60, 60]  # each cell has one specimen at most
    shares = sorted(np.isin(labels, real_cells.GROUP.classes).mean() for labels in specimens.values())
    assert shares[0] < threshold.at - 0.1
    assert abs(shares[1] - threshold.at) <= 0.03
    assert shares[2] > threshold.at + 0.1


@pytest.mark.slow
def test_the_cells_that_are_shipped_are_those_that_were_drawn_and_nothing_was_made_with_them(datasets: Path) -> None:
    drawn = demo_cells()
    assert {(cell.file, *cell.labels) for cell in real_cells.real_cells()} == {
        (cell["file"], cell["annotator_1"], cell["annotator_2"]) for cell in drawn
    }
    names = {cell["file"] for cell in drawn}
    nucleus = load_pbc_nucleus()
    assert not names & set(nucleus.case_ids)
    assert not names & set(load_pbc().case_ids)
    assert read_release(RELEASE).card["data"]["partitions"] == {
        name: int(nucleus.rows(name).size) for name in ("calibration", "test", "train", "valid")
    }


@pytest.fixture
def empty(tmp_path: Path) -> Installation:
    made = Installation(tmp_path / "home")
    made.run("db", "upgrade")
    return made


@pytest.mark.slow
def test_real_cells_enter_by_two_named_annotators_and_some_wait_for_the_visitor(empty: Installation) -> None:
    with empty.parts() as context:
        with context.database.write() as session:
            accounts.ensure_accounts(session, context)
        ensure_shipped_release(context, print)
        ensure_real_cases(context, print, real_cells.real_cells()[:80])
        ensure_real_cases(context, print)  # once filled, nothing is added
        with context.database.read() as session:
            counts = dict(
                session.execute(
                    select(Case.external_id, func.count(Label.id)).outerjoin(Label).group_by(Case.external_id)
                ).all()
            )
            names = set(session.execute(select(Annotator.name)).scalars())
            blind = set(session.execute(select(Label.blind)).scalars())
            assert set(session.execute(select(Specimen.external_id)).scalars()) == {"S-1", "S-2", "S-3"}
            waiting = session.execute(
                select(Case.partition, ReadRequest.round).join(Case).where(ReadRequest.state == "open")
            ).all()
            shown, texts = cells_of(session), list_definitions(session)
            classes = {info.code for info in reading_classes(session)}
    assert set(texts) == classes >= set(shown) > set()  # of few cells not every class has one that both call so
    assert all(cell.row.n_same == cell.row.n_readers == 2 for cells in shown.values() for cell in cells)
    assert Counter(counts.values()) == {2: 58, 1: real_cells.READ_ONCE, 0: real_cells.UNREAD}
    assert {name for name in names if name.startswith("WBCAtt")} == set(ANNOTATORS)
    assert blind == {True}
    # first and second reads wait in the half that is fitted; an adjudication judges nothing
    assert {partition for partition, round in waiting if round == "planned"} == {"calibration"}
    assert sum(round == "planned" for _, round in waiting) >= real_cells.UNREAD + real_cells.READ_ONCE
    assert json.loads(empty.run("db", "verify", "--json").stdout)["faults"] == []


@pytest.mark.slow
def test_a_home_with_real_cells_does_not_become_the_simulated_demo(empty: Installation) -> None:
    with empty.parts() as context:
        assert read_notice(context.settings.home) is None
        ensure_shipped_release(context, print)
        with pytest.raises(ValueError, match="a HOME of its own"):
            fill_demo(context, print, train=True)
