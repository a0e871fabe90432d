"""The report, live and frozen: made by the worker, its parts, sentences, charts, targets and annex of annotators."""

import csv
import io
import re
from datetime import timedelta
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlencode
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import func, select, update

from app.database.tables import Job, PublishedReportRow, ReadRequest, ReportTargets, utc_now
from app.http.models import MetricOut
from app.metrics.cohort import Cohort, CohortQuery, build_cohort
from app.metrics.dataset import EvaluationDataset
from app.metrics.schemas import BinOut
from app.reports import publishing, report
from app.reports.charts import ReadersAnnex, build_readers_annex, draw_reliability
from app.reports.publishing import read_published_report
from app.reports.report import STYLE, build_report, compare_with_last_release
from app.reports.schemas import DurationOut, FindingsOut, ReportBody, SaidOut, SecondReadsOut
from app.reports.second_reads import RequestedReads
from app.reports.sentences import VERDICTS, doubt_triage, write_report_sentences
from app.reports.statistics import (
    SHARES,
    compute_findings,
    estimate_duration,
    rank_confused_pairs,
    thresholds_for_shares,
)
from app.reports.targets import TargetsOut
from ml.util.arrays import FloatArray
from tests.app.test_leases import set_policy
from tests.support.jobs import finish_job, work_off
from tests.support.reports import make_reports, report_page
from tests.support.service import Service, cell_png, collect, raising, store
from tests.support.tiny_release import edit_release

ALL = {"partition": "all", "weighting": "none"}
HTML = {"Accept": "text/html"}


def n_jobs(service: Service) -> int:
    return service.one(select(func.count()).where(Job.kind == "report"))


def losses(page: str) -> dict[str, tuple[float, int]]:
    """Value and number of cases of each loss that the page shows, by its symbol."""
    pattern = (
        r'<th scope="row"><b>(\w+)</b>.*?</th><td class="number">(−?[\d.]+).*?<td class="number">([\d,]+)</td></tr>'
    )
    found = re.findall(pattern, page)
    return {name: (float(value.replace("−", "-")), int(n.replace(",", ""))) for name, value, n in found}


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{}, ALL, {"partition": "calibration"}])
def test_the_parts_of_the_loss_add_up_on_the_page(service: Service, asked: dict[str, str]) -> None:
    collect(service, [cell_png(number) for number in range(24)], patients=True)
    shown = losses(report_page(service, path="/report/appendix", **asked))
    whole, calibration, dispersion = (shown[name] for name in ("EL", "CL", "DL"))
    assert round(calibration[0] + dispersion[0], 4) == whole[0]
    assert len({n for _, n in (whole, calibration, dispersion)}) == 1  # one cohort
    table = service.get("viewer", "/report/numbers/losses.csv", params=asked).text
    exact = {row["name"]: float(row["value"]) for row in csv.DictReader(io.StringIO(table))}
    assert exact["CL"] + exact["DL"] == pytest.approx(exact["EL"], abs=1e-12)
    assert all(abs(exact[name] - shown[name][0]) <= 1.01e-4 for name in exact)


