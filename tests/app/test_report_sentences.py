"""What the first sentences of a report say, and when a target is met; what the policy's page makes of it."""

from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from app.database.tables import ReadRequest, utc_now
from app.http.models import MetricOut
from app.metrics.cohort import CohortQuery, build_cohort
from app.metrics.dataset import EvaluationDataset
from app.reports.publishing import read_published_report
from app.reports.schemas import DurationOut, ReportBody, SaidOut, ShareOut
from app.reports.sentences import VERDICTS, write_report_sentences
from app.reports.statistics import compute_findings, rank_confused_pairs
from app.reports.targets import TargetsOut
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, collect

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


def said(body: ReportBody, value: float, low: float, high: float) -> tuple[str, str]:
    disagreement = SaidOut(said=0.30, seen=estimate(value, low, high))
    changed = body.model_copy(update={"findings": body.findings.model_copy(update={"disagreement": disagreement})})
    first = write_report_sentences(changed, TARGETS)[0]
    return first.text, first.state


def test_a_sentence_says_whether_what_was_said_is_right(body: ReportBody) -> None:
    begins = "When it says 30 % of annotators would differ, "
    assert said(body, 0.51, 0.35, 0.67) == (f"{begins}51 % (35 to 67) did: too low.", "missed-so-far")
    assert said(body, 0.51, 0.45, 0.57) == (f"{begins}51 % (45 to 57) did: too low.", "missed")
    assert said(body, 0.10, 0.05, 0.15) == (f"{begins}10 % (5 to 15) did: too high.", "missed")
    assert said(body, 0.31, 0.26, 0.36) == (f"{begins}31 % (26 to 36) did: about right.", "met")
    assert said(body, 0.33, 0.15, 0.55) == (f"{begins}33 % (15 to 55) did: about right.", "met-so-far")
    assert said(body, 0.42, 0.25, 0.60) == (f"{begins}42 % (25 to 60) did: perhaps too low.", "missed-so-far")
    assert said(body, 0.36, 0.32, 0.39) == (f"{begins}36 % (32 to 39) did: too low, within the target.", "met")


def test_a_target_to_reach_is_met_when_the_whole_interval_is(body: ReportBody) -> None:
    def state(value: float, low: float, high: float) -> str:
        caught = ShareOut(share=0.3, caught=estimate(value, low, high))
        changed = body.model_copy(update={"findings": body.findings.model_copy(update={"caught": caught})})
        third = write_report_sentences(changed, TARGETS)[2]
        ends = f"{100 * value:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
        assert third.text == f"Reading 30 % of the cases twice catches {ends} of the disagreements."
        return third.state

    assert state(0.59, 0.44, 0.74) == "missed-so-far"
    assert state(0.50, 0.44, 0.58) == "missed"
    assert state(0.65, 0.55, 0.74) == "met-so-far"
    assert state(0.70, 0.61, 0.78) == "met"


def test_without_an_answer_no_verdict_is_given(body: ReportBody) -> None:
    nothing = DurationOut(n=0, n_open=0, median=None, nine_tenths=None, low=None, high=None)
    empty = body.findings.model_copy(update=dict.fromkeys(("disagreement", "leading", "caught", "agreement")))
    workload = body.workload.model_copy(update={"answering": nothing})
    found = write_report_sentences(body.model_copy(update={"findings": empty, "workload": workload}), TARGETS)
    assert [one.state for one in found] == ["unknown"] * 5
    assert all(one.wanted for one in found)


def test_labels_of_an_outside_system_tell_nothing_of_how_soon_people_read(body: ReportBody) -> None:
    found = body.workload.answering
    assert found.n == found.n_open > 0
    assert found.median is None
    assert sum(week.answered for week in body.workload.weeks) == 18  # they are work that was done


def test_verdicts_differ_by_words_and_not_by_colour() -> None:
    assert len(set(VERDICTS.values())) == len(VERDICTS)


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
    assert [(row.first, row.second, row.n_cases) for row in pairs] == [
        ("c0", "c1", 6),
        ("c1", "c2", 3),
        ("c0", "c2", 1),
    ]
    assert [row.share.value for row in pairs] == pytest.approx([0.6, 0.3, 0.1])
    assert compute_findings(cohort).agreement is not None
    assert compute_findings(cohort).agreement.value == pytest.approx(0.5)  # type: ignore[union-attr]


def test_the_sentence_on_second_reads_counts_what_was_planned() -> None:
    columns = columns_of([[1, 1, 0]] * 4 + [[2, 0, 0]] * 4, [0.5] * 8)
    columns.pi[:] = [1, 1, 1, 0.2, 1, 0.2, 0.2, 0.2]
    found = compute_findings(build_cohort(columns, CohortQuery("all", "none"), 0.0)).caught
    assert found is not None
    assert found.share == pytest.approx(4.8 / 8)
    assert found.caught.value == pytest.approx(3.2 / 4)


def test_the_policy_says_what_another_share_would_catch_and_cost(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(40)], patients=True)
    page = report_page(service, path="/policy")
    assert "today " in page
    assert "30 % read twice: catches" in page
    assert "second reads a week" in page
    other = service.get("viewer", "/policy", params={"share": 60}).text
    assert "60 % read twice: catches" in other
    for wrong in (0, 7, 100):
        assert service.get("viewer", "/policy", params={"share": wrong}).status_code == 422


def test_overdue_reads_are_told(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(4)], patients=True)
    service.written_past = True
    with service.context.database.write() as session:
        session.execute(update(ReadRequest).values(due_at=utc_now(), closed_at=None, state="open"))
    page: Any = report_page(service, partition="all", weighting="none")
    assert "none is overdue" not in page
    assert "overdue" in page
