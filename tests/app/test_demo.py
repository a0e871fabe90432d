"""The demo's laboratory: filled once, whoever interrupts it, and with labels that teach the release something."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from app.operations import demo, demo_cases
from app.operations.demo_cases import Extent, ensure_cases, opinion_of
from app.tables import Annotator, AuditEvent, Case, Label, PolicyRow, ReadRequest
from ml.datasets.cells import simulate_cell
from tests.support.service import Service

SMALL = Extent(studied=2, recent=1, waiting=1)


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
    with service.context.database.read() as session:
        return session.execute(select(func.max(AuditEvent.sequence))).scalar_one()


@pytest.fixture
def people(service: Service) -> Service:
    with service.context.database.write() as session:
        demo.ensure_accounts(session, service.context)
    return service


def test_an_interrupted_filling_goes_on_and_a_finished_one_changes_nothing(
    people: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    simulated: list[int] = []

    def impatient(number: int, **options: Any) -> Any:
        simulated.append(number)
        if len(simulated) == 3:
            raise KeyboardInterrupt
        return simulate_cell(number, **options)

    monkeypatch.setattr(demo_cases, "_BATCH", 1)
    monkeypatch.setattr(demo_cases, "simulate_cell", impatient)
    with pytest.raises(KeyboardInterrupt):
        ensure_cases(people.context, heard.append, SMALL)
    assert "goes on where it stopped" in heard[-1]
    before = said(people)
    assert len(before) == 2
    ensure_cases(people.context, heard.append, SMALL)
    after = said(people)
    assert after | before == after
    assert Counter(map(len, after.values())) == {4: SMALL.studied, 3: SMALL.recent, 0: SMALL.waiting}
    assert len(simulated) == 3 + len(SMALL) - 2  # nothing is made twice
    with people.context.database.read() as session:
        assert session.execute(select(func.count(PolicyRow.version))).scalar_one() == 3
        waiting = select(Case.partition).where(~Case.id.in_(select(Label.case_id)))
        assert set(session.execute(waiting).scalars()) == {"calibration"}
        studied = select(Label.case_id).group_by(Label.case_id).having(func.count() == 4)
        still_open = select(ReadRequest.id).where(ReadRequest.case_id.in_(studied), ReadRequest.state == "open")
        assert session.execute(still_open).first() is None
    events = n_events(people)
    ensure_cases(people.context, heard.append, SMALL)
    assert n_events(people) == events


def test_cases_of_somebody_else_are_left_alone(people: Service) -> None:
    people.add_case("mine")
    events = n_events(people)
    ensure_cases(people.context, print, SMALL)
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
    ensure_cases(people.context, print, Extent(studied=8, recent=2, waiting=3))
    before = people.get("admin", "/v1/metrics").json()
    for _ in range(3):
        read = people.post("anna", "/v1/reads").json()
        assert people.post("anna", f"/v1/reads/{read['id']}/labels", json={"label": "lymphocyte"}).status_code == 201
    people.make_labels_final()
    after = people.get("admin", "/v1/metrics").json()
    assert before["n_labels"] > 4
    assert after["n_labels"] == before["n_labels"]
