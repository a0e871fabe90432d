"""The report of a study: in the order of its standard, filled from what is stored, open where a person has to write."""

import re

import pytest
from typer.testing import CliRunner

from app.evaluations.readers_annex import ReadersAnnex
from app.evaluations.report_making import study_here
from app.evaluations.study import html_study
from app.evaluations.study_items import STANDARDS, Standard
from app.evaluations.study_text import TOPICS
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, store


def fill(service: Service) -> None:
    for number in range(9):
        labels = {f"r{reader}": number % 3 for reader in range(number % 3)}
        store(service, f"case-{number}", cell_png(number), labels, patient=f"p{number // 2}", site="north")


@pytest.mark.parametrize("standard", ["stard-ai", "claim"])
def test_a_study_is_in_the_order_of_its_standard(standard: Standard) -> None:
    items = STANDARDS[standard][1]
    numbers = [int(re.sub(r"\D", "", item.number)) for item in items if item.number != "AI"]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, 31 if standard == "stard-ai" else 43))
    assert all(item.topics or item.open for item in items)
    assert {topic for item in items for topic in item.topics} <= TOPICS.keys()


def test_every_topic_is_asked_for() -> None:
    asked = {topic for _, items in STANDARDS.values() for item in items for topic in item.topics}
    assert asked == TOPICS.keys()


@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
@pytest.mark.parametrize("standard", ["stard-ai", "claim"])
def test_a_study_is_filled_from_what_is_stored_and_open_where_a_person_writes(
    service: Service, standard: Standard
) -> None:
    fill(service)
    study = study_here(service.context, standard)
    texts = [text for one in study.items for text in one.filled]
    for expected in (
        "Received: 9; of patients who were erased since: 0.",
        "Read at least once: 6.",
        "2 annotators, 2 of them known to an outside system only gave 9 blind labels.",
        "Partitions are disjoint by patient: 0 patients in both.",
        "Images came from 1 site: north.",
    ):
        assert expected in texts
    assert any("0 came after something of the case had been shown" in text for text in texts) or standard == "claim"
    assert any(re.search(r"SHA-256 of its card.*[0-9a-f]{64}", text) for text in texts)
    for one in study.items:
        assert one.filled or one.open
        assert bool(one.item.open) <= bool(one.open)
    assert 0 < study.n_open < len(study.items)


def test_the_page_marks_what_is_open_and_the_file_opens_alone(service: Service) -> None:
    fill(service)
    for standard in ("stard-ai", "claim"):
        page = report_page(service, path="/report/study", standard=standard)
        assert page.count("Open:</b>") == study_here(service.context, standard).n_open
        file = service.get("viewer", "/report/study.html", params={"standard": standard})
        assert file.status_code == 200
        assert "attachment" in file.headers["content-disposition"]
        assert "src=" not in file.text
        assert set(re.findall(r'href="([^"]*)"', file.text)) == {"#annex"}
    assert service.get("viewer", "/report/study", params={"standard": "prisma"}).status_code == 422
    assert service.get("anna", "/report/study").status_code == 403


def test_there_is_no_file_before_there_is_a_report(service: Service) -> None:
    assert service.get("viewer", "/report/study.html").status_code == 404
    assert "is being made" in service.get("viewer", "/report/study").text


def test_the_command_is_documented() -> None:
    from app.cli.main import secondread

    shown = CliRunner().invoke(secondread, ["report", "study", "--help"])
    assert shown.exit_code == 0
    assert "--standard" in shown.output


def annex(service: Service) -> ReadersAnnex:
    return study_here(service.context, "claim").readers


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


def test_the_annex_has_each_annotator_and_both_intervals_and_the_items_that_it_fills(service: Service) -> None:
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
    for standard, items in (("stard-ai", {"17", "24"}), ("claim", {"18", "29", "35"})):
        study = study_here(service.context, standard)  # type: ignore[arg-type]
        assert {one.item.number for one in study.items if one.annexed} == items
        assert study.to_dict()["readers"]["annotators"][0]["annotator"] == "r0"
        page = html_study(study)
        assert page.count('<a href="#annex">') == len(items)
        assert page.count('id="annex"') == 1


def test_without_labels_the_annex_says_so(service: Service) -> None:
    service.add_case("alone", cell_png(1))
    assert annex(service).sentences == ["There are no labels yet."]
