"""The audit in words: who did what to which case, found by day and name, and the same as a file."""

import csv
import io
import re
from datetime import timedelta
from html import unescape
from pathlib import Path

import app
from app.audit.sentences import WORDS
from app.database.tables import utc_now
from app.maintenance.erasure import erase_patient_everywhere
from tests.app.test_leases import classes_of, commit, lease
from tests.support.service import Service, cell_png


def lines(page: str) -> list[str]:
    """The sentences of a page, as one reads them."""
    cells = re.findall(r'<td class="wide"><b>.*?</td>', page, re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells]


def read_one(service: Service) -> str:
    case: str = service.add_case("slide-9-004", cell_png(1), patient="Meier")["id"]
    held = lease(service, "anna")
    assert held is not None
    assert commit(service, "anna", held, classes_of(service)[0]).status_code == 201
    return case


def test_events_say_who_did_what_with_links(service: Service) -> None:
    case = read_one(service)
    name = service.get("viewer", "/v1/releases").json()["items"][0]["classes"][0]["name"]
    page = service.get("admin", "/audit").text
    said = lines(page)
    assert f"anna labelled slide-9-004: {name}" in said
    assert "admin stored slide-9-004" in said
    assert "command line added anna as annotator" in said
    assert f'<a href="/cases/{case}">slide-9-004</a>' in page
    only = lines(service.get("admin", "/audit", params={"about": "slide-9-004"}).text)
    assert {line.split()[0] for line in only} >= {"anna", "admin"}
    assert all("slide-9-004" in line or "label" in line for line in only)
    people = lines(service.get("admin", "/audit", params={"about": "anna"}).text)
    assert all("anna" in line for line in people)
    assert lines(service.get("admin", "/audit", params={"about": "nothing of this name"}).text) == []


def test_events_are_found_by_day_and_come_as_a_file(service: Service) -> None:
    read_one(service)
    today, tomorrow = (utc_now() + timedelta(days=days) for days in (0, 1))
    day = {"since": str((today - timedelta(days=1)).date()), "until": str(tomorrow.date())}
    assert len(lines(service.get("admin", "/audit", params=day).text)) > 3
    assert lines(service.get("admin", "/audit", params={"since": str((tomorrow + timedelta(1)).date())}).text) == []
    assert lines(service.get("admin", "/audit", params={"until": str((today - timedelta(2)).date())}).text) == []
    chosen = {"action": "label.add", "since": "", "until": ""}
    answer = service.get("admin", "/audit.csv", params=chosen)
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["who"] for row in rows] == ["anna"]
    assert rows[0]["what"].startswith("labelled slide-9-004: ")
    wrong = service.get("admin", "/audit", params={"since": "yesterday"}, headers={"Accept": "text/html"})
    assert wrong.status_code == 422
    assert "since must be a date such as" in wrong.text.lower()


def test_an_erased_patient_is_named_nowhere(service: Service) -> None:
    read_one(service)
    erase_patient_everywhere(service.context, "lead", "Meier", "asked")
    for path in ("/audit", "/audit.csv"):
        text = service.get("admin", path).text
        assert "slide-9-004" not in text
        assert "an erased case" in text


def test_every_action_of_the_service_has_words() -> None:
    root = Path(app.__file__).parent
    texts = [path.read_text() for path in root.rglob("*.py")]
    actions = {found for text in texts for found in re.findall(r'action="([a-z_]+\.[a-z_]+)"', text)}
    assert len(actions) > 20
    assert actions <= set(WORDS)


def test_annotators_see_no_audit(service: Service) -> None:
    for path in ("/audit", "/audit.csv"):
        assert service.get("anna", path).status_code == 403
