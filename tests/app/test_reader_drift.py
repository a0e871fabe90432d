"""Annotators from week to week: which answers count, that looks only add, and what the service shows to whom."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.metrics.annotator_drift import collect_answered_patients, compute_reader_drift
from app.metrics.dataset import EvaluationDataset, stable_name_hash
from ml.annotators.drift import excess_log_loss
from tests.app.test_monitoring import fill
from tests.support.service import Service

DAY = 86_400
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
START = MONDAY.timestamp()


def laboratory(seed: int, n: int = 300) -> EvaluationDataset:
    """Cells of few patients, each answered by one of two annotators within some days, or not yet."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(3), n)
    stored = np.sort(START + rng.uniform(0, 30 * DAY, n))
    answered = np.where(rng.random(n) < 0.9, stored + rng.exponential(3 * DAY, n), np.nan)
    who = np.array([stable_name_hash("anna"), stable_name_hash("ben")])[rng.integers(2, size=n)]
    return replace(
        EvaluationDataset.empty(["a", "b", "c"], n),
        cluster=rng.integers(1, n // 2, size=n),
        created_at=stored,
        class_probs=probs,
        first_class=rng.integers(3, size=n),
        first_annotator=np.where(np.isnan(answered), 0, who),
        first_answered_at=answered,
    )


def known_at(columns: EvaluationDataset, at: float) -> EvaluationDataset:
    """What is known at a time."""
    there = columns.take(np.flatnonzero(columns.created_at < at))
    later = ~(there.first_answered_at < at)
    return replace(
        there,
        first_class=np.where(later, -1, there.first_class),
        first_annotator=np.where(later, 0, there.first_annotator),
        first_answered_at=np.where(later, np.nan, there.first_answered_at),
    )


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_unit_is_a_patient_by_the_answers_of_the_first_day(seed: int) -> None:
    columns = laboratory(seed)
    found = collect_answered_patients(columns, stable_name_hash("anna"), START, START + 20 * DAY)
    expected = []
    for patient in np.unique(columns.cluster):
        mine = [
            row
            for row in np.flatnonzero(columns.cluster == patient)
            if columns.first_annotator[row] == stable_name_hash("anna")
            and columns.first_answered_at[row] < START + 20 * DAY
        ]
        if mine:
            first = min(columns.first_answered_at[row] // DAY for row in mine)
            rows = [row for row in mine if columns.first_answered_at[row] // DAY == first]
            losses = excess_log_loss(columns.class_probs[rows], columns.first_class[rows])
            expected.append((max(columns.first_answered_at[row] for row in rows), losses.mean(), first))
    expected.sort()
    np.testing.assert_allclose(found.excess, [loss for _, loss, _ in expected])
    np.testing.assert_array_equal(found.day, [day for _, _, day in expected])


@given(st.integers(0, 10**6), st.integers(0, 5), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_a_later_look_sees_what_an_earlier_one_saw_and_more(seed: int, weeks: int, more: int) -> None:
    """What is answered late makes no unit of before another one, and the weeks of before stay as they were."""
    columns, names = laboratory(seed), ["anna", "ben", "nobody"]
    looks = [MONDAY + timedelta(weeks=number, days=2) for number in (weeks, weeks + more)]
    early, late = (compute_reader_drift(known_at(columns, at.timestamp()), names, MONDAY, at) for at in looks)
    after = {row.annotator: row for row in late}
    for row in early:
        assert after[row.annotator].weeks[: len(row.weeks)] == row.weeks
        if row.alarm_on is not None:
            assert after[row.annotator].alarm_on == row.alarm_on


def test_the_week_that_has_not_ended_is_not_looked_at() -> None:
    columns = laboratory(1)
    for at in (MONDAY + timedelta(days=13), MONDAY + timedelta(days=14, minutes=59)):
        (anna, _) = compute_reader_drift(columns, ["anna", "ben"], MONDAY, at)
        assert [row.week for row in anna.weeks] == [MONDAY.date()]
    (anna, _) = compute_reader_drift(columns, ["anna", "ben"], MONDAY, MONDAY + timedelta(days=14, hours=1))
    assert [row.week for row in anna.weeks] == [MONDAY.date(), MONDAY.date() + timedelta(days=7)]
    assert compute_reader_drift(columns, ["anna", "ben"], MONDAY, MONDAY + timedelta(days=3)) == []


def test_an_annotator_who_changed_is_told_to_those_who_manage(service: Service) -> None:
    """Twelve patients per day; from day 24 on half of the answers are of another class than the predicted one.

    Days are counted from the next Monday: the last week has six of them whatever day the test runs on.
    """
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    monday = today + timedelta(days=7 - today.weekday())
    fill(service.context, 12, 48, 24, monday)
    service.written_past = True
    service.clock.stopped_at = monday + timedelta(days=60)
    assert service.get("viewer", "/v1/reader-drift").status_code == 403
    assert service.get("anna", "/v1/reader-drift").status_code == 403
    (found,) = service.get("admin", "/v1/reader-drift").json()["items"]
    assert (found["annotator"], found["n_patients"]) == ("reader", 48 * 12)
    assert monday + timedelta(days=24) <= datetime.fromisoformat(found["alarm_on"]).replace(tzinfo=UTC)
    assert "answers less as foreseen" in found["sentence"]
    first, last = found["weeks"][0], found["weeks"][-1]
    assert first["low"] <= 0 <= first["high"]
    assert last["low"] > 0
    page = service.get("admin", "/readers")
    assert page.status_code == 200
    assert found["sentence"] in page.text
    assert page.text.count('<circle class="mean"') == len(found["weeks"])


def test_before_any_week_has_ended_nothing_is_shown(service: Service) -> None:
    assert service.get("admin", "/v1/reader-drift").json() == {"items": []}
    assert "From week to week" not in service.get("admin", "/readers").text
