"""Jobs, recalibration, promotion, frozen evaluations: over HTTP on both databases, the work done in this process."""

import errno
import json
import threading
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.http.errors import StorageFull
from app.job_table import FUNCTIONS, ask_for_recalibration
from app.jobs.handle import RunningJob, WorkerStoppingError
from app.reports.frozen_evaluations import evaluate_frozen, evaluation_folder
from ml.datasets.cells import AnnotatorPool, simulate_cell
from tests.app.test_evaluations import same
from tests.support.images import encode
from tests.support.jobs import begin_and_stop, submit, work_off
from tests.support.service import Service, cell_png, store
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases

CELLS = 64


def collect_reads(service: Service, cells: int = CELLS) -> None:
    """Cells of patients with two each, read by three outside annotators of different habits."""
    stack = [simulate_cell(index, seed=5, size=32) for index in range(cells)]
    rng = np.random.default_rng(3)
    _, labels = AnnotatorPool(3).read(np.stack([cell.true_probs for cell in stack]), 3, rng)
    for index, cell in enumerate(stack):
        faded = ImageEnhance.Color(Image.fromarray(cell.pixels)).enhance(0.6)
        given = {f"reader {reader}": int(k) for reader, k in enumerate(labels[index])}
        store(service, f"case-{index}", encode(np.asarray(faded)), given, patient=f"p{index // 2}")


def job(service: Service, job_id: str) -> Any:
    return service.document(f"/v1/jobs/{job_id}")


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.one_database
def test_recalibration_makes_a_candidate_and_a_person_promotes_and_rolls_back(service: Service) -> None:
    plan = service.context.settings.home / "plan.json"
    plan.write_text('{"min_labelled_cases": 20, "max_increase": 0.5}')
    service.context.settings.change_plan = plan
    collect_reads(service)
    asked = service.post("admin", "/v1/recalibrations", json={})
    assert (asked.status_code, asked.json()["state"]) == (202, "queued")
    assert work_off(service.context) == 2  # and an annotator model beside the candidate
    done = job(service, asked.json()["id"])
    assert done["state"] == "succeeded", done["error"]
    report = done["result"]
    models = service.document("/v1/reader-models", "admin")
    assert (models["in_use"], [model["release"] for model in models["items"]]) == (None, [report["release"]])
    assert report["gate"]["L"]["value"] < 0.01
    # labels that were left out chose no temperature for so few cells, and another concentration
    assert report["fit"]["temperature"]["chosen"] == "identity"
    assert report["moved"]["mean_probability_change"] < 0.2
    assert 0 < report["moved"]["mean_log_concentration_change"] < 2
    assert {row["annotator"] for row in report["gate"]["without_annotator"]} == {f"reader {i}" for i in range(3)}
    champion = service.document("/v1/aliases")["items"][0]
    candidate = service.document(f"/v1/releases/{report['release']}")
    assert (candidate["parent"], candidate["aliases"]) == (champion["release"], [])  # it never promotes itself
    parent = service.document(f"/v1/releases/{champion['release']}")
    assert candidate["card"]["files"]["network.onnx"] == parent["card"]["files"]["network.onnx"]
    # so few cells cannot show that it is better (tests/app/test_gate_memory.py promotes what passed)
    assert not report["gate"]["passed"]
    _promote(service, champion, report["release"])


def _promote(service: Service, champion: dict[str, Any], candidate: str) -> None:
    path, body = "/v1/aliases/champion", {"release": candidate, "reason": "better on what was collected"}
    body |= {"despite_gate": True}
    assert service.call("admin", "PUT", path, json=body).status_code == 428
    stale = service.call("admin", "PUT", path, json=body, headers={"If-Match": '"7"'})
    assert (stale.status_code, stale.json()["type"]) == (412, "urn:secondread:problem:precondition-failed")
    assert service.call("viewer", "PUT", path, json=body, headers={"If-Match": '"1"'}).status_code == 403
    moved = service.call("admin", "PUT", path, json=body, headers={"If-Match": '"1"'})
    assert (moved.status_code, moved.headers["etag"]) == (200, '"2"')
    case = service.document("/v1/cases")["items"][0]
    assert case["prediction"]["release"] == champion["release"]
    assert work_off(service.context) == 1
    assert service.document(f"/v1/cases/{case['id']}")["prediction"]["release"] == candidate
    both = service.document(f"/v1/cases/{case['id']}/predictions")["items"]
    assert [row["release"] for row in both] == [candidate, champion["release"]]
    assert both[1] == case["prediction"]  # old predictions keep their release
    back: dict[str, Any] = {"release": champion["release"], "reason": "roll back"}
    refused = service.call("admin", "PUT", path, json=back, headers={"If-Match": '"2"'})
    assert (refused.status_code, "needs a promotion check" in refused.json()["detail"]) == (409, True)
    back |= {"despite_gate": True}
    assert service.call("admin", "PUT", path, json=back, headers={"If-Match": '"2"'}).status_code == 200
    assert service.document(f"/v1/cases/{case['id']}")["prediction"] == case["prediction"]


