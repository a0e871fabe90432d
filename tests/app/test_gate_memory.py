"""The gate: its verdict, read from the card and never guessed, what a refusal says, and that attempts are counted.

The champion is too sure of everything: a release of the same network with a higher temperature is better on cases
whose labels are random.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from scipy.special import ndtri

from app.audit.anchor import record_restore
from app.audit.chain import events
from app.database.tables import ReleaseRow, utc_now
from app.job_table import FUNCTIONS
from app.jobs.handle import RunningJob, WorkerStoppingError
from app.recalibration.preconditions import POWER, describe_required_cases, required_case_factor
from app.releases import gate_verdicts
from app.releases.gate_verdicts import count_attempts, first_champion_id, gate_verdict, read_card_gate
from app.releases.queries import all_releases, existing_release, served_sha256
from app.releases.registration import add_release
from ml.metrics.jackknife import Estimate
from ml.release.artifact import read_release, write_release
from tests.app.test_jobs import collect_reads
from tests.support.jobs import begin_and_stop, finish_job, work_off
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, store
from tests.support.tiny_release import edit_release

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


#: Adds a release of the network of these tests under another name, perhaps with another temperature.
Add = Callable[..., ReleaseRow]


@pytest.fixture
def add(service: Service, tiny_release: Path, tmp_path: Path) -> Add:
    return lambda name, *changed, **card: service.put_release(
        copy_of(tiny_release, tmp_path / name, name, *changed, **card)
    )


@pytest.fixture
def laboratory(service: Service, add: Add) -> Service:
    """A champion that is too sure, and random labels of three outside readers."""
    promote(service, add("too sure", SURE), despite_gate=True)
    rng = np.random.default_rng(1)
    for number in range(N_CASES):
        given = {f"reader {reader}": int(rng.integers(8)) for reader in range(READERS)}
        store(service, f"case-{number}", cell_png(number), given, patient=f"p{number}")
    return service


def promote(service: Service, release: ReleaseRow | str, **more: Any) -> Any:
    body = {"release": str(getattr(release, "id", release)), "reason": "to be tried"} | more
    answer = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers={"If-Match": "*"})
    work_off(service.context)
    return answer


def judged(service: Service, release: ReleaseRow | str) -> Any:
    job = finish_job(service, f"/v1/releases/{getattr(release, 'id', release)}/judgements")
    assert job["state"] == "succeeded", job["error"]
    return job["result"]["gate"]


def champion(service: Service) -> str:
    return next(str(row["release"]) for row in service.items("/v1/aliases") if row["name"] == "champion")


def attempts(service: Service) -> int:
    with service.context.database.read() as session:
        return count_attempts(session, served_sha256(existing_release(session, UUID(champion(service)))))


@pytest.mark.slow
def test_a_release_trained_elsewhere_goes_through_the_gate(laboratory: Service, add: Add) -> None:
    service, better = laboratory, add("mild", MILD)
    refused = promote(service, better)
    assert (refused.status_code, "needs a promotion check" in refused.json()["detail"]) == (409, True)
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
    detail = service.document(f"/v1/releases/{better.id}")
    assert detail["gate_passed"] is True
    assert all(detail["gate"][part] == gate[part] for part in ("passed", "reasons", "findings", "attempt", "champion"))
    page = service.get("admin", f"/releases/{better.id}").text
    assert "Passed the promotion check" in page
    assert "Attempt 1 on this champion" in page
    assert "Viewing this comparison is not an attempt" in page
    assert promote(service, better).status_code == 200


@pytest.mark.slow
@undone("T18", "every attempt on a champion asks for more evidence", gate_verdicts, "count_attempts", lambda *_: 0)
def test_trying_again_costs_and_neither_names_nor_roll_backs_give_it_back(laboratory: Service, add: Add) -> None:
    service, sure = laboratory, champion(laboratory)
    same = add("the same under another name", SURE)
    levels = []
    for number in (1, 2):
        store(service, f"more-{number}", cell_png(100 + number), {"reader 0": number}, patient=f"more-{number}")
        gate = judged(service, same)
        levels.append(gate["attempt"]["level"])
        assert (gate["passed"], gate["attempt"]["number"]) == (False, number)
        assert "no significant improvement" in gate["reasons"][0]
        assert f"attempt {number} on this champion" in gate["reasons"][0], "judged at the level of another attempt"
    assert levels == [0.025, 0.0125]
    refused = promote(service, same)
    assert (refused.status_code, "the promotion check rejected" in refused.json()["detail"]) == (409, True)
    # the champion's copy takes its place: the count goes with what is served
    assert promote(service, same, despite_gate=True).status_code == 200
    event = service.get("admin", "/v1/audit-events", params={"action": "alias.move"}).json()["items"][0]
    assert (event["details"]["despite_gate"], event["reason"]) == ("refused", "to be tried")
    assert attempts(service) == 2
    # another champion has a count of its own, and the first one's is kept for its return
    less_sure = add("less sure", SURE / 2)
    assert promote(service, less_sure, despite_gate=True).status_code == 200
    assert attempts(service) == 0
    assert promote(service, sure, despite_gate=True).status_code == 200
    assert attempts(service) == 2
    gate = judged(service, less_sure)
    assert gate["attempt"]["number"] == 3
    # it is better than that champion, which was promoted despite the gate, and worse than the first one: it harms
    assert any("Improved: L and L_φ" in finding for finding in gate["findings"])
    assert gate["since_first"]["release"] not in {sure, str(same.id)}
    assert gate["reasons"] != []
    assert all("since the first champion" in reason for reason in gate["reasons"])


@pytest.mark.slow
def test_a_verdict_against_another_champion_does_not_count(laboratory: Service, add: Add) -> None:
    service, mild, other = laboratory, add("mild", MILD), add("other", MILD + 0.1)
    assert judged(service, mild)["passed"]
    assert promote(service, other, despite_gate=True).status_code == 200
    refused = promote(service, mild)
    assert (refused.status_code, "current champion" in refused.json()["detail"]) == (409, True)
    gate = judged(service, mild)
    assert (gate["attempt"]["number"], gate["passed"]) == (1, False)  # it is no better than that one
    with service.context.database.read() as session:
        first = first_champion_id(session)
    assert gate["since_first"]["release"] == str(first)


@pytest.mark.slow
def test_what_a_card_from_elsewhere_says_of_a_gate_counts_for_nothing(laboratory: Service, add: Add) -> None:
    service = laboratory
    estimate = {"value": -1.0, "se": 0.1, "low": -1.2, "high": -0.8, "n": 9, "dropped": 0, "ess": 9.0}
    estimate |= {"clipped": False, "singleton_mass": 0.0, "horvitz_thompson": None, "largest_weight": None}
    gate = {"passed": True, "reasons": [], "L": estimate, "L_D": estimate, "without_annotator": []}
    said = {"label_snapshot": "0", "change_plan_sha256": "0", "method": "temperature", "gate": gate}
    forged = add("forged", recalibration=said, parent=champion(service))
    shown = service.document(f"/v1/releases/{forged.id}")
    assert (shown["gate_passed"], shown["gate"]) == (None, None)
    assert "Passed the promotion check" not in service.get("admin", f"/releases/{forged.id}").text
    assert promote(service, forged).status_code == 409


@pytest.mark.slow
def test_a_parent_that_is_no_identifier_is_nobodys_champion(laboratory: Service, add: Add) -> None:
    """What a card from elsewhere says of its parent is a name of theirs: it breaks no page and no promotion."""
    service, child = laboratory, add("child", MILD, parent="resnet18 of last year")
    for user, path in (("viewer", "/v1/releases"), ("viewer", f"/v1/releases/{child.id}"), ("admin", "/releases")):
        assert service.get(user, path).status_code == 200
    assert service.get("admin", f"/releases/{child.id}").status_code == 200
    assert promote(service, child, despite_gate=True).status_code == 200


@pytest.mark.slow
def test_what_cannot_be_left_out_or_was_forgotten_is_said_with_the_verdict(laboratory: Service, add: Add) -> None:
    service, better = laboratory, add("mild", MILD)
    gate = judged(service, better)
    assert gate["passed"]
    assert any("overlaps with the evaluation cannot be excluded" in finding for finding in gate["findings"])
    assert not any("backup" in finding for finding in gate["findings"])
    with service.context.database.read() as session:
        head = events.read_head_text(session)
    record_restore(service.context, head)
    gate = judged(service, better)
    found = [finding for finding in gate["findings"] if "A backup was restored" in finding]
    assert len(found) == 1
    assert "later attempts are not counted" in found[0]
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
        job = finish_job(service, "/v1/recalibrations", **body)
        assert job["state"] == "succeeded", job["error"]
        numbers.append(job["result"]["gate"]["attempt"]["number"])
    assert numbers == [1, 2, 3]
    # one that fits nothing is judged by nobody
    plan.write_text(json.dumps(bounds | {"min_labelled_cases": 1000}))
    finish_job(service, "/v1/recalibrations")
    assert attempts(service) == 3


@pytest.mark.slow
def test_a_judgement_that_is_begun_again_after_a_crash_is_one_attempt(laboratory: Service, add: Add) -> None:
    service = laboratory
    job_id = service.post("admin", f"/v1/releases/{add('mild', MILD).id}/judgements").json()["id"]

    def dies(running: RunningJob) -> dict[str, Any]:
        whole = running.batch

        def batch(name: str, work: Any) -> Any:
            if name == "judged":
                raise WorkerStoppingError
            return whole(name, work)

        object.__setattr__(running, "batch", batch)
        return dict(FUNCTIONS["judgement"](running))

    begin_and_stop(service.context, {"judgement": dies})
    assert attempts(service) == 1
    work_off(service.context)
    job = service.document(f"/v1/jobs/{job_id}")
    assert (job["state"], job["attempts"]) == ("succeeded", 2), job["error"]
    assert (job["result"]["gate"]["attempt"]["number"], attempts(service)) == (1, 1)


def test_the_champion_is_not_judged_against_itself(laboratory: Service) -> None:
    assert laboratory.post("admin", f"/v1/releases/{champion(laboratory)}/judgements").status_code == 409
    assert laboratory.post("viewer", f"/v1/releases/{champion(laboratory)}/judgements").status_code == 403
    assert laboratory.post("admin", f"/v1/releases/{'0' * 32}/judgements").status_code == 404


@pytest.mark.slow
def test_asking_twice_for_a_judgement_is_one_attempt(laboratory: Service, add: Add) -> None:
    row = add("mild", MILD)
    asked = [laboratory.post("admin", f"/v1/releases/{row.id}/judgements").json()["id"] for _ in range(3)]
    assert len(set(asked)) == 1
    work_off(laboratory.context)
    assert laboratory.document(f"/v1/releases/{row.id}")["gate"]["attempt"]["number"] == 1
    # by the same labels it could only lose: its verdict stands
    again = judged(laboratory, row)
    assert (again["passed"], again["attempt"]["number"], attempts(laboratory)) == (True, 1, 1)
    assert "its result stands" in again["findings"][0]
    assert laboratory.document(f"/v1/releases/{row.id}")["gate_passed"] is True
    store(laboratory, "another", cell_png(200), {"reader 0": 1, "reader 1": 2}, patient="another")
    assert judged(laboratory, row)["attempt"]["number"] == 2
    assert laboratory.post("admin", f"/v1/releases/{row.id}/judgements").json()["id"] != asked[0]


CHANGE = Estimate(-0.01, 0.002, -0.014, -0.006, 100, 3, 90.0).to_dict()
GOOD: dict[str, Any] = {"passed": True, "reasons": [], "L": CHANGE, "L_D": CHANGE, "without_annotator": []}
BAD = GOOD | {
    "passed": False,
    "reasons": ["L may rise"],
    "without_annotator": [{"annotator": "anna", "failed": "too few labels"}, {"annotator": "ben", "L": CHANGE}],
}
MALFORMED: dict[str, Any] = {
    "no gate": {"method": "temperature"},
    "misspelt": {"gaet": GOOD},
    "null": None,
    "no verdict": {"gate": {name: value for name, value in GOOD.items() if name != "passed"}},
    "a word": {"gate": GOOD | {"passed": "true"}},
    "passed with reasons": {"gate": GOOD | {"reasons": ["L may rise"]}},
    "refused without": {"gate": GOOD | {"passed": False}},
    "unknown part": {"gate": GOOD | {"overruled": True}},
    "no estimate": {"gate": GOOD | {"L": {"value": 0.1}}},
}


def test_the_verdict_of_a_card() -> None:
    assert gate_verdict(read_card_gate({"name": "trained"})) == "not_judged"
    for document, verdict in ((GOOD, "passed"), (BAD, "refused")):
        gate = read_card_gate({"recalibration": {"gate": document}})
        assert gate is not None
        assert gate_verdict(gate) == verdict
        assert gate.to_dict() == document


def test_a_release_with_a_malformed_gate_is_not_added(service: Service, tiny_release: Path, tmp_path: Path) -> None:
    folder = edit_release(tiny_release, tmp_path / "release", recalibration={"gaet": GOOD})
    context = service.context
    with pytest.raises(ValueError, match="recalibration has no gate"):
        add_release(context.database, context.keys.audit, folder, context.folders)
    assert len(service.document("/v1/releases")["items"]) == 1


def test_a_malformed_gate_in_the_database_is_shown_as_such_and_never_promoted(service: Service) -> None:
    """What an earlier version let in: whatever its column says, it counts as not judged."""
    service.written_past = True
    with service.context.database.write() as session:
        served = all_releases(session)[0]
        for number, recalibration in enumerate(MALFORMED.values()):
            card = {**served.card, "recalibration": recalibration}
            gate = "passed" if number % 2 else "not_judged"
            session.add(ReleaseRow(name="malformed", card_sha256=f"{number:064}", card=card, gate=gate))
    rows = service.document("/v1/releases")["items"]
    assert [row["gate_fault"] for row in rows if row["name"] != "malformed"] == [None]
    assert service.get("admin", "/releases").text.count("malformed card") == len(MALFORMED)
    for row in rows[:-1]:
        assert (row["name"], row["gate_passed"]) == ("malformed", None)
        assert "card is malformed" in row["gate_fault"]
        assert service.document(f"/v1/releases/{row['id']}")["gate_fault"] == row["gate_fault"]
        page = service.get("admin", f"/releases/{row['id']}")
        shown = page.status_code, "cannot be promoted" in page.text, 'value="champion"' in page.text
        assert shown == (200, True, False)
        body = {"release": row["id"], "reason": "all the same", "despite_gate": True}
        refused = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers={"If-Match": '"1"'})
        assert (refused.status_code, "cannot be promoted" in refused.json()["detail"]) == (409, True)
    assert service.document("/v1/aliases")["items"][0]["release"] == str(served.id)


def test_a_release_that_no_gate_has_judged_needs_a_choice(service: Service, tiny_release: Path, tmp_path: Path) -> None:
    row = service.put_release(edit_release(tiny_release, tmp_path / "release", name="trained anew"))
    body = {"release": str(row.id), "reason": "trained on more cells"}
    headers = {"If-Match": '"1"'}
    assert service.document(f"/v1/releases/{row.id}")["gate_passed"] is None
    watched = service.call("admin", "PUT", "/v1/aliases/challenger", json=body, headers={"If-Match": '"0"'})
    assert watched.status_code == 200  # nobody is served by a challenger
    refused = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers=headers)
    assert (refused.status_code, "needs a promotion check" in refused.json()["detail"]) == (409, True)
    chosen = service.call("admin", "PUT", "/v1/aliases/champion", json=body | {"despite_gate": True}, headers=headers)
    assert (chosen.status_code, chosen.json()["release"]) == (200, str(row.id))


def refused(service: Service) -> tuple[str, list[str]]:
    failed = finish_job(service, "/v1/recalibrations")
    assert failed["state"] == "failed"
    return failed["id"], failed["error"].split("\n")


@pytest.mark.slow
def test_too_few_labels_say_how_many_more_are_needed_and_nobody_tries_again_in_vain(service: Service) -> None:
    for number in range(3):
        store(service, f"case-{number}", cell_png(number), {"reader": 1}, patient=f"p{number}")
    asked, sentences = refused(service)
    assert sentences[0].startswith("Refused: recalibration needs 50 labelled cells from 10 patients")
    assert "more labelled cells are needed in that partition" in sentences[1]
    assert sentences[2].startswith("They must include ")
    page = service.get("admin", "/jobs", headers={"Accept-Language": "de"}).text
    assert "die Rekalibrierung braucht im Kalibrierungsteil 50 beurteilte Zellbilder von 10 Patienten; es sind " in page
    assert "weitere Patienten umfassen." in page
    page = service.get("admin", "/jobs").text
    assert "The latest recalibration was rejected" in page
    assert "There are no new labels since" in page
    assert f"/jobs/{asked}/retry" not in page
    store(service, "another", cell_png(9), {"reader": 1})
    page = service.get("admin", "/jobs").text
    assert "There are new labels since" in page
    assert f"/jobs/{asked}/retry" in page
    assert [service.post("admin", f"/v1/jobs/{asked}/retry").status_code for _ in range(2)] == [202, 409]


@pytest.mark.slow
def test_a_change_beyond_the_plan_says_before_and_after_and_which_limit_it_would_need(service: Service) -> None:
    plan = service.context.settings.home / "plan.json"
    plan.write_text('{"min_labelled_cases": 20, "max_mean_log_concentration_change": 0.0001}')
    service.context.settings.change_plan = plan
    collect_reads(service)
    _, (what, change, limit, labels) = refused(service)
    assert what.startswith("Refused: the change plan does not allow this change: log concentrations would move by")
    assert change.startswith("Mean before and after, over ")
    assert "disagreement" in change
    assert "SECONDREAD_CHANGE_PLAN) with max_mean_log_concentration_change of " in limit
    assert "the fit used" in labels
    page = service.get("admin", "/jobs").text
    for sentence in (change, limit, labels):
        assert sentence in page


def change(value: float, se: float | None) -> Any:
    return SimpleNamespace(value=value, se=se)


def test_with_as_many_cases_the_change_is_seen_as_often_as_it_says() -> None:
    level, value, se = 0.00625, -0.01, 0.008
    times = required_case_factor(change(value, se), level)
    assert times is not None
    then = se / np.sqrt(times)
    seen = np.random.default_rng(0).normal(value, then, 200_000) <= -ndtri(1 - level) * then
    assert seen.mean() == pytest.approx(POWER, abs=0.005)


@pytest.mark.parametrize("loss", [change(0.01, 0.008), change(-0.01, None), change(float("nan"), 0.1)])
def test_what_did_not_fall_needs_no_number_of_cases(loss: Any) -> None:
    assert required_case_factor(loss, 0.01) is None
    assert "neither loss improved" in describe_required_cases([("L", loss)], 0.01)


def test_the_nearer_of_both_losses_is_named_and_what_is_out_of_reach_is_said() -> None:
    said = describe_required_cases([("L", change(-0.001, 0.01)), ("L_φ", change(-0.01, 0.01))], 0.00625)
    assert "if the fall of L_φ is real" in said
    assert "11.2 times as many" in said
    assert "more than 100 times" in describe_required_cases([("L", change(-1e-6, 0.01))], 0.00625)
