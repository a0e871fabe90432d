"""The report: made by the worker, one job at a time; its parts add up; its sentences and charts say what is so."""

import csv
import io
import re
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, update

from app.database.tables import Job, PublishedReportRow, ReportTargets
from app.metrics.schemas import BinOut
from app.reports import publishing, report
from app.reports.charts import draw_reliability
from app.reports.statistics import estimate_duration
from tests.support.jobs import work_off
from tests.support.reports import make_reports, report_page
from tests.support.service import Service, cell_png, collect

ALL = {"partition": "all", "weighting": "none"}


def n_jobs(service: Service) -> int:
    with service.context.database.read() as session:
        return session.execute(select(func.count()).where(Job.kind == "report")).scalar_one()


def losses(page: str) -> dict[str, tuple[float, int]]:
    """Value and number of cases of each loss that the page shows, by its symbol."""
    pattern = (
        r'<th scope="row"><b>(\w+)</b>.*?</th><td class="number">(−?[\d.]+).*?<td class="number">([\d,]+)</td></tr>'
    )
    found = re.findall(pattern, page)
    return {name: (float(value.replace("−", "-")), int(n.replace(",", ""))) for name, value, n in found}


@pytest.mark.parametrize("asked", [{}, ALL, {"partition": "calibration"}])
def test_the_parts_of_the_loss_add_up_on_the_page(service: Service, asked: dict[str, str]) -> None:
    collect(service, [cell_png(number) for number in range(24)], patients=True)
    shown = losses(report_page(service, **asked))
    whole, calibration, dispersion = (shown[name] for name in ("EL", "CL", "DL"))
    assert round(calibration[0] + dispersion[0], 4) == whole[0]
    assert len({n for _, n in (whole, calibration, dispersion)}) == 1  # one cohort
    table = service.get("viewer", "/report/numbers/losses.csv", params=asked).text
    exact = {row["name"]: float(row["value"]) for row in csv.DictReader(io.StringIO(table))}
    assert exact["CL"] + exact["DL"] == pytest.approx(exact["EL"], abs=1e-12)
    assert all(abs(exact[name] - shown[name][0]) <= 1.01e-4 for name in exact)


def test_a_page_request_never_computes_a_report(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    collect(service, [cell_png(number) for number in range(8)], patients=True)
    made: list[Any] = []
    report_on = report.build_report

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return report_on(*arguments)

    monkeypatch.setattr(publishing, "build_report", counted)
    for path in ("/report", "/report?partition=all", "/policy"):
        page = service.get("viewer", path)
        assert page.status_code == 200
        assert "is being made" in page.text
        assert "data-making" in page.text
    assert service.get("viewer", "/report/numbers/classes.csv").status_code == 404
    assert made == []
    assert n_jobs(service) == 2  # the policy's page asks what the report's page asks by default
    assert work_off(service.context) == 2
    assert len(made) == 2
    for path in ("/report", "/report?partition=all", "/policy"):
        page = service.get("viewer", path)
        assert "is being made" not in page.text
        assert "as of " in page.text
    assert (len(made), n_jobs(service)) == (2, 2)


def test_a_report_is_made_anew_once_something_has_changed_and_not_too_often(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(8)], patients=True)
    page = report_page(service, **ALL)
    assert "newer labels" not in page
    service.clock.ahead = timedelta(hours=1)
    service.get("viewer", "/report", params=ALL)
    with service.context.database.write() as session:
        session.execute(update(PublishedReportRow).values(job_id=None))
    before = n_jobs(service)
    service.get("viewer", "/report", params=ALL)
    assert n_jobs(service) == before  # nothing has changed, whatever the time
    case = service.get("viewer", "/v1/cases").json()["items"][0]
    service.outside_label(case["id"], "somebody else", case["prediction"]["classes"][0])
    service.clock.ahead = timedelta()
    assert "newer labels" in service.get("viewer", "/report", params=ALL).text
    assert n_jobs(service) == before  # changed, too early
    service.clock.ahead = timedelta(hours=1)
    for _ in range(3):
        service.get("viewer", "/report", params=ALL)
    assert n_jobs(service) == before + 1
    with service.context.database.write() as session:  # a report that takes an hour is not made every hour
        session.execute(update(PublishedReportRow).values(job_id=None, seconds=3600.0))
    service.get("viewer", "/report", params=ALL)
    assert n_jobs(service) == before + 1
    make_reports(service)
    assert "newer labels" not in service.get("viewer", "/report", params=ALL).text


