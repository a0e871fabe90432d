"""The gate's verdict, read from the card and never guessed, and what a refusal says."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.database.tables import ReleaseRow
from app.recalibration.preconditions import POWER, describe_required_cases, required_case_factor
from app.releases.gate_verdicts import gate_verdict, read_card_gate
from app.releases.queries import all_releases
from app.releases.registration import add_release
from ml.metrics.jackknife import Estimate
from tests.app.test_jobs import collect_reads, job
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, put_release, store

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


def test_a_release_with_a_malformed_gate_is_not_added(service: Service, small_release: Path, tmp_path: Path) -> None:
    folder = tmp_path / "release"
    shutil.copytree(small_release, folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | {"recalibration": {"gaet": GOOD}}))
    context = service.context
    with pytest.raises(ValueError, match="recalibration has no gate"):
        add_release(context.database, context.keys.audit, folder, context.folders)
    assert len(service.get("viewer", "/v1/releases").json()["items"]) == 1


def test_a_malformed_gate_in_the_database_is_shown_as_such_and_never_promoted(service: Service) -> None:
    """What an earlier version let in: whatever its column says, it counts as not judged."""
    service.written_past = True
    with service.context.database.write() as session:
        served = all_releases(session)[0]
        for number, recalibration in enumerate(MALFORMED.values()):
            card = {**served.card, "recalibration": recalibration}
            gate = "passed" if number % 2 else "not_judged"
            session.add(ReleaseRow(name="malformed", card_sha256=f"{number:064}", card=card, gate=gate))
    rows = service.get("viewer", "/v1/releases").json()["items"]
    assert [row["gate_fault"] for row in rows if row["name"] != "malformed"] == [None]
    assert service.get("admin", "/releases").text.count("malformed card") == len(MALFORMED)
    for row in rows[:-1]:
        assert (row["name"], row["gate_passed"]) == ("malformed", None)
        assert "card is malformed" in row["gate_fault"]
        assert service.get("viewer", f"/v1/releases/{row['id']}").json()["gate_fault"] == row["gate_fault"]
        page = service.get("admin", f"/releases/{row['id']}")
        shown = page.status_code, "cannot be promoted" in page.text, 'value="champion"' in page.text
        assert shown == (200, True, False)
        body = {"release": row["id"], "reason": "all the same", "despite_gate": True}
        refused = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers={"If-Match": '"1"'})
        assert (refused.status_code, "cannot be promoted" in refused.json()["detail"]) == (409, True)
    assert service.get("viewer", "/v1/aliases").json()["items"][0]["release"] == str(served.id)


def test_a_release_that_no_gate_has_judged_becomes_champion_by_an_explicit_choice_only(
    service: Service, small_release: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "release"
    shutil.copytree(small_release, folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | {"name": "trained anew"}))
    context = service.context
    with context.database.write() as session:
        row = put_release(session, context.keys.audit, folder, context.settings.releases_folder)
    body = {"release": str(row.id), "reason": "trained on more cells"}
    headers = {"If-Match": '"1"'}
    assert service.get("viewer", f"/v1/releases/{row.id}").json()["gate_passed"] is None
    watched = service.call("admin", "PUT", "/v1/aliases/challenger", json=body, headers={"If-Match": '"0"'})
    assert watched.status_code == 200  # nobody is served by a challenger
    refused = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers=headers)
    assert (refused.status_code, "no gate has judged" in refused.json()["detail"]) == (409, True)
    chosen = service.call("admin", "PUT", "/v1/aliases/champion", json=body | {"despite_gate": True}, headers=headers)
    assert (chosen.status_code, chosen.json()["release"]) == (200, str(row.id))


def refused(service: Service) -> tuple[str, list[str]]:
    asked = service.post("admin", "/v1/recalibrations", json={}).json()
    work_off(service.context)
    failed = job(service, asked["id"])
    assert failed["state"] == "failed"
    return asked["id"], failed["error"].split("\n")


@pytest.mark.slow
def test_too_few_labels_say_how_many_more_are_needed_and_nobody_tries_again_in_vain(service: Service) -> None:
    for number in range(3):
        store(service, f"case-{number}", cell_png(number), {"reader": 1}, patient=f"p{number}")
    asked, sentences = refused(service)
    assert sentences[0].startswith("Refused: recalibration needs 50 labelled cases of 10 patients")
    assert "more labelled cases are needed there" in sentences[1]
    assert "more patients there" in sentences[2]
    page = service.get("admin", "/jobs", headers={"Accept-Language": "de"}).text
    assert "die Rekalibrierung braucht im Kalibrierungsteil 50 befundete Fälle von 10 Patienten; es sind " in page
    assert "Dort müssen sie von " in page
    page = service.get("admin", "/jobs").text
    assert "The newest recalibration was refused" in page
    assert "No label has come since" in page
    assert f"/jobs/{asked}/retry" not in page
    store(service, "another", cell_png(9), {"reader": 1})
    page = service.get("admin", "/jobs").text
    assert "Labels have come since" in page
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
    assert change.startswith("Before and after, on average over ")
    assert "two annotators differ" in change
    assert "SECONDREAD_CHANGE_PLAN) with max_mean_log_concentration_change of " in limit
    assert "the fit saw" in labels
    page = service.get("admin", "/jobs").text
    for sentence in (change, limit, labels):
        assert sentence in page


def change(value: float, se: float | None) -> Any:
    return SimpleNamespace(value=value, se=se)


def test_with_as_many_cases_the_change_is_seen_as_often_as_it_says() -> None:
    from scipy.special import ndtri

    level, value, se = 0.00625, -0.01, 0.008
    times = required_case_factor(change(value, se), level)
    assert times is not None
    then = se / np.sqrt(times)
    seen = np.random.default_rng(0).normal(value, then, 200_000) <= -ndtri(1 - level) * then
    assert seen.mean() == pytest.approx(POWER, abs=0.005)


@pytest.mark.parametrize("loss", [change(0.01, 0.008), change(-0.01, None), change(float("nan"), 0.1)])
def test_what_did_not_fall_needs_no_number_of_cases(loss: Any) -> None:
    assert required_case_factor(loss, 0.01) is None
    assert "neither loss fell" in describe_required_cases([("L", loss)], 0.01)


def test_the_nearer_of_both_losses_is_named_and_what_is_out_of_reach_is_said() -> None:
    said = describe_required_cases([("L", change(-0.001, 0.01)), ("L_φ", change(-0.01, 0.01))], 0.00625)
    assert "if L_φ truly falls" in said
    assert "11.2 times as many" in said
    assert "more than 100 times" in describe_required_cases([("L", change(-1e-6, 0.01))], 0.00625)
