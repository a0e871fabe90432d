"""Alarms on the champion's log score and on annotators from week to week: what counts, that it only grows."""

import html
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select

from app.context import ServiceContext
from app.database.tables import Account, Annotator, Case, CasePrediction, Label, PolicyRow, ReadRequest
from app.metrics.annotator_drift import collect_answered_patients, compute_reader_drift
from app.metrics.dataset import EvaluationDataset, stable_name_hash
from app.metrics.score_alarm import PatientUnits, draw_lots, score_monitors, split_units_by_site
from app.releases.queries import all_releases, champion_since, class_codes
from app.releases.service import move_alias
from ml.annotators.drift import excess_log_loss
from ml.util.arrays import IntArray
from tests.app.test_snapshots import case_row, label_row, new_row, request_row
from tests.support.jobs import finish_job
from tests.support.reports import report_page
from tests.support.service import Service
from tests.support.snapshots import assert_snapshots_tell_all, write_snapshots

DAY, START = 86_400, datetime(2026, 3, 1, tzinfo=UTC)

NONE = np.zeros(0, dtype=np.int64)


def laboratory(seed: int, n: int = 40) -> EvaluationDataset:
    """Cases of few patients over ten days, some answered at once, some late, some never; some of before."""
    rng = np.random.default_rng(seed)
    stored = START.timestamp() + DAY * rng.integers(-1, 10, n) + rng.integers(0, DAY, n)
    due = stored + DAY * 3.0
    answered = stored + rng.choice([600.0, 2 * DAY, 5 * DAY, np.nan], n, p=[0.5, 0.2, 0.2, 0.1])
    names = ["east", "west"]
    return replace(
        EvaluationDataset.empty(["a", "b", "c"], n),
        case_id=rng.integers(256, size=(n, 16), dtype=np.uint8),
        cluster=rng.integers(1, 15, n),
        site=np.array([stable_name_hash(name) for name in rng.choice(names, n)]),
        sites={stable_name_hash(name): name for name in names},
        created_at=stored,
        class_probs=rng.dirichlet(np.ones(3), n),
        first_class=np.where(np.isnan(answered), -1, rng.integers(0, 3, n)),
        first_answered_at=answered,
        first_due_at=np.where(rng.random(n) < 0.95, due, np.nan),
    )


def known_at(columns: EvaluationDataset, at: datetime) -> EvaluationDataset:
    then = columns.take(np.flatnonzero(columns.created_at < at.timestamp()))
    answered = then.first_answered_at < at.timestamp()
    return replace(
        then,
        first_class=np.where(answered, then.first_class, -1),
        first_annotator=np.where(answered, then.first_annotator, 0),
        first_answered_at=np.where(answered, then.first_answered_at, np.nan),
    )