def test_a_job_began_when_its_first_attempt_did(service: Service) -> None:
    job_id = submit(service.context, "evaluation", {})
    begun: list[str] = []

    def work(_: RunningJob) -> dict[str, Any]:
        begun.append(job(service, job_id)["started_at"])
        raise ValueError("not yet")

    for attempt in range(2):
        work_off(service.context, {"evaluation": work})
        ended = job(service, job_id)
        assert (ended["state"], ended["started_at"]) == ("failed", begun[0])
        if attempt == 0:
            assert service.post("admin", f"/v1/jobs/{job_id}/retry").json()["started_at"] == begun[0]
    assert begun[1] == begun[0] < ended["ended_at"]


@pytest.mark.slow
def test_kinds_do_not_wait_for_each_other(service: Service) -> None:
    """Each of two jobs of different kinds ends only when it has seen the other one run."""
    for kind in ("evaluation", "prediction"):
        submit(service.context, kind, {})
    together = threading.Barrier(2, timeout=60 * PATIENCE)

    def meet(_: RunningJob) -> dict[str, Any]:
        return {"place": together.wait()}

    assert work_off(service.context, {"evaluation": meet, "prediction": meet}) == 2
    assert {row["state"] for row in service.document("/v1/jobs")["items"]} == {"succeeded"}


@pytest.mark.slow
@pytest.mark.one_database
def test_a_frozen_evaluation_can_be_computed_again_from_its_tables(service: Service) -> None:
    collect_reads(service, 24)
    asked = service.post("admin", "/v1/evaluations", json={"partition": "all"})
    assert asked.status_code == 202
    path = f"/v1/evaluations/{asked.json()['id']}"
    assert service.get("viewer", path, headers={"Accept": "text/html"}).status_code == 409
    assert work_off(service.context) == 1
    shown = service.document(path)
    assert shown["state"] == "succeeded", shown["error"]
    same(shown["document"]["metrics"], service.document("/v1/metrics", partition="all")["metrics"])
    assert shown["document"]["agreement"]["pairs"]
    same(shown["document"]["agreement"], service.document("/v1/agreement", partition="all"))
    assert shown["document"]["selection"]["orders"] == []  # nobody but outside systems labelled
    again = evaluate_frozen(evaluation_folder(service.context.settings.home, UUID(asked.json()["id"])), weighted=False)
    assert again.model_dump()["metrics"] == shown["document"]["metrics"]
    page = service.get("viewer", path, headers={"Accept": "text/html"})
    assert "<svg" in page.text
    assert "http" not in page.text.replace("http://www.w3.org", "")  # opens offline
    assert "unsafe-inline" in page.headers["content-security-policy"]
    assert service.get("viewer", path, headers={"Accept": "text/csv"}).text.startswith("metric,value,se")
    assert service.document("/v1/evaluations")["items"][0]["id"] == asked.json()["id"]
    assert service.get("viewer", f"/v1/evaluations/{UUID(int=3)}").status_code == 404


@pytest.mark.slow_on_second_database
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("x"), "a defect (KeyError)"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
        (MemoryError(), "a defect (MemoryError)"),
        (StorageFull("the disk is full"), "the disk is full"),
    ],
)
def test_what_goes_wrong_in_a_job_ends_that_job_and_not_the_worker(
    service: Service, error: Exception, words: str
) -> None:
    bad, good = (submit(service.context, "evaluation", {"bad": bad}) for bad in (True, False))

    def work(running: RunningJob) -> dict[str, Any]:
        if running.parameters["bad"]:
            raise error
        return {}

    assert work_off(service.context, {"evaluation": work}) == 2
    shown = job(service, bad)
    assert (shown["state"], words in shown["error"]) == ("failed", True), shown["error"]
    assert job(service, good)["state"] == "succeeded"


