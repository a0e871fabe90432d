"""Quality of specimens: days against expectation, and the page with what the last night found."""

import uuid
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select

from app.database.tables import ReleaseRow, SpecimenKnowledge, SpecimenResult
from app.maintenance.erasure import erase_patient_everywhere
from app.specimens.quality import DailyShares, choose_reference, compare_days
from app.specimens.service import daily_shares
from tests.app.test_specimens import add_specimen
from tests.support.service import Service

DAY = date(2026, 3, 1)


def days_of(*values: tuple[int, float]) -> list[tuple[date, float]]:
    return [(DAY + timedelta(days=day), share) for day, share in values]


#: 40 specimens on 20 days, with a mean of .1 and a standard deviation close to .01.
BEFORE = days_of(*[(day, 0.1 + sign * 0.009874) for day in range(20) for sign in (-1, 1)])


def test_days_are_judged_by_two_rules_of_westgard() -> None:
    reference = choose_reference(BEFORE, DAY + timedelta(days=20))
    assert reference is not None
    assert (reference.before, reference.n_specimens, reference.first, reference.last) == (
        *(True, 40, DAY),
        DAY + timedelta(days=19),
    )
    assert (reference.mean, reference.sd) == (pytest.approx(0.1), pytest.approx(0.01, rel=1e-3))
    shares = [0.11, 0.125, 0.122, 0.1, 0.131, 0.075, 0.125, 0.079]
    rows = compare_days(days_of(*[(30 + day, share) for day, share in enumerate(shares)]), reference)
    assert [row.z for row in rows] == pytest.approx([1, 2.5, 2.2, 0, 3.1, -2.5, 2.5, -2.1], abs=0.01)
    assert [row.result for row in rows] == ["", "warning", "out 2-2s", "", "out 1-3s", "warning", "warning", "warning"]


def test_the_limits_of_a_day_narrow_with_the_root_of_its_specimens() -> None:
    reference = choose_reference(BEFORE, DAY + timedelta(days=20))
    one, four = (compare_days(days_of(*[(30, 0.112)] * n), reference)[0] for n in (1, 4))
    assert (one.n_specimens, one.result, four.n_specimens, four.result) == (1, "", 4, "warning")
    assert one.z is not None
    assert four.z == pytest.approx(2 * one.z)


def test_the_reference_is_the_first_twenty_days_if_few_specimens_came_before() -> None:
    reference = choose_reference([*BEFORE, *days_of((25, 0.9))], DAY + timedelta(days=5))
    assert reference is not None
    assert (reference.before, reference.n_specimens) == (False, 40)
    assert choose_reference(BEFORE[:19], DAY) is None
    (row,) = compare_days(days_of((1, 0.3)), None)
    assert (row.mean, row.z, row.result) == (0.3, None, "")
    same = choose_reference(days_of(*[(day, 0.2) for day in range(20)]), DAY + timedelta(days=30))
    assert same is not None
    assert compare_days(days_of((30, 0.2)), same)[0].result == ""


def put_share(service: Service, name: str, at: datetime, share: float, **fields: str) -> None:
    """Add a specimen with shares of two groups as the worker stores them."""
    specimen_id = add_specimen(service, name, collected_at=at.isoformat(), **fields)
    groups = [{"group": "blasts", "slide": {"share": share}}, {"group": "others", "slide": {"share": 1 - share}}]
    stored = {"basis": "", "document": {"groups": groups}, "cells": [], "class_probs": b""}
    with service.context.database.write() as session:
        session.add(SpecimenResult(specimen_id=uuid.UUID(specimen_id), **stored))


def shown(service: Service, now: datetime, **asked: str) -> DailyShares:
    with service.context.database.read() as session:
        west = daily_shares(session, now, ZoneInfo("America/New_York"), 30, **asked)
        berlin = daily_shares(session, now, ZoneInfo("Europe/Berlin"), 30, **asked)
        assert west.n_specimens == berlin.n_specimens
        return berlin


