"""The gate remembers: attempts on a champion are counted whatever somebody tries, for every release, on both databases.

The champion is too sure of everything, so that a release of the same network with a higher temperature is better on
cases whose labels are random.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from app.audit.anchor import record_restore
from app.audit.chain import events
from app.database.tables import ReleaseRow, utc_now
from app.job_table import FUNCTIONS
from app.jobs.executor import JobExecutor
from app.jobs.handle import RunningJob, WorkerStoppingError
from app.releases import gate_verdicts
from app.releases.gate_verdicts import count_attempts, first_champion_id
from app.releases.queries import existing_release, served_sha256
from ml.release.artifact import read_release, write_release
from tests.support.jobs import work_off
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, put_release, store
from tests.support.waiting import wait_until

N_CASES, READERS = 24, 3
#: log temperatures: of a release that is too sure, and of one that is not
SURE, MILD = -2.0, 1.0


def copy_of(source: Path, out: Path, name: str, log_temperature: float | None = None, **card: Any) -> Path:
    """A release of the same network under another name, and with another temperature if one is given."""
    release = read_release(source)
    files = {path.name: path.read_bytes() for path in source.iterdir() if path.name in release.card["files"]}
    files = {file: data for file, data in files.items() if file not in {"calibration.json", "README.md", "fused.onnx"}}
    calibration = release.calibration
    if log_temperature is not None:
        scaling = replace(calibration.scaling, method="temperature", log_temperature=log_temperature)
        calibration = replace(calibration, scaling=scaling)
    contents = {key: value for key, value in release.card.items() if key not in {"files", "version"}}
    return write_release(out, files, calibration, contents | {"name": name} | card, "a copy").path  # type: ignore[arg-type]


@pytest.fixture
def laboratory(service: Service, tiny_release: Path, tmp_path: Path) -> Service:
    """A champion that is too sure, and random labels of three outside readers."""
    row = add(service, copy_of(tiny_release, tmp_path / "sure", "too sure", SURE))
    promote(service, row, despite_gate=True)
    rng = np.random.default_rng(1)
    for number in range(N_CASES):
        given = {f"reader {reader}": int(rng.integers(8)) for reader in range(READERS)}
        store(service, f"case-{number}", cell_png(number), given, patient=f"p{number}")
    return service


def add(service: Service, path: Path) -> ReleaseRow:
    context = service.context
    with context.database.write() as session:
        return put_release(session, context.keys.audit, path, context.settings.releases_folder)


def promote(service: Service, release: ReleaseRow | str, **more: Any) -> Any:
    """Ask for a promotion; gives the answer."""
    body = {"release": str(getattr(release, "id", release)), "reason": "to be tried"} | more
    answer = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers={"If-Match": "*"})
    work_off(service.context)
    return answer


def judged(service: Service, release: ReleaseRow | str) -> dict[str, Any]:
    """Let the gate judge a release; gives what it found."""
    asked = service.post("admin", f"/v1/releases/{getattr(release, 'id', release)}/judgements")
    assert asked.status_code == 202, asked.text
    work_off(service.context)
    job = service.get("admin", f"/v1/jobs/{asked.json()['id']}").json()
    assert job["state"] == "succeeded", job["error"]
    found: dict[str, Any] = job["result"]["gate"]
    return found


def champion(service: Service) -> str:
    items = service.get("admin", "/v1/aliases").json()["items"]
    return next(str(item["release"]) for item in items if item["name"] == "champion")


def attempts(service: Service) -> int:
    """Attempts on the present champion."""
    with service.context.database.read() as session:
        row = existing_release(session, UUID(champion(service)))
        return count_attempts(session, served_sha256(row))


@pytest.mark.slow
def test_a_release_trained_elsewhere_goes_through_the_gate(
    laboratory: Service, tiny_release: Path, tmp_path: Path
) -> None:
    service = laboratory
    better = add(service, copy_of(tiny_release, tmp_path / "mild", "mild", MILD))
    refused = promote(service, better)
    assert (refused.status_code, "no gate has judged" in refused.json()["detail"]) == (409, True)
    gate = judged(service, better)
    assert gate["passed"], gate["reasons"]
    assert gate["champion"] == champion(service)
    assert gate["attempt"] | {"p_L": 0, "p_L_D": 0} == {
        "number": 1,
        "level": 0.025,
        "level_of_each_loss": 0.0125,
        "p_L": 0,
        "p_L_D": 0,
        "stability_limit": pytest.approx(2.638, abs=1e-3),
        "max_increase": None,
    }
    assert {row["annotator"] for row in gate["without_annotator"]} == {f"reader {reader}" for reader in range(READERS)}
    assert len({row["L"]["value"] for row in [gate, *gate["without_annotator"]]}) == 1 + READERS, "somebody stayed in"
    detail = service.get("viewer", f"/v1/releases/{better.id}").json()
    assert detail["gate_passed"] is True
    assert all(detail["gate"][part] == gate[part] for part in ("passed", "reasons", "findings", "attempt", "champion"))
    page = service.get("admin", f"/releases/{better.id}").text
    assert "The gate passed it" in page
    assert "Attempt 1 on this champion" in page
    assert "Looking at this is not counted as an attempt" in page
    assert promote(service, better).status_code == 200


@pytest.mark.slow
@undone("T18", "every attempt on a champion asks for more evidence", gate_verdicts, "count_attempts", lambda *_: 0)
def test_trying_again_costs_and_neither_names_nor_roll_backs_give_it_back(
    laboratory: Service, tiny_release: Path, tmp_path: Path
) -> None:
    service, sure = laboratory, champion(laboratory)
    same = add(service, copy_of(tiny_release, tmp_path / "same", "the same under another name", SURE))
    levels = []
    for number in (1, 2):
        store(service, f"more-{number}", cell_png(100 + number), {"reader 0": number}, patient=f"more-{number}")
        gate = judged(service, same)
        levels.append(gate["attempt"]["level"])
        assert (gate["passed"], gate["attempt"]["number"]) == (False, number)
        assert "not surely better" in gate["reasons"][0]
        assert f"attempt {number} on this champion" in gate["reasons"][0], "judged at the level of another attempt"
    assert levels == [0.025, 0.0125]
    refused = promote(service, same)
    assert (refused.status_code, "the gate refused" in refused.json()["detail"]) == (409, True)
    # the champion's copy takes its place: the count goes with what is served
    assert promote(service, same, despite_gate=True).status_code == 200
    event = service.get("admin", "/v1/audit-events", params={"action": "alias.move"}).json()["items"][0]
    assert (event["details"]["despite_gate"], event["reason"]) == ("refused", "to be tried")
    assert attempts(service) == 2
    # another champion has a count of its own, and the first one's is kept for its return
    less_sure = add(service, copy_of(tiny_release, tmp_path / "less sure", "less sure", SURE / 2))
    assert promote(service, less_sure, despite_gate=True).status_code == 200
    assert attempts(service) == 0
    assert promote(service, sure, despite_gate=True).status_code == 200
    assert attempts(service) == 2
    gate = judged(service, less_sure)
    assert gate["attempt"]["number"] == 3
    # it is better than that champion, which was promoted despite the gate, and worse than the first one: it harms
    assert any("better in L and L_φ" in finding for finding in gate["findings"])
    assert gate["since_first"]["release"] not in {sure, str(same.id)}
    assert gate["reasons"] != []
    assert all("since the first champion" in reason for reason in gate["reasons"])


@pytest.mark.slow
def test_a_verdict_against_another_champion_does_not_count(
    laboratory: Service, tiny_release: Path, tmp_path: Path
) -> None:
    service = laboratory
    mild = add(service, copy_of(tiny_release, tmp_path / "mild", "mild", MILD))
    other = add(service, copy_of(tiny_release, tmp_path / "other", "other", MILD + 0.1))
    assert judged(service, mild)["passed"]
    assert promote(service, other, despite_gate=True).status_code == 200
    refused = promote(service, mild)
    assert (refused.status_code, "present champion" in refused.json()["detail"]) == (409, True)
    gate = judged(service, mild)
    assert (gate["attempt"]["number"], gate["passed"]) == (1, False)  # it is no better than that one
    with service.context.database.read() as session:
        first = first_champion_id(session)
    assert gate["since_first"]["release"] == str(first)


@pytest.mark.slow
def test_what_a_card_from_elsewhere_says_of_a_gate_counts_for_nothing(
    laboratory: Service, tiny_release: Path, tmp_path: Path
) -> None:
    service = laboratory
    estimate = {"value": -1.0, "se": 0.1, "low": -1.2, "high": -0.8, "n": 9, "dropped": 0, "ess": 9.0}
    estimate |= {"clipped": False, "singleton_mass": 0.0, "horvitz_thompson": None, "largest_weight": None}
    gate = {"passed": True, "reasons": [], "L": estimate, "L_D": estimate, "without_annotator": []}
    said = {"label_snapshot": "0", "change_plan_sha256": "0", "method": "temperature", "gate": gate}
    parent = champion(service)
    forged = add(service, copy_of(tiny_release, tmp_path / "forged", "forged", recalibration=said, parent=parent))
    shown = service.get("viewer", f"/v1/releases/{forged.id}").json()
    assert (shown["gate_passed"], shown["gate"]) == (None, None)
    assert "The gate passed it" not in service.get("admin", f"/releases/{forged.id}").text
    assert promote(service, forged).status_code == 409


@pytest.mark.slow
def test_a_parent_that_is_no_identifier_is_nobodys_champion(
    laboratory: Service, tiny_release: Path, tmp_path: Path
) -> None:
    """What a card from elsewhere says of its parent is a name of theirs: it breaks no page and no promotion."""
    service = laboratory
    child = add(service, copy_of(tiny_release, tmp_path / "child", "child", MILD, parent="resnet18 of last year"))
    for user, path in (("viewer", "/v1/releases"), ("viewer", f"/v1/releases/{child.id}"), ("admin", "/releases")):
        assert service.get(user, path).status_code == 200
    assert service.get("admin", f"/releases/{child.id}").status_code == 200
    assert promote(service, child, despite_gate=True).status_code == 200


@pytest.mark.slow
def test_what_cannot_be_left_out_or_was_forgotten_is_said_with_the_verdict(
    laboratory: Service, tiny_release: Path, tmp_path: Path
) -> None:
    service = laboratory
    better = add(service, copy_of(tiny_release, tmp_path / "mild", "mild", MILD))
    gate = judged(service, better)
    assert gate["passed"]
    assert any("overlaps with the evaluation cannot be left out" in finding for finding in gate["findings"])
    assert not any("backup" in finding for finding in gate["findings"])
    with service.context.database.read() as session:
        head = events.read_head_text(session)
    record_restore(service.context, head)
    gate = judged(service, better)
    found = [finding for finding in gate["findings"] if "A backup was brought back" in finding]
    assert len(found) == 1
    assert "attempts after it are not counted" in found[0]
    assert str(utc_now().year) in found[0]


@pytest.mark.slow
def test_every_recalibration_that_was_judged_counts_once_however_it_was_asked_for(laboratory: Service) -> None:
    service = laboratory
    plan = service.context.settings.home / "plan.json"
    bounds = {"min_labelled_cases": 4, "min_patients": 2, "methods": ["none", "temperature"]}
    plan.write_text(json.dumps(bounds | {"max_mean_probability_change": 1.0, "max_mean_log_concentration_change": 50}))
    service.context.settings.change_plan = plan
    asked = [{"method": "none"}, {"method": "temperature"}, {"since": "2001-01-01T00:00:00Z"}]
    numbers = []
    for body in asked:
        job_id = service.post("admin", "/v1/recalibrations", json=body).json()["id"]
        work_off(service.context)
        job = service.get("admin", f"/v1/jobs/{job_id}").json()
        assert job["state"] == "succeeded", job["error"]
        numbers.append(job["result"]["gate"]["attempt"]["number"])
    assert numbers == [1, 2, 3]
    # one that fits nothing is judged by nobody
    plan.write_text(json.dumps(bounds | {"min_labelled_cases": 1000}))
    service.post("admin", "/v1/recalibrations", json={})
    work_off(service.context)
    assert attempts(service) == 3


@pytest.mark.slow
def test_a_judgement_that_is_begun_again_after_a_crash_is_one_attempt(
    laboratory: Service, tiny_release: Path, tmp_path: Path
) -> None:
    service = laboratory
    release = add(service, copy_of(tiny_release, tmp_path / "mild", "mild", MILD))
    job_id = service.post("admin", f"/v1/releases/{release.id}/judgements").json()["id"]

    def dies(running: RunningJob) -> dict[str, Any]:
        whole = running.batch

        def batch(name: str, work: Any) -> Any:
            if name == "judged":
                raise WorkerStoppingError
            return whole(name, work)

        object.__setattr__(running, "batch", batch)
        return dict(FUNCTIONS["judgement"](running))

    executor = JobExecutor(service.context, FUNCTIONS | {"judgement": dies}, poll_seconds=0.05)
    assert executor.acquire()
    executor.start()
    wait_until(lambda: executor.runner.begun and not executor.runner.running, 120, "the job was not begun")
    executor.stop()
    assert attempts(service) == 1
    work_off(service.context)
    job = service.get("admin", f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["attempts"]) == ("succeeded", 2), job["error"]
    assert (job["result"]["gate"]["attempt"]["number"], attempts(service)) == (1, 1)


def test_the_champion_is_not_judged_against_itself(laboratory: Service) -> None:
    assert laboratory.post("admin", f"/v1/releases/{champion(laboratory)}/judgements").status_code == 409
    assert laboratory.post("viewer", f"/v1/releases/{champion(laboratory)}/judgements").status_code == 403
    assert laboratory.post("admin", f"/v1/releases/{'0' * 32}/judgements").status_code == 404


@pytest.mark.slow
def test_asking_twice_for_a_judgement_is_one_attempt(laboratory: Service, tiny_release: Path, tmp_path: Path) -> None:
    row = add(laboratory, copy_of(tiny_release, tmp_path / "mild", "mild", MILD))
    asked = [laboratory.post("admin", f"/v1/releases/{row.id}/judgements").json()["id"] for _ in range(3)]
    assert len(set(asked)) == 1
    work_off(laboratory.context)
    assert laboratory.get("viewer", f"/v1/releases/{row.id}").json()["gate"]["attempt"]["number"] == 1
    # by the same labels it could only lose: its verdict stands
    again = judged(laboratory, row)
    assert (again["passed"], again["attempt"]["number"], attempts(laboratory)) == (True, 1, 1)
    assert "this verdict stands" in again["findings"][0]
    assert laboratory.get("viewer", f"/v1/releases/{row.id}").json()["gate_passed"] is True
    store(laboratory, "another", cell_png(200), {"reader 0": 1, "reader 1": 2}, patient="another")
    assert judged(laboratory, row)["attempt"]["number"] == 2
    assert laboratory.post("admin", f"/v1/releases/{row.id}/judgements").json()["id"] != asked[0]
