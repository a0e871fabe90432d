"""Days of the laboratory, clocks that are set, and cohorts that enter the metrics a day at a time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from pydantic import ValidationError
from sqlalchemy import select

from app.accounts import people
from app.audit.verify import verify_all
from app.database.tables import AuditEvent
from app.http.days import load_time_zone, start_of_day
from app.metrics.cohort import CohortQuery, build_cohort
from app.metrics.dataset import EvaluationDataset
from app.metrics.queries import LabelRow
from app.recalibration.evidence import exclude_annotator
from app.settings import Settings, read_settings
from tests.app.test_leases import answer_next, classes_of
from tests.app.test_people import first_password
from tests.support.sabotage import undone
from tests.support.service import Service


def moment(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


@pytest.mark.parametrize(
    "zone", ["UTC", "Asia/Kolkata", "Europe/Berlin", "America/Santiago", "America/Havana", "Australia/Lord_Howe"]
)
def test_every_hour_of_two_years_is_in_the_day_that_its_zone_says(zone: str) -> None:
    known, at = load_time_zone(zone), moment("2026-01-01T00:10")
    for _ in range(2 * 366 * 24):
        began = start_of_day(at, known)
        assert began <= at < began + timedelta(hours=25, minutes=1)
        assert began.astimezone(known).date() == at.astimezone(known).date()
        assert (began - timedelta(seconds=1)).astimezone(known).date() < at.astimezone(known).date()
        at += timedelta(hours=1)


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("zone", "read_at", "asked_at", "n"),
    [
        ("UTC", "2027-01-10T23:59", "2027-01-11T00:01", 0),
        ("Europe/Berlin", "2027-01-10T23:30", "2027-01-11T00:30", 1),  # 00:30 and 01:30 of the same day there
        ("Europe/Berlin", "2027-01-10T22:59", "2027-01-10T23:01", 0),
        ("Europe/Berlin", "2027-03-27T23:30", "2027-03-28T21:59", 1),
        ("Europe/Berlin", "2027-03-28T21:59", "2027-03-28T22:01", 0),
        ("Europe/Berlin", "2027-10-30T22:30", "2027-10-31T22:59", 1),
    ],
)
def test_cases_of_today_begin_at_midnight(service: Service, zone: str, read_at: str, asked_at: str, n: int) -> None:
    service.context.settings.timezone = zone
    service.add_cases(2)
    with service.clock.off_by(moment(read_at) - datetime.now(UTC)):
        answer_next(service, "anna", classes_of(service)[0])
    with service.clock.off_by(moment(asked_at) - datetime.now(UTC)):
        page = service.get("anna", "/worklist", headers={"Accept": "text/html"}).text
    assert f"{n} of {n + 1} today" in page


@pytest.mark.parametrize("name", ["Mars/Base", "", "../UTC", "America", "Europe/Berlin\n"])
def test_a_zone_that_does_not_exist_is_named_at_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECONDREAD_TIMEZONE", name)
    with pytest.raises(ValueError, match=r"SECONDREAD_TIMEZONE: there is no time zone .*Europe/Berlin or UTC$"):
        read_settings()
    with pytest.raises(ValidationError):
        Settings()


DAY = timedelta(days=1)


@undone("F10", "a clock that is set back extends no session", people, "SEEN_EVERY", timedelta(days=9999))
@pytest.mark.parametrize("shift", [DAY, -DAY])
def test_a_session_is_not_extended_by_a_clock_that_is_set(service: Service, shift: timedelta) -> None:
    cookie = first_password(service, "anna")

    def status() -> int:
        return int(service.client.get("/worklist", headers=cookie, follow_redirects=False).status_code)

    assert status() == 200
    with service.clock.off_by(timedelta(seconds=-30)):
        assert status() == 200  # a clock that is corrected a little
    with service.clock.off_by(shift):
        assert status() in {303, 401}


def test_a_clock_that_is_a_day_behind_while_a_release_is_judged_changes_no_case() -> None:
    """Without an annotator the same cases are judged with the same weights, but for what that annotator answered."""
    n, rng = 40, np.random.default_rng(0)
    ids = rng.integers(0, 255, (n, 16)).astype(np.uint8)
    columns = replace(
        EvaluationDataset.empty(["a", "b"], n), case_id=ids, cluster=np.arange(n), evaluation=np.ones(n, dtype=bool)
    )
    at = (datetime.now(UTC) + DAY).timestamp()
    due = at - 1
    columns.pi[:], columns.n_planned[:] = 1.0, 2
    columns.disagreement_probs[:] = rng.random(n)
    columns.first_class[1:], columns.label_counts[1:, 0] = 0, 2
    columns.first_open_until[:], columns.open_until[:] = -np.inf, -np.inf
    columns.first_class[0], columns.first_open_until[0], columns.open_until[0] = -1, due, due
    whole = build_cohort(columns, CohortQuery(), at)
    rows = [
        LabelRow(case_id, annotator, "a", False, 1 + second, "planned", datetime.now(UTC))
        for case_id in whole.columns.ids()[1:]
        for second, annotator in enumerate(("anna", "ben"))
    ]
    less = exclude_annotator(whole, rows, "nobody")
    assert whole.columns.ids() == less.columns.ids()
    np.testing.assert_array_equal(whole.columns.label_counts, less.columns.label_counts)
    assert whole.weight is not None
    assert whole.weight2 is not None
    np.testing.assert_array_equal(whole.weight, less.weight)
    np.testing.assert_array_equal(whole.weight2, less.weight2)


@pytest.mark.both_databases
def test_labels_and_audit_keep_their_order(service: Service) -> None:
    case = service.add_case()["id"]
    with service.clock.off_by(DAY):
        first = service.outside_label(case, "reader", "blast")
    with service.clock.off_by(-DAY):
        body = {"label": "lymphocyte", "blind": True, "reason": "a slip"}
        revised = service.post("outside", f"/v1/labels/{first['label']['id']}/revisions", json=body)
    assert revised.status_code == 201, revised.text
    with service.context.database.read() as session:
        events = session.execute(select(AuditEvent).order_by(AuditEvent.sequence)).scalars().all()
        assert verify_all(session, service.context).faults == []
    assert [event.action for event in events][-3:] == ["case.add", "label.add", "label.revise"]
    assert events[-1].created_at < datetime.now(UTC) < events[-2].created_at


DAY_SECONDS = 86_400.0


def columns(*, drawn: bool) -> EvaluationDataset:
    """Four cases due on one day, two of them read twice, and one that is due on the next."""
    data = EvaluationDataset.empty(["a", "b"], 5)
    data.case_id[:, 15] = np.arange(5)
    data.cluster[:] = np.arange(5)
    data.evaluation[:] = True
    data.pi[:] = 1.0
    data.class_probs[:] = 0.5
    data.disagreement_probs[:] = 0.5
    data.n_planned[:] = [1, 1, 2, 2, 1]
    data.drawn[:] = drawn
    data.first_due_at[:] = 10 * DAY_SECONDS + np.array([1.0, 2.0, 3.0, 4.0, DAY_SECONDS])
    data.first_class[:], data.label_counts[:, 0] = 0, data.n_planned
    for row, n in enumerate(data.n_planned):
        data.said[row, :n] = 0
    return data


def still_open(data: EvaluationDataset, row: int, ordinal: int) -> None:
    due = float(data.first_due_at[row])
    data.open_until[row] = due
    data.label_counts[row, 0] -= 1
    if ordinal == 1:
        data.first_open_until[row], data.first_class[row] = due, -1


def cohort(data: EvaluationDataset, at: float) -> tuple[int, int, list[float]]:
    """Cases in the cohort, cases left out, and weights of order 2."""
    found = build_cohort(data, CohortQuery(), at)
    assert found.weight2 is not None
    return len(found.columns), found.n_open, found.weight2.tolist()


def test_an_open_first_read_keeps_its_day_out_until_it_is_due() -> None:
    data = columns(drawn=True)
    still_open(data, 1, 1)
    assert cohort(data, 9 * DAY_SECONDS)[:2] == (1, 4)
    assert cohort(data, 10 * DAY_SECONDS + 3)[:2] == (5, 0)  # due without an answer: non-response
    assert build_cohort(data, CohortQuery(), 10 * DAY_SECONDS + 3).first is not None


def test_where_nobody_is_drawn_each_case_stands_for_itself() -> None:
    data = columns(drawn=False)
    still_open(data, 1, 1)
    assert cohort(data, 9 * DAY_SECONDS)[:2] == (4, 1)


def test_an_open_second_read_keeps_the_pairs_of_its_day_out() -> None:
    data = columns(drawn=True)
    assert cohort(data, 9 * DAY_SECONDS)[2][2:4] == [1.0, 1.0]
    still_open(data, 3, 2)
    n, n_open, weights = cohort(data, 9 * DAY_SECONDS)
    assert (n, n_open, sum(weights)) == (5, 0, 0.0)
    found = build_cohort(data, CohortQuery(), 9 * DAY_SECONDS).second
    assert found is not None
    assert sum(cell.waiting for cell in found.cells) == 2
    assert cohort(data, 10 * DAY_SECONDS + 4)[2][2:4] == [2.0, 0.0]


def test_a_correction_of_an_overdue_answer_does_not_hold_its_day_up() -> None:
    data = columns(drawn=True)
    data.first_open_until[0] = data.open_until[0] = np.inf  # may still be corrected
    assert cohort(data, 9 * DAY_SECONDS)[:2] == (1, 4)
    assert cohort(data, 11 * DAY_SECONDS)[:2] == (4, 1)