def test_a_report_that_fails_says_so_and_is_tried_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.get("viewer", "/report")

    def fail(*_: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(publishing, "build_report", fail)
    work_off(service.context)
    assert "could not be made" in service.get("viewer", "/report").text
    assert n_jobs(service) == 1
    service.clock.ahead = timedelta(minutes=5)
    service.get("viewer", "/report")
    assert n_jobs(service) == 2
    monkeypatch.undo()
    work_off(service.context)
    assert "as of" in service.get("viewer", "/report").text


def test_lists_of_jobs_leave_out_what_pages_ask_for(service: Service) -> None:
    service.get("viewer", "/report")
    assert n_jobs(service) == 1
    assert service.get("viewer", "/v1/jobs").json()["items"] == []


def test_a_site_that_no_case_has_is_refused(service: Service) -> None:
    assert service.get("viewer", "/report", params={"site": "nowhere"}).status_code == 422
    assert n_jobs(service) == 0


def test_targets_are_set_by_admins_and_only_added_to(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(12)], patients=True)
    assert "Target: at least 60 %" in report_page(service, **ALL)
    form = {"disagreement_gap": "7,5", "leading_gap": "5", "caught": "72", "agreement": "80", "hours": "24"}
    assert service.call("viewer", "POST", "/report/targets", data=form | {"reason": "ours"}).status_code == 403
    assert service.call("admin", "POST", "/report/targets", data=form).status_code == 422  # no reason
    answer = service.call("admin", "POST", "/report/targets", data=form | {"reason": "ours"}, follow_redirects=False)
    assert answer.status_code == 303
    page = service.get("viewer", "/report", params=ALL).text  # at once, of the same report
    for target in ("within 7.5 points", "at least 72 %", "within 24 hours"):
        assert f"Target: {target}" in page
    again = service.call("admin", "POST", "/report/targets", data=form | {"reason": "ours"})
    assert again.status_code == 409
    for wrong in ({"caught": "many"}, {"hours": "0"}, {"agreement": "101"}):
        assert service.call("admin", "POST", "/report/targets", data=form | wrong).status_code == 422
    with service.context.database.read() as session:
        assert session.execute(select(func.count(ReportTargets.id))).scalar_one() == 1
    events = service.get("admin", "/v1/audit-events").json()["items"]
    (event,) = [event for event in events if event["action"] == "targets.change"]
    assert event["details"]["caught"] == [0.6, 0.72]
    assert event["reason"] == "ours"


@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_targets_are_set_over_the_api_where_nobody_else_did_meanwhile(service: Service) -> None:
    url = "/v1/report-targets"
    default = service.get("viewer", url)
    assert (default.headers["ETag"], default.json()["version"], default.json()["caught"]) == ('"0"', 0, 0.6)
    body = {
        "disagreement_gap": 0.075,
        "leading_gap": 0.05,
        "caught": 0.7,
        "agreement": 0.8,
        "hours": 24,
        "reason": "ours",
    }
    assert service.call("admin", "PUT", url, json=body).status_code == 428
    assert service.call("admin", "PUT", url, json=body, headers={"If-Match": '"1"'}).status_code == 412
    answer = service.call("admin", "PUT", url, json=body, headers={"If-Match": '"0"'})
    assert (answer.status_code, answer.headers["ETag"]) == (200, '"1"')
    assert service.get("viewer", url).json() == answer.json()
    assert service.call("admin", "PUT", url, json=body, headers={"If-Match": '"1"'}).status_code == 409
    assert service.call("admin", "PUT", url, json=body | {"caught": 1.2}, headers={"If-Match": "*"}).status_code == 422
    assert service.call("admin", "PUT", url, json=body | {"reason": ""}, headers={"If-Match": "*"}).status_code == 422
    assert service.call("viewer", "PUT", url, json=body, headers={"If-Match": "*"}).status_code == 403


def bin_of(n: int, at: float) -> BinOut:
    low = int(at * 10) / 10
    return BinOut(low=low, high=low + 0.1, n=n, mean_prob=at, mean_freq=at, freq_low=None, freq_high=None)


@pytest.mark.parametrize("sizes", [(5, 1, 4), (1, 1, 1), (9, 9, 9), (1, 5, 5), (2,), ()])
def test_no_line_goes_through_a_single_case(sizes: tuple[int, ...]) -> None:
    plot = draw_reliability([bin_of(n, 0.05 + place / 10) for place, n in enumerate(sizes)], "disagreement")
    single = {mark.x for mark in plot.marks if mark.single}
    assert len(plot.marks) == len(sizes)
    assert len(single) == sizes.count(1)
    for line in plot.segments:
        assert not {line.x1, line.x2} & single
    assert len(plot.segments) == sum(one > 1 and two > 1 for one, two in pairwise(sizes))


def test_what_is_open_counts_as_long_as_it_has_been() -> None:
    hours = np.array([1.0, 2.0, 3.0, 4.0, 100.0, 100.0])
    everything = estimate_duration(hours, np.ones(6, dtype=bool))
    assert (everything.median, everything.nine_tenths) == (3.0, 100.0)
    undone = estimate_duration(hours, np.array([True] * 4 + [False] * 2))
    assert (undone.median, undone.nine_tenths, undone.n_open) == (3.0, None, 2)
    # those that just began tell nothing of how long others take
    young = estimate_duration(np.array([1.0, 2.0, 3.0, 4.0, 0.5, 0.5]), np.array([True] * 4 + [False] * 2))
    assert (young.median, young.nine_tenths) == (2.0, 4.0)
    nothing = estimate_duration(np.zeros(0), np.zeros(0, dtype=bool))
    assert (nothing.n, nothing.median, nothing.nine_tenths) == (0, None, None)


def test_the_interval_of_a_duration_holds_its_promise() -> None:
    rng = np.random.default_rng(5)
    truth, held = 10 * np.log(10), 0
    for _ in range(300):
        times, limit = rng.exponential(10.0, 150), rng.uniform(5, 80, 150)
        found = estimate_duration(np.minimum(times, limit), times <= limit)
        held += (found.low or 0) <= truth <= (found.high or np.inf)
    assert 0.92 <= held / 300 <= 0.98
