"""A year of a laboratory in a minute: cells arrive, annotators read blind, triage asks, the stain drifts, a
recalibration follows; at the end every number of the API is the library's on the exported tables."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import delete, func, select

from app.accounts import people as auth
from app.audit.chain.covered_rows import update_columns
from app.audit.installation import claim_database
from app.audit.verify import verify_all
from app.database.engine import Database
from app.database.migration import upgrade_schema
from app.database.tables import Case, DailyThreshold, Label, ReadRequest, utc_now
from app.main import create_app
from app.reports.frozen_evaluations import evaluate_frozen, evaluation_folder
from app.settings import Settings
from ml.datasets.cells import SimulatedCell, simulate_cell
from tests.app.test_evaluations import same
from tests.support.images import encode
from tests.support.jobs import work_off
from tests.support.postgres import PostgresServer
from tests.support.service import Service, put_release
from tests.support.snapshots import assert_snapshots_tell_all, write_snapshots

DAYS, CELLS_A_PATIENT, CAPACITY = 8, 2, 0.20
PEOPLE = [f"annotator-{number}" for number in range(6)]
# the stain of half a year drifts by much, which a change plan rightly questions: here the road to promotion is tested
PLAN = '{"min_labelled_cases": 20, "min_patients": 10, "max_increase": 0.5, "max_mean_log_concentration_change": 9}'


def faded(pixels: Any) -> Any:
    """The stain of the second half of the year: paler."""
    return np.asarray(np.clip(255 - (255 - pixels.astype(np.float64)) * 0.75, 0, 255), dtype=np.uint8)


class Laboratory:
    """A service, its people, and the truth that only the simulator knows."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service, self.rng = service, np.random.default_rng(seed)
        self.truth: dict[str, SimulatedCell] = {}
        self.codes = [info["code"] for info in service.get("lead", "/v1/releases").json()["items"][0]["classes"]]
        self.posted = 0

    def policy(self, capacity: int) -> None:
        body = {
            "rule": "capacity",
            "capacity_per_day": capacity,
            "adjudicate_below": 0.5,
            "reveal": "after_commit",
            "reason": "20 % second reads",
        }
        assert self.service.post("lead", "/v1/policies", json=body).status_code == 201

    def arrive(self, first: int, count: int, *, drifted: bool) -> None:
        for number in range(first, first + count):
            cell = simulate_cell(number, seed=8, size=32)
            case = self.service.upload(
                f"cell-{number}",
                encode(faded(cell.pixels) if drifted else cell.pixels),
                patient=f"patient-{number // CELLS_A_PATIENT}",
                site=("north", "south")[number % 2],
            )
            assert case.status_code == 201, case.text
            self.truth[case.json()["id"]] = cell

    def label_of(self, who: str, case_id: str) -> str:
        """What an annotator sees: the truth's distribution, shifted a little for one of them."""
        probs = self.truth[case_id].true_probs
        if who == PEOPLE[-1]:
            probs = 0.9 * probs + 0.1 * np.roll(probs, 1)
        return str(self.rng.choice(self.codes, p=probs / probs.sum()))

    def read_everything(self) -> None:
        """Everybody reads in turn until nobody gets a case."""
        people = list(PEOPLE)
        while people:
            who = people[int(self.rng.integers(len(people)))]
            lease = self.service.post(who, "/v1/reads")
            if lease.status_code == 204:
                people.remove(who)
                continue
            read = lease.json()
            assert self.service.get(who, f"/v1/cases/{read['case_id']}").status_code == 403
            if self.rng.random() < 0.01:
                body = {"reason": "cannot_tell"}
                assert self.service.post(who, f"/v1/reads/{read['id']}/decline", json=body).status_code == 200
                continue
            body = {"label": self.label_of(who, self.service.case_of(who, read["case_id"]))}
            answer = self.service.post(who, f"/v1/reads/{read['id']}/labels", json=body)
            assert answer.status_code == 201, answer.text
            self.posted += 1
            if self.rng.random() < 0.02:  # the wrong key, noticed after the reveal
                self._change(who, answer.json()["label"]["id"])

    def _change(self, who: str, label_id: str) -> None:
        self.posted += 1
        if self.rng.random() < 0.5:
            body = {"reason": "wrong slide"}
            assert self.service.post(who, f"/v1/labels/{label_id}/retraction", json=body).status_code == 201
        else:
            body = {"label": self.codes[0], "reason": "slip of the finger"}
            assert self.service.post(who, f"/v1/labels/{label_id}/revisions", json=body).status_code == 201

    def sleep(self) -> None:
        """A night passes: everything stored so far is a day older."""
        day = timedelta(days=1)
        with self.service.context.database.write() as session:
            session.execute(delete(DailyThreshold))
            cases = session.execute(select(Case.id, Case.created_at)).all()
            for row in cases:
                session.execute(update_columns(Case, created_at=row.created_at - day).where(Case.id == row.id))
            requests = session.execute(select(ReadRequest.id, ReadRequest.due_at)).all()
            for row in requests:
                session.execute(update_columns(ReadRequest, due_at=row.due_at - day).where(ReadRequest.id == row.id))


