"""Long work in parts that any worker takes: predictions for existing cells, and imports."""

import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from app.cli.imports import import_local
from app.cli.main import secondread
from app.database.engine import insert_new
from app.database.tables import Case, CasePrediction, NetworkOutput
from app.job_table import FUNCTIONS
from app.jobs.handle import RunningJob
from app.recalibration import predict_old_cases
from tests.app.test_comparison import added, make
from tests.support.jobs import submit, work_off
from tests.support.service import Service, cell_png
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def release(service: Service, dropout_release: Path) -> str:
    """A release that has seen no case."""
    return added(service, dropout_release)


def predictions(service: Service, release: str) -> dict[str, Any]:
    found = select(Case.external_id, CasePrediction.class_probs).join(CasePrediction, CasePrediction.case_id == Case.id)
    return dict(service.rows(found.where(CasePrediction.release_id == uuid.UUID(release))))


def jobs(service: Service) -> list[dict[str, Any]]:
    return [item for item in service.document("/v1/jobs", "admin")["items"] if item["kind"] == "prediction"]


@pytest.mark.both_databases
@pytest.mark.parametrize(("n_cases", "n_parts"), [(7, 3), (6, 2), (3, 1)])
def test_old_cases_are_predicted_in_parts_each_once(
    service: Service, release: str, monkeypatch: pytest.MonkeyPatch, n_cases: int, n_parts: int
) -> None:
    monkeypatch.setattr(predict_old_cases, "PART_CASES", 3)
    service.add_cases(n_cases)
    submit(service.context, "prediction", {"release": release})
    work_off(service.context)
    done = jobs(service)
    assert [job["state"] for job in done] == n_parts * ["succeeded"]
    sizes = sorted([3] * (n_parts - 1) + [n_cases - 3 * (n_parts - 1)])
    assert sorted(job["result"]["n_predicted"] for job in done) == sizes
    (asked,) = [job for job in done if "after" not in job["parameters"]]
    assert sorted(asked["result"]["parts"]) == sorted(job["id"] for job in done if job is not asked)
    assert set(predictions(service, release)) == {f"case {number}" for number in range(n_cases)}


def test_a_job_that_dies_divides_once(service: Service, release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_old_cases, "PART_CASES", 2)
    service.add_cases(6)
    show, deaths = predict_old_cases._run_network_on_images, []

    def dies_once(*arguments: Any) -> int:
        if not deaths:
            deaths.append(arguments)
            raise RuntimeError("killed")
        return show(*arguments)

    monkeypatch.setattr(predict_old_cases, "_run_network_on_images", dies_once)
    submit(service.context, "prediction", {"release": release})
    work_off(service.context)
    failed = [job for job in jobs(service) if job["state"] == "failed"]
    assert len(failed) == 1
    assert service.post("admin", f"/v1/jobs/{failed[0]['id']}/retry").status_code == 202
    work_off(service.context)
    assert [job["state"] for job in jobs(service)] == 3 * ["succeeded"]
    assert len(predictions(service, release)) == 6


def test_a_job_is_cancelled_with_its_parts(service: Service, release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_old_cases, "PART_CASES", 2)
    service.add_cases(6)
    job = other_job(service, release)
    predict_old_cases._assign_case_range(job)
    assert [each["state"] for each in jobs(service)] == 3 * ["queued"]
    assert service.call("admin", "DELETE", f"/v1/jobs/{job.job_id}").status_code == 200
    assert [each["state"] for each in jobs(service)] == 3 * ["cancelled"]


@pytest.mark.both_databases
@pytest.mark.parametrize("predicted_before", [True, False])
def test_the_worklist_is_in_the_order_of_the_champion(service: Service, release: str, predicted_before: bool) -> None:
    """Near-duplicates stay behind all that are none."""
    cell = cell_png(1)
    for number, image in enumerate([cell, cell_png(2), cell_png(3), cell]):
        service.add_case(f"case-{number}", image, patient=f"patient-{image == cell}")
    if predicted_before:
        submit(service.context, "prediction", {"release": release})
        work_off(service.context)
    make(service, "champion", release, 1)
    items = service.document("/v1/worklist", "admin")["items"]
    assert [item["near_duplicate"] for item in items] == [False, False, False, True]
    by_release = select(Case.id, CasePrediction.disagreement_prob)
    by_release = by_release.join(CasePrediction, CasePrediction.case_id == Case.id)
    probs = dict(service.rows(by_release.where(CasePrediction.release_id == uuid.UUID(release))))
    assert {uuid.UUID(item["case"]["id"]): item["need"] for item in items} == pytest.approx(probs)
    assert [item["need"] for item in items[:3]] == sorted((item["need"] for item in items[:3]), reverse=True)