@pytest.mark.slow
def test_a_page_request_never_computes_a_report(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    collect(service, [cell_png(number) for number in range(8)], patients=True)
    made = Mock(wraps=report.build_report)
    monkeypatch.setattr(publishing, "build_report", made)
    for path in ("/report", "/report?partition=all", "/policy"):
        page = service.get("viewer", path)
        assert page.status_code == 200
        assert "is being generated" in page.text
        assert "data-making" in page.text
    assert service.get("viewer", "/report/numbers/classes.csv").status_code == 404
    assert n_jobs(service) == 2  # the policy's page asks what the report's page asks by default
    assert made.call_count == 0
    assert work_off(service.context) == 2
    for path in ("/report", "/report?partition=all", "/policy"):
        page = service.get("viewer", path)
        assert "is being generated" not in page.text
        assert "as of " in page.text
    assert (made.call_count, n_jobs(service)) == (2, 2)


def test_a_report_is_made_anew_once_something_has_changed_and_not_too_often(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(8)], patients=True)
    assert "newer labels" not in report_page(service, **ALL)
    service.clock.ahead = timedelta(hours=1)
    service.get("viewer", "/report", params=ALL)
    service.change(update(PublishedReportRow).values(job_id=None))
    before = n_jobs(service)
    service.get("viewer", "/report", params=ALL)
    assert n_jobs(service) == before  # nothing has changed, whatever the time
    case = service.document("/v1/cases")["items"][0]
    service.outside_label(case["id"], "somebody else", case["prediction"]["classes"][0])
    service.clock.ahead = timedelta()
    assert "newer labels" in service.get("viewer", "/report", params=ALL).text
    assert n_jobs(service) == before  # changed, too early
    service.clock.ahead = timedelta(hours=1)
    for _ in range(3):
        service.get("viewer", "/report", params=ALL)
    assert n_jobs(service) == before + 1
    service.change(update(PublishedReportRow).values(job_id=None, seconds=3600.0))
    service.get("viewer", "/report", params=ALL)
    assert n_jobs(service) == before + 1
    make_reports(service)
    assert "newer labels" not in service.get("viewer", "/report", params=ALL).text


@pytest.mark.parametrize("rule", ["capacity", "graded"])
def test_a_report_by_a_daily_rule_follows_the_threshold_of_the_day(service: Service, rule: str) -> None:
    collect(service, [cell_png(number) for number in range(24)], patients=True)
    set_policy(service, rule=rule, threshold=None, capacity_per_day=12)
    assert "Not yet available: too few earlier cells for a threshold." in report_page(service, **ALL)
    service.clock.ahead = timedelta(days=1)
    assert "newer labels" in service.get("viewer", "/report", params=ALL).text
    assert re.search(r"Second reads of \d+% of the cells catch", report_page(service, **ALL))
    assert "newer labels" not in service.get("viewer", "/report", params=ALL).text


def test_a_report_that_fails_says_so_and_is_tried_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.get("viewer", "/report")
    monkeypatch.setattr(publishing, "build_report", raising(OSError("no space left")))
    work_off(service.context)
    assert "The report failed" in service.get("viewer", "/report").text
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
    assert service.document("/v1/jobs")["items"] == []
    assert service.get("viewer", "/report", params={"site": "nowhere"}).status_code == 422  # a site that no case has
    assert n_jobs(service) == 1