def test_a_database_that_is_busy_for_a_moment_fails_no_job(service: Service) -> None:
    job_id = submit(service.context, "evaluation", {})
    tries: list[int] = []

    def work(_: RunningJob) -> dict[str, Any]:
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("UPDATE", {}, Exception("database is locked"))
        return {}

    work_off(service.context, {"evaluation": work})
    assert job(service, job_id)["state"] == "succeeded"


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_worker_that_is_kept_from_the_processor_within_a_transaction_does_its_job_again(service: Service) -> None:
    """PostgreSQL ends the connection of whoever is silent for too long, and calls it an internal error."""
    job_id = submit(service.context, "evaluation", {})
    tries: list[int] = []

    def work(running: RunningJob) -> dict[str, Any]:
        tries.append(1)
        with running.write() as session:
            if len(tries) == 1:
                session.execute(text("SET LOCAL idle_in_transaction_session_timeout = 50"))
                time.sleep(0.5)
            running.report_in(session, 0.5, "as far as this")
        return {}

    work_off(service.context, {"evaluation": work})
    shown = job(service, job_id)
    assert (shown["state"], len(tries)) == ("succeeded", 2), shown["error"]


@pytest.mark.parametrize("bad", ["abc", '"-1"', '""', '"1e3"'])
def test_if_match_must_be_a_revision(service: Service, bad: str) -> None:
    body = {"release": str(UUID(int=1)), "reason": "x"}
    answer = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers={"If-Match": bad})
    assert answer.status_code == 400


def test_a_champion_is_moved_for_a_reason(service: Service) -> None:
    body = {"release": str(UUID(int=1)), "reason": " "}
    answer = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers={"If-Match": '"1"'})
    assert (answer.status_code, answer.json()["errors"][0]["where"]) == (422, ["body", "reason"])


@pytest.mark.slow
def test_a_recalibration_is_asked_for_when_the_last_one_is_old_and_labels_came_since(service: Service) -> None:
    def asked(after_days: float = 0) -> int:
        with service.clock.off_by(timedelta(days=after_days)):
            for _ in range(3):
                ask_for_recalibration(service.context)
        return sum(row["kind"] == "recalibration" for row in service.document("/v1/jobs")["items"])

    assert asked() == 0  # no schedule was set
    service.context.settings.recalibrate_days = 7
    assert asked() == 0  # there is no label to learn from
    store(service, "one", cell_png(1), {"reader": 0})
    assert asked() == 1
    assert asked(after_days=6) == 1
    assert asked(after_days=8) == 1  # no label has come since, and each try costs the gate's level
    store(service, "two", cell_png(2), {"reader": 0})
    assert asked(after_days=6) == 1
    assert asked(after_days=8) == 2
    work_off(service.context)
    found = service.document("/v1/jobs")["items"]
    assert [row["state"] for row in found] == ["failed", "failed"]  # there are too few labels, and it says so
    assert all("labelled cells" in row["error"] for row in found)


@pytest.mark.slow
def test_a_recalibration_that_dies_after_its_candidate_was_written_makes_no_second_one(service: Service) -> None:
    """The worker ends between the transaction that adds the release and DBOS's record of the job's end."""
    plan = service.context.settings.home / "plan.json"
    bounds = {"min_labelled_cases": 5, "min_patients": 3, "max_mean_log_concentration_change": 9}
    plan.write_text(json.dumps(bounds))
    service.context.settings.change_plan = plan
    collect_reads(service, 40)
    asked = service.post("admin", "/v1/recalibrations", json={}).json()

    def dies(running: RunningJob) -> dict[str, Any]:
        FUNCTIONS["recalibration"](running)
        raise WorkerStoppingError

    begin_and_stop(service.context, {"recalibration": dies})
    assert job(service, asked["id"])["state"] == "running"
    before = [release["id"] for release in service.document("/v1/releases")["items"]]
    assert len(before) == 2
    work_off(service.context)
    done = job(service, asked["id"])
    assert (done["state"], done["attempts"]) == ("succeeded", 2), done["error"]
    assert done["result"]["release"] == before[0]
    assert [release["id"] for release in service.document("/v1/releases")["items"]] == before