class TheirOwn(RunningJob):
    """A job of a worker who is not asked whether they still live."""

    def _lock_row(self, session: Session, *, whole: bool = False) -> bool:
        return False


def other_job(service: Service, release: str) -> RunningJob:
    asked = uuid.UUID(submit(service.context, "prediction", {"release": release}))
    return TheirOwn(service.context, asked, {"release": release}, 1, 1, lambda: None)


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
@pytest.mark.parametrize("while_it", ["_read_stored_image", "output_values", "_find_training_uses"])
def test_two_jobs_over_the_same_cases_predict_each_once(
    service: Service, release: str, monkeypatch: pytest.MonkeyPatch, while_it: str
) -> None:
    """The second does all of it while the first has read what is lacking and has not written it yet."""
    service.add_cases(3)
    first, second = (other_job(service, release) for _ in range(2))
    done, original = [], getattr(predict_old_cases, while_it)

    def after_the_other(*arguments: Any) -> Any:
        if not done:
            done.append(None)
            done.append(predict_old_cases.predict_stored_cases(second))
        return original(*arguments)

    monkeypatch.setattr(predict_old_cases, while_it, after_the_other)
    mine = predict_old_cases.predict_stored_cases(first)
    assert (mine["n_predicted"], done[1]["n_predicted"]) == (0, 3)
    assert len(predictions(service, release)) == 3


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_two_jobs_show_an_image_to_the_network_and_keep_it_once(
    service: Service, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the row that the first has locked and not committed yet."""
    service.add_case("case", cell_png(1))
    jobs, inserted = [other_job(service, release) for _ in range(2)], threading.Event()

    def insert_and_wait(session: Session, table: Any, rows: Any) -> Any:
        kept = insert_new(session, table, rows)
        if table is NetworkOutput and not inserted.is_set():
            inserted.set()
            waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            with service.context.database.engine.connect() as connection:
                wait_until(lambda: connection.execute(waits).scalar())
        return kept

    monkeypatch.setattr(predict_old_cases, "insert_new", insert_and_wait)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(predict_old_cases.predict_stored_cases, job) for job in jobs]
    assert sorted(job.result()["n_predicted"] for job in both) == [0, 1]
    assert len(predictions(service, release)) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven images without a manifest, of which two have names that only their folders tell apart, and another file."""
    root = tmp_path / "slides"
    for index in range(7):
        path = root / f"slide-{index % 2}" / ("cell.png" if index < 2 else f"cell-{index}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cell_png(index))
    (root / "notes.txt").write_text("no image")
    return root


def stored(service: Service) -> dict[str, str]:
    return dict(service.rows(select(Case.external_id, Case.image_sha256)))


@pytest.mark.both_databases
def test_parts_of_an_import_in_any_order_are_the_import(service: Service, folder: Path) -> None:
    context, said = service.context, [].append
    parts = [import_local(context, FUNCTIONS, folder, "admin", said, (number, 3)) for number in (2, 3, 1)]
    assert [(part["n_rows"], part["created"], part["failed"]) for part in parts] == [(2, 2, 0), (2, 2, 0), (3, 3, 0)]
    assert sum(part["ignored"] for part in parts) == 1
    in_parts = stored(service)
    again = import_local(context, FUNCTIONS, folder, "admin", said, (2, 3))
    assert (again["created"], again["known"]) == (0, 2)
    whole = import_local(context, FUNCTIONS, folder, "admin", said)
    assert (whole["created"], whole["known"], whole["n_rows"]) == (0, 7, 7), "names are those of the whole folder"
    assert stored(service) == in_parts
    assert service.one(select(func.count()).select_from(Case)) == 7


def test_more_parts_than_rows_leave_some_empty(service: Service, folder: Path) -> None:
    report = import_local(service.context, FUNCTIONS, folder, "admin", [].append, (9, 9))
    assert (report["n_rows"], report["created"]) == (0, 0)
    assert json.dumps(report)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--shard", "4/3"], "count from 1 to n"),
        (["--shard", "two"], "write i/n"),
        (["--shard", "1/2", "--dry-run"], "leave --shard out"),
    ],
)
def test_a_part_that_cannot_be_is_refused_before_anything_is_stored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], why: str
) -> None:
    monkeypatch.setenv("SECONDREAD_HOME", str(tmp_path / "home"))
    answer = CliRunner().invoke(secondread, ["import", str(folder), *options])
    assert answer.exit_code != 0
    assert why in str(answer.exception or answer.output)
    assert not (tmp_path / "home").exists()