def test_targets_are_set_by_admins_and_only_added_to(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(12)], patients=True)
    assert "Target: at least 60%" in report_page(service, **ALL)
    form = {"disagreement_gap": "7,5", "leading_gap": "5", "caught": "62.5", "agreement": "99.6", "hours": "80.4"}
    assert service.call("viewer", "POST", "/report/targets", data=form | {"reason": "ours"}).status_code == 403
    assert service.call("admin", "POST", "/report/targets", data=form).status_code == 422  # no reason
    (sent,) = re.findall(r'formaction="([^"]*)"', report_page(service, "admin", **ALL))
    refused = service.call("admin", "POST", unescape(sent), data=form, headers=HTML)
    assert 'value="none" selected' in refused.text
    answer = service.call("admin", "POST", unescape(sent), data=form | {"reason": "ours"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/report?partition=all&weighting=none")
    page = service.get("viewer", "/report", params=ALL).text  # at once, of the same report
    for target in ("within 7.5 points", "at least 62.5%", "at least 99.6%", "within 80.4 hours"):
        assert f"Target: {target}" in page
    again = service.call("admin", "POST", "/report/targets", data=form | {"reason": "ours"})
    assert again.status_code == 409
    assert service.call("admin", "POST", "/report/targets?partition=none", data=form, headers=HTML).status_code == 422
    for wrong in ({"caught": "many"}, {"hours": "0"}, {"agreement": "101"}):
        assert service.call("admin", "POST", "/report/targets", data=form | wrong).status_code == 422
    assert service.one(select(func.count(ReportTargets.id))) == 1
    (event,) = service.document("/v1/audit-events", "admin", action="targets.change")["items"]
    assert (event["details"]["caught"], event["reason"]) == ([0.6, 0.625], "ours")


@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_targets_are_set_over_the_api_where_nobody_else_did_meanwhile(service: Service) -> None:
    url = "/v1/report-targets"
    default = service.get("viewer", url)
    assert (default.headers["ETag"], default.json()["version"], default.json()["caught"]) == ('"0"', 0, 0.6)
    body: dict[str, Any] = {"disagreement_gap": 0.075, "leading_gap": 0.05, "caught": 0.7, "agreement": 0.8}
    body |= {"hours": 24, "reason": "ours"}
    assert service.call("admin", "PUT", url, json=body).status_code == 428
    assert service.call("admin", "PUT", url, json=body, headers={"If-Match": '"1"'}).status_code == 412
    answer = service.call("admin", "PUT", url, json=body, headers={"If-Match": '"0"'})
    assert (answer.status_code, answer.headers["ETag"]) == (200, '"1"')
    assert service.document(url) == answer.json()
    for who, changed, match, status in (
        ("admin", {}, '"1"', 409),
        ("admin", {"caught": 1.2}, "*", 422),
        ("admin", {"reason": ""}, "*", 422),
        ("viewer", {}, "*", 403),
    ):
        refused = service.call(who, "PUT", url, json=body | changed, headers={"If-Match": match})
        assert refused.status_code == status


def bin_of(n: int, at: float) -> BinOut:
    low = int(at * 10) / 10
    return BinOut(low=low, high=low + 0.1, n=n, mean_prob=at, mean_freq=at, freq_low=None, freq_high=None)


@pytest.mark.parametrize("sizes", [(5, 1, 4), (1, 1, 1), (9, 9, 9), (1, 5, 5, 9, 6), (2,), ()])
def test_a_point_stands_for_five_cells_and_three_points_make_a_chart(sizes: tuple[int, ...]) -> None:
    plot = draw_reliability([bin_of(n, 0.05 + place / 10) for place, n in enumerate(sizes)], "disagreement")
    n_points = sum(n >= 5 for n in sizes)
    assert len(plot.marks) == n_points
    assert len(plot.segments) == max(n_points - 1, 0)
    assert plot.is_worth_drawing == (n_points >= 3)
    if plot.marks:  # the points fill their axes
        assert max(mark.x for mark in plot.marks) >= 50
        assert {tick.text for tick in plot.x_ticks} == {tick.text for tick in plot.y_ticks}


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


def frozen_page(service: Service, question: dict[str, str]) -> str:
    """What the file of a new frozen evaluation holds."""
    job = finish_job(service, "/v1/evaluations", **question)
    answer = service.get("viewer", f"/v1/evaluations/{job['id']}", headers={"Accept": "text/html"})
    assert answer.status_code == 200
    return answer.text


def said(page: str) -> list[str]:
    """Question, sentence, verdict and target of each block."""
    return re.findall(r'<h2>[^<]*</h2>\n<p class="said">.*?<p class="judged">.*?</p>', page, re.DOTALL)


def plots(page: str) -> list[str]:
    return re.findall(r'<div class="plot.*?\n</div>', page, re.DOTALL)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("question", [{}, ALL])
def test_a_frozen_report_says_and_draws_what_the_page_does(service: Service, question: dict[str, str]) -> None:
    collect(service, [cell_png(number) for number in range(24)], patients=True)
    page, frozen = report_page(service, **question), frozen_page(service, question)
    filtered = f"?{urlencode(question)}" if question else ""  # the tabs keep the filters
    assert f'<a href="/report/appendix{filtered}">' in unescape(page)
    appendix = service.get("viewer", f"/report/appendix{filtered}").text
    assert f'<a href="/report{filtered}">' in unescape(appendix)
    assert len(said(page)) == 5
    assert said(frozen) == said(page)
    assert plots(page)
    assert plots(frozen) == plots(page) + plots(appendix)
    headings = set(re.findall(r"<h2>[^<]+</h2>", page + appendix))
    assert len(headings) > 15
    only_online = {"<h2>Freeze an evaluation report</h2>", "<h2>Targets</h2>"}
    assert {heading for heading in headings if heading not in frozen} <= only_online
    assert "<h3>Immature granulocyte</h3>" in frozen
    assert "immature_granulocyte" not in frozen
    # it opens offline
    assert not re.search(r"<script|<link|<img|<form|<iframe|@import|url\(", frozen)
    assert not re.search(r"""(?:href|src|action)=""", frozen)
    assert STYLE.read_text() in frozen
    assert "Altair" not in frozen


@pytest.mark.slow
@pytest.mark.ci
def test_a_frozen_report_states_what_it_covers(service: Service) -> None:
    store(service, "one", cell_png(1), {"r0": 0, "r1": 1}, site="north")
    period = {"since": "2020-01-01T00:00:00Z", "until": "2099-06-01T00:00:00Z"}
    frozen = frozen_page(service, ALL | {"site": "north"} | period)
    assert re.search(
        r"all; weighting: none; site: <bdi>north</bdi>; since: .*2020-01-01.*; until: .*2099-06-01", frozen
    )
    assert len(said(frozen)) == 4  # the last 13 weeks are another period
    made = service.document("/v1/evaluations")["items"][0]
    rows = list(csv.DictReader(io.StringIO(service.get("viewer", f"/report/frozen/{made['id']}.csv").text)))
    for row in rows:
        assert row.items() >= (made["question"] | {"release": made["release"]}).items()
    listed = service.get("viewer", "/report").text
    assert re.search(r"<li>.*: all, unweighted, site <bdi>north</bdi>, since .*2020.*, until .*2099.*, <a href", listed)


def test_a_frozen_report_of_a_service_without_labels_says_what_is_missing(service: Service) -> None:
    service.add_case("alone", cell_png(1))
    frozen = frozen_page(service, ALL)
    assert len(said(frozen)) == 5
    assert "Not yet available: " in frozen
    assert annex(service).sentences == ["There are no labels yet."]


def test_a_release_is_compared_with_the_champion_before_it(
    service: Service, tiny_release: Path, tmp_path: Path
) -> None:
    collect(service, [cell_png(number) for number in range(8)], patients=True)
    releases = [service.document("/v1/releases")["items"][0]["id"]]
    for serve, name in ((service.serve, "b"), (service.serve, "c"), (service.put_release, "never the champion")):
        made = serve(edit_release(tiny_release, tmp_path / name, name=name))
        releases.append(made if isinstance(made, str) else str(made.id))
    with service.context.database.read_moment() as session:
        found = [compare_with_last_release(session, service.context, UUID(one), CohortQuery()) for one in releases]
    assert [one and (one.release, one.champion) for one in found] == [None, *pairwise(releases)]


def test_serving_draws_nothing_with_the_library_for_charts() -> None:
    serving = Path(STYLE).parents[2]
    using = [path for path in serving.rglob("*.py") if re.search(r"altair|vl_convert|ml\.charts", path.read_text())]
    assert using == []


def annex(service: Service) -> ReadersAnnex:
    with service.context.database.read_moment() as session:
        body = build_report(session, service.context, CohortQuery(), utc_now())
    return build_readers_annex(body.document, body.agreement)


@pytest.mark.parametrize(("n", "words"), [(1, "There is only one annotator"), (2, "There are only two annotators")])
def test_few_annotators_are_said_plainly(service: Service, n: int, words: str) -> None:
    labels = {f"r{reader}": 0 for reader in range(n)}
    for number in range(8):
        store(service, f"case-{number}", cell_png(number), labels, patient=f"p{number}")
    found = annex(service)
    assert words in found.sentences[-1]
    assert not found.for_new_ones
    assert words in report_page(service, path="/report/appendix", partition="all", weighting="none")


def test_the_annex_has_each_annotator_and_both_intervals(service: Service) -> None:
    for number in range(24):
        labels = {f"r{reader}": (number + (reader == number % 4)) % 3 for reader in range(4) if (number + reader) % 5}
        store(service, f"case-{number}", cell_png(number), labels, patient=f"p{number}")
    found = annex(service)
    document = service.document("/v1/metrics")["metrics"]
    assert found.for_new_ones
    assert {row.annotator for row in found.readers} == {"r0", "r1", "r2", "r3"}
    assert sum(row.n_labels for row in found.readers) == found.n_labels
    for name, shown in found.metrics:
        if name not in ("EL", "CL_paired", "DL"):  # rounded on paper, so that they add up
            assert shown.low == document[name]["low"]
            assert shown.high_new == document[name]["high_new"]
        if shown.low_new is not None and shown.low is not None:
            assert shown.low_new <= shown.low


TARGETS = TargetsOut(version=0, disagreement_gap=0.1, leading_gap=0.05, caught=0.6, agreement=0.8, hours=48.0)


def estimate(value: float, low: float | None, high: float | None) -> MetricOut:
    rest = {"se": None, "n": 50, "dropped": 0, "ess": 50.0, "clipped": False, "singleton_mass": 0.0}
    return MetricOut(value=value, low=low, high=high, horvitz_thompson=None, largest_weight=None, **rest)  # type: ignore[arg-type]


@pytest.fixture
def body(service: Service) -> ReportBody:
    """A report to put numbers into."""
    collect(service, [cell_png(number) for number in range(12)], patients=True)
    report_page(service, partition="all", weighting="none")
    with service.context.database.read() as session:
        found = read_published_report(session, CohortQuery("all", "none")).body
    assert found is not None
    return found


def first_sentence(body: ReportBody, value: float, low: float, high: float) -> tuple[str, str]:
    disagreement = SaidOut(said=0.30, seen=estimate(value, low, high))
    changed = body.model_copy(update={"findings": body.findings.model_copy(update={"disagreement": disagreement})})
    first = write_report_sentences(changed, TARGETS)[0]
    return first.text, first.state


SENTENCES = [
    ((0.51, 0.35, 0.67), "51% (95% CI 35–67%). Too low.", "missed-so-far"),
    ((0.51, 0.45, 0.57), "51% (95% CI 45–57%). Too low.", "missed"),
    ((0.10, 0.05, 0.15), "10% (95% CI 5–15%). Too high.", "missed"),
    ((0.31, 0.26, 0.36), "31% (95% CI 26–36%). On target.", "met"),
    ((0.33, 0.15, 0.55), "33% (95% CI 15–55%). On target.", "met-so-far"),
    ((0.42, 0.25, 0.60), "42% (95% CI 25–60%). Possibly too low.", "missed-so-far"),
    ((0.36, 0.32, 0.39), "36% (95% CI 32–39%). Too low, within the target.", "met"),
]


def test_a_sentence_says_whether_what_was_said_is_right(body: ReportBody) -> None:
    begins = "Predicted disagreement between two annotators 30%; observed "
    for numbers, words, state in SENTENCES:
        assert first_sentence(body, *numbers) == (begins + words, state)


def test_a_target_to_reach_is_met_when_the_whole_interval_is(body: ReportBody) -> None:
    def state(value: float, low: float, high: float, share: float = 0.3) -> str:
        caught = body.findings.second_reads.model_copy(update={"share": share, "caught": estimate(value, low, high)})
        changed = body.model_copy(update={"findings": body.findings.model_copy(update={"second_reads": caught})})
        third = write_report_sentences(changed, TARGETS)[2]
        ends = f"{100 * value:.0f}% (95% CI {100 * low:.0f}–{100 * high:.0f}%)"
        begin = f"Second reads of {share:.0%} of the cells catch {ends} of the disagreements"
        assert third.text.startswith(f"{begin}; random second reads would catch {share:.0%}. No better than random")
        assert third.target == "at least 60%, and more than at random"
        return third.state

    assert state(0.59, 0.44, 0.74) == "missed-so-far"
    assert state(0.50, 0.44, 0.58) == "missed"
    assert state(0.65, 0.55, 0.74) == "met-so-far"
    assert state(0.70, 0.61, 0.78) == "met"
    assert state(0.30, 0.10, 0.70) == "missed-so-far"  # no better than chance
    assert state(0.20, 0.10, 0.30) == "missed"
    assert state(0.75, 0.65, 0.85, 0.75) == "missed-so-far"
    assert state(0.75, 0.65, 0.85, 0.70) == "met-so-far"
    assert state(0.75, 0.61, 0.80, 0.80) == "missed"
    assert state(1.0, 0.9, 1.0, 1.0) == "met"  # every cell is read twice


def test_without_an_answer_no_verdict_is_given(body: ReportBody) -> None:
    missing: dict[str, Any] = dict.fromkeys(("disagreement", "leading", "agreement"))
    missing["answering"] = DurationOut(n=0, n_open=0, median=None, nine_tenths=None, low=None, high=None)
    missing["second_reads"] = SecondReadsOut(policy_version=1, by="disagreement", share=0.1, caught=None)
    empty = body.findings.model_copy(update=missing)
    found = write_report_sentences(body.model_copy(update={"findings": empty}), TARGETS)
    assert [one.state for one in found] == ["unknown"] * 5
    assert len(set(VERDICTS.values())) == len(VERDICTS)  # they differ by words and not by colour
    assert all(one.text.startswith("Not yet available: ") for one in found)


def test_labels_of_an_outside_system_tell_nothing_of_how_much_and_how_soon_people_read(body: ReportBody) -> None:
    found = body.findings.answering
    assert found.n == found.n_open > 0
    assert found.median is None
    assert {(week.answered, week.hours) for week in body.workload.weeks} == {(0, 0.0)}


def columns_of(labels: list[list[int]], dpe: list[float], classes: int = 3) -> EvaluationDataset:
    """Cases with these label counts and disagreement probabilities, each of a patient of its own."""
    columns = EvaluationDataset.empty([f"c{k}" for k in range(classes)], len(labels))
    columns.cluster[:] = np.arange(len(labels))
    columns.label_counts[:] = labels
    columns.disagreement_probs[:] = dpe
    columns.class_probs[:] = 1 / classes
    columns.pi[:] = 1.0
    return columns


def test_shares_of_pairs_are_shares_of_all_disagreements() -> None:
    labels = [[1, 1, 0]] * 6 + [[0, 1, 1]] * 3 + [[1, 0, 1]] + [[2, 0, 0]] * 10
    cohort = build_cohort(columns_of(labels, [0.3] * 20), CohortQuery("all", "none"), 0.0)
    pairs = rank_confused_pairs(cohort)
    named = [(row.first, row.second, row.n_cases) for row in pairs]
    assert named == [("c0", "c1", 6), ("c1", "c2", 3), ("c0", "c2", 1)]
    assert [row.share.value for row in pairs] == pytest.approx([0.6, 0.3, 0.1])
    agreement = findings_of(cohort, np.zeros(20)).agreement
    assert agreement is not None
    assert agreement.value == pytest.approx(0.5)


def findings_of(cohort: Cohort, selected: FloatArray) -> FindingsOut:
    requested = RequestedReads(1, "disagreement", cohort.columns.disagreement_probs, selected)
    return compute_findings(cohort, requested, estimate_duration(np.zeros(0), np.zeros(0, dtype=bool)), [])


def test_the_sentence_on_second_reads_counts_what_the_rule_selects() -> None:
    columns = columns_of([[1, 1, 0]] * 4 + [[2, 0, 0]] * 4, [0.5] * 8)
    columns.pi[:] = 1  # as an earlier policy planned it
    selected = np.array([1, 1, 1, 0, 1, 0, 0, 0.0])
    found = findings_of(build_cohort(columns, CohortQuery("all", "none"), 0.0), selected).second_reads
    assert found.caught is not None
    assert found.share == pytest.approx(4 / 8)
    assert found.caught.value == pytest.approx(3 / 4)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-9])
