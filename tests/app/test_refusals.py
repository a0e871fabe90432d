"""A refused recalibration says what was refused and what it would need, and is not offered again on the same labels."""

import pytest

from tests.app.test_jobs import collect_reads, job
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, store


def refused(service: Service) -> tuple[str, list[str]]:
    asked = service.post("admin", "/v1/recalibrations", json={}).json()
    work_off(service.context)
    failed = job(service, asked["id"])
    assert failed["state"] == "failed"
    return asked["id"], failed["error"].split("\n")


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
