"""«Today» is the laboratory's day: from its midnight on, also when clocks change."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from app.http.days import load_time_zone, start_of_day
from app.settings import Settings, read_settings
from tests.app.test_leases import classes_of, commit, lease
from tests.support.service import Service, cell_png


def moment(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


@pytest.mark.parametrize(
    ("zone", "at", "began"),
    [
        ("UTC", "2026-11-23T23:59", "2026-11-23T00:00"),
        ("UTC", "2026-11-24T00:00", "2026-11-24T00:00"),
        ("Europe/Berlin", "2026-11-23T22:59", "2026-11-22T23:00"),
        ("Europe/Berlin", "2026-11-23T23:00", "2026-11-23T23:00"),
        ("Asia/Tokyo", "2026-11-23T15:00", "2026-11-23T15:00"),
        ("America/Los_Angeles", "2026-11-24T07:59", "2026-11-23T08:00"),
        ("Asia/Kolkata", "2026-11-23T18:30", "2026-11-23T18:30"),
        # a day of 23 hours, and one of 25
        ("Europe/Berlin", "2027-03-28T21:59", "2027-03-27T23:00"),
        ("Europe/Berlin", "2027-03-28T22:00", "2027-03-28T22:00"),
        ("Europe/Berlin", "2027-10-31T22:59", "2027-10-30T22:00"),
        ("Europe/Berlin", "2027-10-31T23:00", "2027-10-31T23:00"),
        # midnight itself is skipped, or comes twice
        ("America/Santiago", "2026-09-06T12:00", "2026-09-06T04:00"),
        ("America/Havana", "2026-11-01T05:30", "2026-11-01T04:00"),
    ],
)
def test_a_day_begins_at_midnight_of_its_zone(zone: str, at: str, began: str) -> None:
    assert start_of_day(moment(at), load_time_zone(zone)) == moment(began)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Santiago", "America/Havana", "Australia/Lord_Howe"])
def test_every_hour_of_two_years_is_in_the_day_that_its_zone_says(zone: str) -> None:
    known, at = load_time_zone(zone), moment("2026-01-01T00:10")
    for _ in range(2 * 366 * 24):
        began = start_of_day(at, known)
        assert began <= at < began + timedelta(hours=25, minutes=1)
        assert began.astimezone(known).date() == at.astimezone(known).date()
        assert (began - timedelta(seconds=1)).astimezone(known).date() < at.astimezone(known).date()
        at += timedelta(hours=1)


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
def test_cases_of_today_are_those_since_the_laboratorys_midnight(
    service: Service, zone: str, read_at: str, asked_at: str, n: int
) -> None:
    service.context.settings.timezone = zone
    for number in range(2):
        service.add_case(f"case {number}", cell_png(number))
    with service.clock.off_by(moment(read_at) - datetime.now(UTC)):
        held = lease(service, "anna")
        assert held is not None
        assert commit(service, "anna", held, classes_of(service)[0]).status_code == 201
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