def test_a_threshold_as_shown_selects_its_share(spread: float) -> None:
    score = 0.3 + spread * np.random.default_rng(3).random(101) / 2
    for share, threshold in zip(SHARES, thresholds_for_shares(score), strict=True):
        assert (score > threshold).sum() == round(101 * share)
    unlike = np.repeat([0.1, 0.81, 1.0], [5, 1, 4])  # the rule selects all of those, and takes no threshold of 1
    assert thresholds_for_shares(unlike)[0] == 0.9


def test_sensitivity_is_the_share_of_a_classs_labels_that_lead() -> None:
    columns = columns_of([[2, 0, 0]] * 6 + [[1, 1, 0]] * 2 + [[0, 2, 0]] * 4, [0.5] * 12)
    columns.class_probs[:] = [0.6, 0.3, 0.1]
    columns.class_probs[-3:] = [0.1, 0.8, 0.1]
    rows = findings_of(build_cohort(columns, CohortQuery("all", "none"), 0.0), np.zeros(12)).sensitivity
    assert [row.class_code for row in rows] == ["c0", "c1"]  # the most frequent first
    first, second = (row.sensitivity for row in rows)
    assert (first.value, first.n) == (1.0, 8)
    assert first.low is not None
    assert 0.5 < first.low < 1  # eight hits of eight are no proof
    assert (second.value, second.n) == (pytest.approx(3 / 5), 6)