@pytest.mark.both_databases
def test_a_day_is_the_laboratorys_and_an_erased_specimen_has_none(service: Service) -> None:
    now = datetime(2026, 6, 30, 12, tzinfo=UTC)
    put_share(service, "late", datetime(2026, 6, 20, 22, 30, tzinfo=UTC), 0.1, site="north")
    put_share(service, "early", datetime(2026, 6, 21, 21, 30, tzinfo=UTC), 0.3, site="south")
    put_share(service, "old", datetime(2026, 5, 2, tzinfo=UTC), 0.5)
    put_share(service, "unknown", datetime(1, 1, 1, tzinfo=UTC), 0.9)  # as some programs write it
    put_share(service, "future", datetime(2026, 7, 2, tzinfo=UTC), 0.9)
    put_share(service, "gone", datetime(2026, 6, 22, tzinfo=UTC), 0.9, patient="P2", site="west")
    add_specimen(service, "empty")
    erase_patient_everywhere(service.context, "admin", "P2", "asked for")
    found = shown(service, now)
    assert [(row.day, row.n_specimens, row.mean) for row in found.days] == [(date(2026, 6, 21), 2, pytest.approx(0.2))]
    assert (found.first, found.last, found.n_specimens) == (date(2026, 6, 1), date(2026, 6, 30), 3)
    assert (found.sites, found.groups, found.group, found.reference) == (
        *(["north", "south"], ["blasts", "others"], "blasts"),
        None,
    )
    assert [row.mean for row in shown(service, now, group="others", site="south").days] == [pytest.approx(0.7)]
    assert shown(service, now, group="not one").group == "blasts"


def test_the_page_marks_days_that_are_out(service: Service) -> None:
    now = service.clock()
    for number in range(45):
        share = {2: 0.9, 3: 0.1}.get(number, 0.2 + 0.01 * (number % 3))
        put_share(service, f"S-{number}", now - timedelta(days=number), share, site=("north", "south")[number > 43])
    page = service.get("viewer", "/report/specimens").text
    assert page.count('<circle class="mark out 1-3s"') == 2
    assert "blasts, 30 days with specimens: 2 out, 0 with a warning." in page
    assert "These are the first 20 days" in page
    assert "<option>north</option>" in page
    assert '<a href="/report/specimens" aria-current="page">Specimens</a>' in page
    page = service.get("viewer", "/report/specimens", params={"group": "others", "days": "90"}).text
    assert "others, 45 days" in page
    assert f"{(now - timedelta(days=2)).date()}: mean share 10.0%" in page
    assert "The chart needs at least 20 specimens as reference; there is 1." in (
        service.get("viewer", "/report/specimens", params={"site": "south", "days": "90"}).text
    )
    report = service.get("viewer", "/report", params={"weighting": "none"}).text
    assert '<a href="/report/specimens">' in report


def put_knowledge(service: Service, n: int, tilt: float = 0.3) -> None:
    """What a check of some specimens would have stored."""
    bands = [{"low": 0.0, "high": 0.05, "n_specimens": n, "n_covered": n - 1}]
    check = {"group": "blasts", "n_specimens": n, "n_covered": n - 1, "by_share": bands}
    known = {"tilt": tilt, "shift": 0.2, "n_specimens": n, "tilt_interval": [0.1, 0.5]}
    groups = {"blasts": known | {"check": check | {"overdispersion": 1.75, "shift": 0.2}}}
    release_id = service.scalars(select(ReleaseRow.id))[0]
    service.written_past = True
    with service.context.database.write() as session:
        session.add(SpecimenKnowledge(version=n, release_id=release_id, kappa=2.0, groups=groups))


def test_the_page_shows_what_the_last_night_found_or_what_is_needed(service: Service) -> None:
    page = service.get("viewer", "/report/specimens").text
    assert "No specimen has a share yet." in page
    assert "the nightly check needs specimens of which every cell has a final blinded label" in page
    assert service.get("anna", "/report/specimens").status_code == 403
    put_knowledge(service, 8)
    page = service.get("viewer", "/report/specimens").text
    assert "Fewer than 20 specimens are completely read (8)" in page
    assert "1.75" not in page
    assert "0.10 to 0.50" in page
    assert "two thirds of annotators report 8 to 13%" in page
    put_knowledge(service, 40, tilt=0.0)
    page = service.get("viewer", "/report/specimens").text
    assert "Fewer than 20" not in page
    assert "1.75" in page
    assert "no difference found" in page
    assert page.count('<td class="number">87 to 100%</td>') == 2
