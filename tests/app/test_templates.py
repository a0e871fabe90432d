"""Pages and reports name only what there is: a misspelt field is a defect that is told, not a blank."""

from pathlib import Path

import pytest
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, UndefinedError
from structlog.testing import capture_logs

from app.reports import report
from app.web import render
from tests.support.service import Service

#: Every page that needs no identifier.
PAGES = ("/worklist", "/report", "/policy", "/releases", "/jobs", "/imports", "/readers", "/people", "/audit", "/help")
HTML = {"Accept": "text/html"}


@pytest.mark.parametrize("environment", [render.ENVIRONMENT, report.load_report_templates()], ids=["pages", "reports"])
@pytest.mark.parametrize("text", ["{{ misspelt }}", "{{ row.misspelt }}", "{% if row.misspelt %}{% endif %}"])
def test_a_template_that_names_what_is_not_there_fails(environment: Environment, text: str) -> None:
    with pytest.raises(UndefinedError):
        environment.from_string(text).render(row={"value": 1})


@pytest.mark.parametrize("path", PAGES)
def test_every_page_shows_before_the_first_case(shared_service: Service, path: str) -> None:
    assert shared_service.get("admin", path, headers=dict(HTML)).status_code == 200


def test_a_page_with_a_defect_answers_with_a_reference_that_the_log_knows(
    shared_service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "help.html").write_text("<h1>Help</h1>\n{{ words.misspelt }}")
    loaders = [FileSystemLoader(tmp_path), render.ENVIRONMENT.loader]
    monkeypatch.setattr(render.ENVIRONMENT, "loader", ChoiceLoader(loaders))
    monkeypatch.setattr(render.ENVIRONMENT, "cache", None)
    with capture_logs() as lines:
        answer = shared_service.get("viewer", "/help", headers=dict(HTML))
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "<h1>Internal error</h1>" in answer.text
    assert "misspelt" not in answer.text
    (defect,) = [line for line in lines if line["event"] == "defect"]
    assert defect["error"] == "UndefinedError"
    assert "help.html:2" in defect["calls"]
    (request,) = [line for line in lines if line["event"] == "request"]
    assert request["request_id"] == defect["request_id"] is not None
    assert defect["request_id"] in answer.text