def test_the_policy_says_what_another_share_would_catch_and_cost(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(40)], patients=True)
    page = report_page(service, path="/policy")
    assert "today " in page
    assert "30% with second read: catches" in page
    assert "0.000" not in page
    assert "second reads per week" in page
    shown = re.search(r"Threshold: ([\d.]+)\.", page)
    assert shown is not None
    form = {"rule": "disagreement", "threshold": shown[1], "reason": "from the page"}
    assert service.post("admin", "/policy", data=form, follow_redirects=False).status_code == 303
    page = service.get("viewer", "/policy").text
    assert "in the order of policy version 1. " in page
    assert "today " not in page
    found = service.document("/v1/report")
    assert found["second_reads"]["share"] == pytest.approx(0.3, abs=0.5 / found["n_cases"])
    service.clock.ahead = timedelta(days=10)
    assert ", 8 second reads per week" in report_page(service, path="/policy")  # 30% of 40 cells in 10/7 weeks
    assert "60% with second read: catches" in service.get("viewer", "/policy", params={"share": 60}).text
    for wrong in (0, 7, 100):
        assert service.get("viewer", "/policy", params={"share": wrong}).status_code == 422


@pytest.mark.parametrize(
    ("low", "sentence"),
    [(None, "Too few pairs of labels"), (0.0, "No better than random so far: skill of the"), (0.01, None)],
)
def test_second_reads_are_doubted_until_the_skill_is_above_zero(
    body: ReportBody, low: float | None, sentence: str | None
) -> None:
    skill = body.document.metrics["skill_D"].model_copy(update={"value": 0.2, "low": low, "high": 0.4, "n": 60})
    document = body.document.model_copy(update={"metrics": body.document.metrics | {"skill_D": skill}})
    doubt = doubt_triage(document)
    third = write_report_sentences(body.model_copy(update={"document": document}), TARGETS)[2]
    if sentence is None:
        assert doubt is None
        assert third.text.endswith("random second reads would catch 92%.")
    else:
        assert doubt is not None
        assert doubt.startswith(sentence)
        assert "60 cells" in doubt
        assert third.text.endswith(doubt)


