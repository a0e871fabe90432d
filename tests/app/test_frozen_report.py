"""A frozen report says and draws what the report's page does, in one file that opens offline."""

import re
from pathlib import Path

import pytest

from app.reports.report import COLOURS, STYLE
from app.web.render import FOLDER
from tests.support.jobs import work_off
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, collect

ALL = {"partition": "all", "weighting": "none"}
TEMPLATE = STYLE.parents[1] / "templates" / "frozen_report.html"


def frozen_page(service: Service, question: dict[str, str]) -> str:
    """What the file of a new frozen evaluation holds."""
    asked = service.post("admin", "/v1/evaluations", json=question)
    assert asked.status_code == 202
    work_off(service.context)
    answer = service.get("viewer", f"/v1/evaluations/{asked.json()['id']}", headers={"Accept": "text/html"})
    assert answer.status_code == 200
    return answer.text


def said(page: str) -> list[str]:
    """Verdict, sentence and target of each finding."""
    return re.findall(r'<summary[^>]*><span class="verdict.*?</summary>', page, re.DOTALL)


def plots(page: str) -> list[str]:
    return re.findall(r'<div class="plot.*?\n</div>', page, re.DOTALL)


@pytest.mark.parametrize("question", [{}, ALL])
def test_a_frozen_report_says_and_draws_what_the_page_does(service: Service, question: dict[str, str]) -> None:
    collect(service, [cell_png(number) for number in range(24)], patients=True)
    page, frozen = report_page(service, **question), frozen_page(service, question)
    assert len(said(page)) == 5
    assert said(frozen) == said(page)
    assert len(plots(page)) > 5
    assert plots(frozen) == plots(page)
    for heading in ("Workload", "Classes that are confused", "Month by month", "Site by site", "Loss and its parts"):
        assert f"<h2>{heading}" in frozen


def test_a_frozen_report_opens_offline(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(8)], patients=True)
    frozen = frozen_page(service, ALL)
    assert not re.search(r"<script|<link|<img|<form|<iframe|@import|url\(", frozen)
    assert not re.search(r"""(?:href|src|action)=""", frozen)
    assert STYLE.read_text() in frozen
    assert "Altair" not in frozen


def test_a_frozen_report_of_a_service_without_labels_says_what_is_missing(service: Service) -> None:
    service.add_case("alone", cell_png(1))
    frozen = frozen_page(service, ALL)
    assert len(said(frozen)) == 5
    assert "nothing can be said before there are" in frozen


def colours(text: str) -> list[list[str]]:
    """Custom properties of the first two blocks: of light, and of dark."""
    blocks = re.findall(r":root \{(.*?)\}", text, re.DOTALL)[:2]
    return [re.findall(r"--[\w-]+: #\w+", block) for block in blocks]


def test_colours_are_in_one_file_which_pages_name_and_frozen_reports_contain(service: Service) -> None:
    service.add_case("alone", cell_png(1))
    light, dark = colours(COLOURS.read_text())
    assert len(light) > len(dark) > 10
    frozen = frozen_page(service, ALL)
    assert COLOURS.read_text() in frozen
    assert "/colours.css" in service.get("admin", "/worklist").text
    assert service.get(None, "/static/colours.css").text == COLOURS.read_text()
    for others in (TEMPLATE, FOLDER / "style.css"):
        assert not any(colours(others.read_text()))


def test_serving_draws_nothing_with_the_library_for_charts() -> None:
    serving = Path(STYLE).parents[2]
    using = [path for path in serving.rglob("*.py") if re.search(r"altair|vl_convert|ml\.charts", path.read_text())]
    assert using == []
