"""The annex of the report: annotators with their cases, and intervals for these annotators and for new ones."""

import pytest

from app.database.tables import utc_now
from app.metrics.cohort import CohortQuery
from app.reports.charts import ReadersAnnex, build_readers_annex
from app.reports.report import build_report
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, store


def annex(service: Service) -> ReadersAnnex:
    with service.context.database.read_moment() as session:
        body = build_report(session, service.context, CohortQuery(), utc_now())
    return build_readers_annex(body.document, body.agreement)


@pytest.mark.parametrize(("n", "words"), [(1, "There is one annotator only"), (2, "There are two annotators only")])
def test_few_annotators_are_said_plainly(service: Service, n: int, words: str) -> None:
    for number in range(8):
        store(
            service, f"case-{number}", cell_png(number), {f"r{reader}": 0 for reader in range(n)}, patient=f"p{number}"
        )
    found = annex(service)
    assert words in found.sentences[-1]
    assert not found.for_new_ones
    page = report_page(service, partition="all", weighting="none")
    assert words in page


def test_the_annex_has_each_annotator_and_both_intervals(service: Service) -> None:
    for number in range(24):
        labels = {f"r{reader}": (number + (reader == number % 4)) % 3 for reader in range(4) if (number + reader) % 5}
        store(service, f"case-{number}", cell_png(number), labels, patient=f"p{number}")
    found = annex(service)
    document = service.get("viewer", "/v1/metrics").json()["metrics"]
    assert found.for_new_ones
    assert {row.annotator for row in found.readers} == {"r0", "r1", "r2", "r3"}
    assert sum(row.n_labels for row in found.readers) == found.n_labels
    for name, shown in found.metrics:
        if name not in ("EL", "CL_paired", "DL"):  # rounded on paper, so that they add up
            assert shown.low == document[name]["low"]
            assert shown.high_new == document[name]["high_new"]
        if shown.low_new is not None and shown.low is not None:
            assert shown.low_new <= shown.low


def test_without_labels_the_annex_says_so(service: Service) -> None:
    service.add_case("alone", cell_png(1))
    assert annex(service).sentences == ["There are no labels yet."]