def test_while_in_doubt_the_policy_offers_random_second_reads_first(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(8)], patients=True)
    assert "Too few pairs of labels" in report_page(service, path="/policy")
    assert "Too few pairs of labels" in service.get("viewer", "/worklist").text
    page = service.get("admin", "/policy").text
    assert page.index("/policy?random=30#change") < page.index('<details id="change">')
    assert "/policy?random=30" not in service.get("viewer", "/policy").text
    filled = service.get("admin", "/policy?random=30").text
    assert '<details id="change" open>' in filled
    form = dict(re.findall(r'<input name="(threshold|audit_rate)" value="([^"]*)"', filled))
    assert form == {"threshold": "0.9999", "audit_rate": "0.3"}
    before = service.document("/v1/policies")["items"]
    assert len(before) == 1  # until it is saved
    assert (
        service.post("admin", "/policy", data={"rule": "disagreement", "reason": "in doubt"} | form).status_code == 200
    )
    assert service.document("/v1/policies")["items"][0]["audit_rate"] == 0.3


def test_overdue_reads_are_told(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(4)], patients=True)
    service.written_past = True
    service.change(update(ReadRequest).values(due_at=utc_now(), closed_at=None, state="open"))
    page: Any = report_page(service, partition="all", weighting="none")
    assert "none is overdue" not in page
    assert "overdue" in page