@pytest.fixture
def open_laboratory(tmp_path: Path, tiny_release: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    opened: list[TestClient] = []

    def build(database: str) -> Laboratory:
        if database == "sqlite":
            url = f"sqlite:///{tmp_path / 'year.db'}"
        else:
            server: PostgresServer = request.getfixturevalue("postgres")
            url = server.url(server.create())
        (tmp_path / "plan.json").write_text(PLAN)
        home = tmp_path / "home"
        home.mkdir()
        settings = Settings(
            home=home,
            database_url=url,
            allowed_hosts=["testserver"],
            min_free_bytes=0,
            change_plan=tmp_path / "plan.json",
            secret_key=SecretStr("the same coins and partitions in every run"),
        )
        made = Database(settings.sqlalchemy_url)
        upgrade_schema(made.engine)
        made.engine.dispose()
        app = create_app(settings)
        context = app.state.context
        claim_database(context.database, context.keys.audit)
        with context.database.write() as session:
            put_release(session, context.keys.audit, tiny_release, settings.releases_folder)
        client = TestClient(app, raise_server_exceptions=False)
        client.__enter__()
        opened.append(client)
        service = Service(client, context, {})
        with context.database.write() as session:
            for name, role in {"lead": "admin", "admin": "admin", **dict.fromkeys(PEOPLE, "annotator")}.items():
                auth.add_account(session, context.keys.audit, name, role)
                service.keys[name] = auth.add_key(session, context.keys.audit, name, [])[1]
        return Laboratory(service, 7)

    yield build
    for client in opened:
        client.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("database", "patients"),
    [
        pytest.param("sqlite", 40, marks=pytest.mark.slow),
        pytest.param("sqlite", 200, marks=pytest.mark.heavy),
        pytest.param("postgresql", 200, marks=pytest.mark.heavy),
    ],
)
def test_a_year(open_laboratory: Any, database: str, patients: int, tmp_path: Path) -> None:
    lab: Laboratory = open_laboratory(database)
    service = lab.service
    a_day = patients * CELLS_A_PATIENT // DAYS
    lab.policy(max(1, round(CAPACITY * a_day)))
    for day in range(DAYS):
        lab.arrive(day * a_day, a_day, drifted=day >= DAYS // 2)
        lab.read_everything()
        lab.sleep()
    n = DAYS * a_day
    write_snapshots(service.context)  # days pass by changing times, which no event tells
    _second_reads_follow_the_coin(service, n)
    report = _recalibrate(service)
    print({name: (report["champion"][name]["value"], report["candidate"][name]["value"]) for name in ("L_D", "CE_D")})
    _promote_and_roll_back(service, report, n)
    _every_number_is_the_librarys(service, n)
    assert_snapshots_tell_all(service.context)
    with service.context.database.read() as session:
        verified = verify_all(session, service.context)
        labels = session.execute(select(func.count()).select_from(Label)).scalar_one()
        kinds = {(row[0], row[1]) for row in session.execute(select(Label.kind, Label.round).distinct())}
    # the nights moved times and forgot thresholds past the service, which verification sees
    assert [
        fault for fault in verified.faults if not fault.startswith(("cases ", "read_requests ", "daily_thresholds "))
    ] == []
    assert (verified.n_images, labels) == (n, lab.posted)
    assert {"label", "revision", "retraction"} <= {kind for kind, _ in kinds}
    assert {"planned", "adjudication"} == {reason for _, reason in kinds}


def _second_reads_follow_the_coin(service: Service, n: int) -> None:
    with service.context.database.read() as session:
        cases = session.execute(select(Case)).scalars().all()
        arms: dict[UUID, set[str]] = {}
        for request in session.execute(select(ReadRequest).where(ReadRequest.round == "planned")).scalars():
            arms.setdefault(request.case_id, set()).add(request.arm)
    assert len(cases) == n
    for case in cases:
        assert (len(arms[case.id]) == 2) == (case.u < case.pi), (case.u, case.pi, arms[case.id])
    late = [case for case in cases if case.created_at > utc_now() - timedelta(days=DAYS - 1, hours=12)]
    twice = np.mean([len(arms[case.id]) == 2 for case in late])
    assert 0.08 < twice < 0.45


def _recalibrate(service: Service) -> dict[str, Any]:
    asked = service.post("lead", "/v1/recalibrations", json={}).json()
    work_off(service.context)
    done = service.get("lead", f"/v1/jobs/{asked['id']}").json()
    assert done["state"] == "succeeded", done["error"]
    report: dict[str, Any] = done["result"]
    assert len(report["gate"]["without_annotator"]) == len(PEOPLE)
    return report


def _promote_and_roll_back(service: Service, report: dict[str, Any], n: int) -> None:
    path = "/v1/aliases/champion"
    champion = service.get("lead", "/v1/aliases").json()["items"][0]
    body = {"release": report["release"], "reason": "the stain has changed"}
    moved = service.call("lead", "PUT", path, json=body, headers={"If-Match": '"1"'})
    if not report["gate"]["passed"]:
        assert moved.status_code == 409
        return
    assert moved.status_code == 200, moved.text
    work_off(service.context)
    newest = service.get("lead", "/v1/jobs").json()["items"][0]
    assert newest["result"]["n_predicted"] == n
    back = {"release": champion["release"], "reason": "for comparison", "despite_gate": True}
    assert service.call("lead", "PUT", path, json=back, headers={"If-Match": '"2"'}).status_code == 200
    work_off(service.context)


def _every_number_is_the_librarys(service: Service, n: int) -> None:
    for partition in ("all", "evaluation"):
        asked = service.post("lead", "/v1/evaluations", json={"partition": partition}).json()
        work_off(service.context)
        frozen = service.get("lead", f"/v1/evaluations/{asked['id']}").json()
        assert frozen["state"] == "succeeded", frozen["error"]
        live = service.get("lead", "/v1/metrics", params={"partition": partition}).json()
        again = evaluate_frozen(evaluation_folder(service.context.settings.home, UUID(asked["id"])))
        same(live["metrics"], again.model_dump()["metrics"])
        assert live["n_cases"] == (n if partition == "all" else live["n_cases"])
        assert live["selection"]["n_open"] == 0