def patient_by_patient(columns: EvaluationDataset, since: datetime, until: float) -> list[tuple[float, int, int]]:
    """Loss, day and site of each unit that was completed before a time, in order."""
    found = []
    rows = [row for row in range(len(columns)) if columns.created_at[row] >= since.timestamp()]
    rows = [row for row in rows if not np.isnan(columns.first_due_at[row])]
    for patient in {int(columns.cluster[row]) for row in rows}:
        own = sorted((row for row in rows if columns.cluster[row] == patient), key=lambda row: columns.created_at[row])
        first = columns.created_at[own[0]]
        own = [row for row in own if columns.created_at[row] // DAY == first // DAY]
        answers = {row: columns.first_answered_at[row] for row in own if columns.first_class[row] >= 0}
        completed = max(min(answers.get(row, np.inf), columns.first_due_at[row]) for row in own)
        if not any(moment <= completed for moment in answers.values()):
            completed = min(answers.values(), default=np.inf)
        told = [
            -np.log(max(columns.class_probs[row, columns.first_class[row]], 0.01))
            for row, moment in answers.items()
            if moment <= completed
        ]
        if completed < until:
            found.append((completed, first, float(np.mean(told)), int(completed // DAY), int(columns.site[own[0]])))
    return [unit[2:] for unit in sorted(found)]


@given(st.integers(0, 10**6), st.integers(0, 20))
@settings(max_examples=40, deadline=None)
def test_units_are_the_first_days_of_the_patients_in_the_order_of_their_completion(seed: int, days: int) -> None:
    columns = laboratory(seed)
    found = split_units_by_site(columns, START, START + timedelta(days=days, hours=1.5))
    everybody = patient_by_patient(columns, START, (START + timedelta(days=days)).timestamp())
    for site in (None, "east", "west"):
        expected = [unit for unit in everybody if site is None or unit[2] == stable_name_hash(site)]
        units = found.get(site, PatientUnits(np.zeros(0), NONE, NONE, np.zeros(0), NONE))
        assert units.day.tolist() == [day for _, day, _ in expected]
        np.testing.assert_allclose(units.loss, [loss for loss, _, _ in expected])


@given(st.integers(0, 10**6), st.integers(0, 12), st.integers(0, 12))
@settings(max_examples=40, deadline=None)
def test_a_later_look_sees_what_an_earlier_one_saw_and_more(seed: int, days: int, more: int) -> None:
    """Whatever is answered in the meantime, late answers too, the units of before keep place and value."""
    columns = laboratory(seed)
    looks = [START + timedelta(days=number, hours=8) for number in (days, days + more)]
    early, late = (split_units_by_site(known_at(columns, at), START, at) for at in looks)
    for site, units in early.items():
        n = len(units.day)
        np.testing.assert_array_equal(late[site].day[:n], units.day)
        np.testing.assert_array_equal(late[site].loss[:n], units.loss)
        np.testing.assert_array_equal(late[site].surprise[:n], units.surprise)


def test_without_cases_or_answers_there_is_no_series() -> None:
    assert score_monitors(EvaluationDataset.empty(["a", "b"], 0), START, START) == []
    assert score_monitors(laboratory(0), START + timedelta(days=400), START + timedelta(days=500)) == []


def shifted(days: int, per_day: int, changed_from: int, seed: int = 3) -> tuple[IntArray, IntArray]:
    """Day and class (of two, the first one predicted with .9) of each case; from a day on a half is of the second."""
    rng = np.random.default_rng(seed)
    day = np.repeat(np.arange(days), per_day)
    return day, (rng.random(day.size) < np.where(day >= changed_from, 0.5, 0.1)).astype(np.int64)


def test_the_site_that_changed_is_named_and_the_other_is_not() -> None:
    day, label = shifted(120, 12, 60)
    rng = np.random.default_rng(0)
    east = rng.random(day.size) < 0.75
    label = np.where(east, rng.random(day.size) < 0.1, label).astype(np.int64)
    stored = START.timestamp() + DAY * day + 60.0 * np.arange(day.size).astype(float) % DAY
    names = {stable_name_hash(name): name for name in ("east", "west")}
    columns = replace(
        EvaluationDataset.empty(["a", "b"], day.size),
        cluster=np.arange(1, day.size + 1),
        site=np.where(east, stable_name_hash("east"), stable_name_hash("west")),
        sites=names,
        created_at=np.sort(stored),
        class_probs=np.tile([0.9, 0.1], (day.size, 1)),
        first_class=label,
        first_answered_at=np.sort(stored) + 60,
        first_due_at=np.sort(stored) + DAY,
    )
    everybody, first, second = score_monitors(columns, START, START + timedelta(days=122))
    assert (everybody.site, first.site, second.site) == (None, "east", "west")
    assert first.alarm_on is None
    assert second.alarm_on is not None
    assert second.alarm_on > (START + timedelta(days=60)).date()
    assert "at site west" in second.warnings[0]
    assert everybody.n_units == first.n_units + second.n_units == day.size
    loss, recent = -np.log(np.where(label, 0.1, 0.9)), (columns.first_answered_at - START.timestamp()) // DAY > 90
    assert (everybody.n_reference, everybody.n_units) == ((~recent).sum(), day.size)
    assert everybody.reference_loss == pytest.approx(loss[~recent].mean())
    assert everybody.recent_loss == pytest.approx(loss[recent].mean())
    assert [row.day for row in everybody.steps] == sorted({row.day for row in everybody.steps})


def test_lots_of_cases_stored_at_once_are_independent() -> None:
    ids = np.array([list(new_row()["id"].bytes) for _ in range(2000)], dtype=np.uint8)
    lots = draw_lots(replace(EvaluationDataset.empty(["a", "b"], 2000), case_id=ids), np.arange(2000))
    assert abs(np.corrcoef(lots[1:], lots[:-1])[0, 1]) < 0.15
    assert np.histogram(lots, 4, (0, 1))[0].min() > 400


def fill(context: ServiceContext, per_day: int, days: int, changed_from: int, begin: datetime) -> None:
    """Cases of the days from now on, each read by its first reader within the hour."""
    with context.database.write() as session:
        release = all_releases(session)[0]
        codes = class_codes(release)
        account = session.execute(select(Account.id)).scalars().first()
        policy = session.execute(select(PolicyRow.version)).scalar_one()
        reader = {**new_row(), "name": "reader", "account_id": account}
        session.execute(insert(Annotator), [reader])
        day, label = shifted(days, per_day, changed_from)
        probs = [0.9, *[0.1 / (len(codes) - 1)] * (len(codes) - 1)]
        rows: dict[Any, list[dict[str, Any]]] = {Case: [], CasePrediction: [], Label: [], ReadRequest: []}
        for number in range(day.size):
            stored = begin + timedelta(days=int(day[number]), minutes=number % per_day)
            case = case_row(number, account) | {"created_at": stored, "patient": f"p{number}", "site": None}
            answer = label_row(case["id"], reader["id"], codes[int(label[number])], account)
            answer |= {"created_at": stored + timedelta(minutes=30)}
            request = request_row(answer, 0, policy) | {"due_at": stored + timedelta(days=7)}
            prediction = new_row(case_id=case["id"], release_id=release.id, class_probs=probs)
            prediction |= {"log_concentration": 1.0, "disagreement_prob": 0.2}
            for table, row in zip(rows, (case, prediction, answer, request), strict=True):
                rows[table].append(row)
        for table, values in rows.items():
            session.execute(insert(table), values)


@pytest.fixture
def begin(service: Service) -> datetime:
    """Cases of 36 days to come, of which the last twelve are worse: as a service that runs on would know them."""
    tomorrow = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    fill(service.context, 12, 36, 24, tomorrow)
    service.written_past = True
    return tomorrow


def looked_at(service: Service, at: datetime) -> Any:
    """Metrics at a time, asked about another partition: the alarm is about all cases."""
    service.clock.stopped_at = at
    return service.document("/v1/metrics", partition="calibration")


def test_a_champion_that_became_worse_is_said_first(service: Service, begin: datetime) -> None:
    early, late = (looked_at(service, begin + timedelta(days=days, hours=2)) for days in (24, 37))
    (before,), (after,) = early["score_monitor"], late["score_monitor"]
    assert (before["alarm_on"], before["n_units"], after["n_units"]) == (None, 24 * 12, 36 * 12)
    assert before["warnings"] == []
    day = datetime.fromisoformat(after["alarm_on"]).replace(tzinfo=UTC)
    assert begin + timedelta(days=24) <= day <= begin + timedelta(days=36)
    assert late["warnings"][0] == after["warnings"][0]
    assert "has become worse" in after["warnings"][0]
    assert after["alarm_on"] in after["warnings"][0]
    capital = {step["day"]: step["log10_capital"] for step in after["steps"]}
    assert capital[after["alarm_on"]] >= after["log10_threshold"]
    for step in before["steps"]:
        assert capital[step["day"]] == pytest.approx(step["log10_capital"])
    write_snapshots(service.context)
    assert_snapshots_tell_all(service.context)
    assert service.document("/v1/metrics", partition="calibration") == late


@pytest.mark.slow
def test_the_alarm_is_shown_frozen_and_stays_until_a_champion_is_promoted(service: Service, begin: datetime) -> None:
    (after,) = looked_at(service, begin + timedelta(days=37, hours=2))["score_monitor"]
    shown = report_page(service, partition="calibration")
    assert shown.index("The champion has become worse") < shown.index('class="evidence"')
    appendix = service.get("viewer", "/report/appendix", params={"partition": "calibration"}).text
    assert "Alarm on the champion" in appendix
    chart = service.get("viewer", "/report/numbers/alarm.csv?partition=calibration")
    assert chart.text.splitlines()[0] == "site,day,n_units,log10_capital"
    assert len(chart.text.splitlines()) == 1 + len(after["steps"])
    job = finish_job(service, "/v1/evaluations", partition="all")
    assert job["error"] is None
    assert service.document(f"/v1/evaluations/{job['id']}")["document"]["score_monitor"] == [after]
    # promoted again with a reason, which acknowledges the alarm and begins a reference period
    context = service.context
    service.clock.stopped_at = promoted_at = begin + timedelta(days=30)
    with context.database.write() as session:
        earlier = champion_since(session)
        move_alias(session, context, "admin", "champion", all_releases(session)[0].id, "a new reader, seen", None)
    with context.database.read() as session:
        assert champion_since(session) == promoted_at
    assert earlier is not None
    assert earlier < promoted_at
    again = looked_at(service, begin + timedelta(days=37, hours=2))
    assert [(row["alarm_on"], row["n_units"]) for row in again["score_monitor"]] == [(None, 6 * 12)]
    assert not any("has become worse" in text for text in again["warnings"])


DAY = 86_400
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def answered_cells(seed: int, n: int = 300) -> EvaluationDataset:
    """Cells of few patients, each answered by one of two annotators within some days, or not yet."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(3), n)
    stored = np.sort(MONDAY.timestamp() + rng.uniform(0, 30 * DAY, n))
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


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_unit_is_a_patient_by_the_answers_of_the_first_day(seed: int) -> None:
    columns = answered_cells(seed)
    found = collect_answered_patients(
        columns, stable_name_hash("anna"), MONDAY.timestamp(), MONDAY.timestamp() + 20 * DAY
    )
    expected = []
    for patient in np.unique(columns.cluster):
        mine = [
            row
            for row in np.flatnonzero(columns.cluster == patient)
            if columns.first_annotator[row] == stable_name_hash("anna")
            and columns.first_answered_at[row] < MONDAY.timestamp() + 20 * DAY
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
def test_a_later_look_at_annotators_sees_what_an_earlier_one_saw_and_more(seed: int, weeks: int, more: int) -> None:
    """What is answered late makes no unit of before another one, and the weeks of before stay as they were."""
    columns, names = answered_cells(seed), ["anna", "ben", "nobody"]
    looks = [MONDAY + timedelta(weeks=number, days=2) for number in (weeks, weeks + more)]
    early, late = (compute_reader_drift(known_at(columns, at), names, MONDAY, at) for at in looks)
    after = {row.annotator: row for row in late}
    for row in early:
        assert after[row.annotator].weeks[: len(row.weeks)] == row.weeks
        if row.alarm_on is not None:
            assert after[row.annotator].alarm_on == row.alarm_on


def test_the_week_that_has_not_ended_is_not_looked_at() -> None:
    columns = answered_cells(1)
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
    assert service.document("/v1/reader-drift", "admin") == {"items": []}
    assert "From week to week" not in service.get("admin", "/readers").text
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    monday = today + timedelta(days=7 - today.weekday())
    fill(service.context, 12, 48, 24, monday)
    service.written_past = True
    service.clock.stopped_at = monday + timedelta(days=60)
    assert service.get("viewer", "/v1/reader-drift").status_code == 403
    assert service.get("anna", "/v1/reader-drift").status_code == 403
    (found,) = service.document("/v1/reader-drift", "admin")["items"]
    assert (found["annotator"], found["n_patients"]) == ("reader", 48 * 12)
    assert monday + timedelta(days=24) <= datetime.fromisoformat(found["alarm_on"]).replace(tzinfo=UTC)
    assert "harder to predict" in found["sentence"]
    first, last = found["weeks"][0], found["weeks"][-1]
    assert first["low"] <= 0 <= first["high"]
    assert last["low"] > 0
    page = service.get("admin", "/readers")
    assert page.status_code == 200
    assert found["sentence"] in html.unescape(page.text)
    assert page.text.count('<circle class="mean"') == len(found["weeks"])
