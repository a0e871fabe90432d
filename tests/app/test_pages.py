"""Pages of the lead: worklist, first steps, audit, people, promotions, how annotators read; and their templates."""

import csv
import io
import re
import uuid
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, UndefinedError
from structlog.testing import capture_logs

import app
from app.annotators import service as annotators
from app.annotators.history import FINAL_AFTER
from app.audit.sentences import WORDS
from app.cases import queries as case_queries
from app.database.tables import BrowserSession, utc_now
from app.http.principal import ROLE_SCOPES
from app.labels.annotator_day import get_day_progress
from app.main import create_app
from app.maintenance.erasure import erase_patient_everywhere
from app.releases.registration import add_release
from app.reports import report
from app.settings import Settings
from app.web import render
from app.web.audit import _GROUPS
from ml.calibration.calibrators import Calibration
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.scaling import Scaling
from ml.release.artifact import DISTANCE_FILE, read_release, write_release
from tests.app.test_gate_memory import champion
from tests.app.test_leases import answer_next, classes_of, commit, lease, read_next, twice
from tests.app.test_people import GOOD, first_password
from tests.support.service import Service, add_people, cell_png, store
from tests.support.tiny_release import FEATURES, write_tiny_release

#: Ahead of now lies the Monday after next, when everything of today is final.
NEXT_WEEK = timedelta(weeks=2)


def read_by_two(service: Service, n: int) -> None:
    """Cases that somebody outside and anna have read, and nobody else is to read."""
    codes = classes_of(service)
    for number in range(n):
        store(service, f"case {number}", cell_png(number), {"outside reader": number % 2})
        answer_next(service, "anna", codes[number % 2], confidence=0.9)
    service.make_labels_final()


def reading(service: Service, who: str = "anna", name: str = "me") -> Any:
    return service.document(f"/v1/annotators/{name}", who)


def tiles(page: str) -> int:
    return page.count('class="card tile"')


@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_cases_are_found_by_a_part_of_their_name_and_by_a_site_that_is_offered(service: Service) -> None:
    for number, (name, patient, site) in enumerate(
        (("slide-9-004", "Meier", "Zürich"), ("slide-9_005", "Huber", "Bern"), ("other", "meierhans", "Bern"))
    ):
        service.add_case(name, cell_png(number), patient=patient, site=site)
    page = service.get("admin", "/worklist").text
    assert "3 cells to read" in page
    assert '<option value="Zürich">Zürich</option>' in page
    assert tiles(service.get("admin", "/worklist", params={"site": "Bern"}).text) == 2
    for search, n in (("SLIDE-9", 2), ("meier", 2), ("9_0", 1), ("%", 0)):
        assert tiles(service.get("admin", "/worklist", params={"search": search}).text) == n, search
    page = service.get("admin", "/worklist", params={"site": "Basel"}).text
    assert "Basel (no cell)" in page
    assert "Show all cells" in page


def test_the_cases_of_a_day_are_as_many_while_one_of_them_is_held(service: Service) -> None:
    service.add_cases(3)
    anna = service.principal("anna", *ROLE_SCOPES["annotator"])

    def totals() -> tuple[int, int]:
        with service.context.database.read() as session:
            day = get_day_progress(session, anna)
        return day.n_today, day.n_today + day.n_held + day.n_waiting

    assert totals() == (0, 3)
    held = read_next(service, "anna")
    assert totals() == (0, 3)
    assert commit(service, "anna", held, classes_of(service)[0]).status_code == 201
    assert totals() == (1, 3)


@pytest.fixture
def empty(settings: Settings) -> Iterator[Service]:
    """A service with people, and nothing else."""
    app = create_app(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(client, app.state.context, add_people(app.state.context))


def states(page: str) -> dict[str, str]:
    return dict(re.findall(r'data-step="(\w+)" data-state="(\w+)"', page))


@pytest.mark.parametrize("who", ["admin", "viewer"])
def test_no_page_is_a_dead_end_without_a_release(empty: Service, who: str) -> None:
    for path in PAGES:
        answer = empty.get(who, path, headers=dict(HTML))
        if who == "admin" or path in {
            "/worklist",
            "/report",
            "/report/appendix",
            "/report/specimens",
            "/policy",
            "/releases",
            "/jobs",
            "/help",
        }:
            assert answer.status_code == 200, (path, answer.text)
        assert 'aria-label="Pages"' in answer.text, path
    assert "Create a candidate" not in empty.get("admin", "/releases").text


def test_the_home_page_says_what_is_done_what_comes_next_and_what_waits(empty: Service) -> None:
    page = empty.get("admin", "/worklist").text
    assert states(page) == {"release": "next", "people": "done", "policy": "later", "import": "waits"}
    assert "secondread release add FOLDER" in page
    assert "waits for step 1" in page
    empty.set_disabled("ben", disabled=True)
    page = empty.get("admin", "/worklist").text
    assert states(page)["people"] == "later"
    assert "One annotator can sign in" in page
    assert "First steps" not in empty.get("viewer", "/worklist").text


def test_the_steps_follow_each_other_and_go_away_with_the_first_case(service: Service) -> None:
    order = {"release": "done", "people": "done", "policy": "next", "import": "later"}
    assert states(service.get("admin", "/worklist").text) == order
    form = {"rule": "disagreement", "threshold": "0,3", "reason": "first look"}
    assert service.call("admin", "POST", "/policy", data=form, follow_redirects=False).status_code == 303
    assert states(service.get("admin", "/worklist").text) == order | {"policy": "done", "import": "next"}
    service.upload("first", cell_png(1))
    assert "<h1>Worklist" in service.get("admin", "/worklist").text


def test_the_policy_takes_a_decimal_comma_and_says_what_is_wrong_beside_the_field(service: Service) -> None:
    form = {"rule": "disagreement", "threshold": "0,3", "audit_rate": "two", "max_labels": "1", "reason": "a try"}
    right = {"audit_rate": "0,1", "max_labels": "5"}

    def save(**typed: str) -> httpx.Response:
        return service.call("admin", "POST", "/policy", data=form | typed, headers=dict(HTML), follow_redirects=False)

    page = save()
    assert page.status_code == 422
    for said in ("Must be a number.", "Must be at least 2.", 'value="0,3"', 'value="two"', "a try</textarea>"):
        assert said in page.text, said
    assert 'aria-describedby="audit_rate-fault"' in page.text
    assert 'aria-label="Pages"' in page.text
    assert "Is needed by this rule." in save(**right, threshold="").text
    assert save(**right).status_code == 303
    newest = service.document("/v1/policies", "admin")["items"][0]
    assert (newest["threshold"], newest["audit_rate"]) == (0.3, 0.1)
    again = save(**right)
    assert (again.status_code, "already in force" in again.text) == (409, True)


def lines(page: str) -> list[str]:
    """The sentences of a page, as one reads them."""
    cells = re.findall(r'<td class="wide"><b>.*?</td>', page, re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells]


def read_one(service: Service) -> str:
    case: str = service.add_case("slide-9-004", cell_png(1), patient="Meier")["id"]
    answer_next(service, "anna", classes_of(service)[0])
    return case


def test_events_say_who_did_what_with_links_and_name_no_erased_patient(service: Service) -> None:
    case = read_one(service)
    name = service.document("/v1/releases")["items"][0]["classes"][0]["name"]
    page = service.get("admin", "/audit").text
    said = lines(page)
    assert f"anna labelled slide-9-004: {name}" in said
    assert "admin stored slide-9-004" in said
    assert "command line added anna as annotator" in said
    assert f'<a href="/cases/{case}"><bdi>slide-9-004</bdi></a>' in page
    only = lines(service.get("admin", "/audit", params={"about": "slide-9-004"}).text)
    assert {line.split()[0] for line in only} >= {"anna", "admin"}
    assert all("slide-9-004" in line or "label" in line for line in only)
    people = lines(service.get("admin", "/audit", params={"about": "anna"}).text)
    assert all("anna" in line for line in people)
    assert lines(service.get("admin", "/audit", params={"about": "nothing of this name"}).text) == []
    erase_patient_everywhere(service.context, "lead", "Meier", "asked")
    for path in ("/audit", "/audit.csv"):
        text = service.get("admin", path).text
        assert "slide-9-004" not in text
        assert "an erased cell" in text


def test_events_are_found_by_day_and_come_as_a_file(service: Service) -> None:
    read_one(service)
    two_ago, yesterday, tomorrow, after = (str((utc_now() + timedelta(days)).date()) for days in (-2, -1, 1, 2))
    for day in ({"since": yesterday, "until": tomorrow}, {"since": after}, {"until": two_ago}):
        assert (len(lines(service.get("admin", "/audit", params=day).text)) > 3) == (len(day) == 2)
    chosen = {"action": "label.add", "since": "", "until": ""}
    rows = list(csv.DictReader(io.StringIO(service.get("admin", "/audit.csv", params=chosen).text)))
    assert [row["who"] for row in rows] == ["anna"]
    assert rows[0]["what"].startswith("labelled slide-9-004: ")
    wrong = service.get("admin", "/audit", params={"since": "yesterday"}, headers={"Accept": "text/html"})
    assert wrong.status_code == 422
    assert "since must be a date such as" in wrong.text.lower()


def test_every_action_of_the_service_has_words() -> None:
    root = Path(app.__file__).parent
    texts = [path.read_text() for path in root.rglob("*.py")]
    actions = {found for text in texts for found in re.findall(r'action="([a-z_]+\.[a-z_]+)"', text)}
    assert len(actions) > 20
    assert actions <= set(WORDS)
    grouped = [kind for kinds in _GROUPS.values() for kind in kinds]
    assert sorted(grouped) == sorted({action.partition(".")[0] for action in WORDS})


REASON = "it is <better> & calmer"


@pytest.fixture
def release(service: Service, tmp_path: Path) -> str:
    """A release that is not served."""
    context, folder = service.context, write_tiny_release(tmp_path / "other", "other cells")
    return str(add_release(context.database, context.keys.audit, folder, context.folders)[0].id)


def move(service: Service, release: str, cookie: dict[str, str], **fields: Any) -> Any:
    form = {"alias": "champion", "revision": "1", "despite_gate": "true", "reason": REASON, "password": "not it"}
    headers = {"Accept": "text/html", **cookie}
    path = f"/releases/{release}/move"
    return service.client.post(path, data=form | fields, headers=headers, follow_redirects=False)


def beside(page: str, name: str) -> str:
    """What is said beside a field that is marked as wrong."""
    (field,) = re.findall(rf'<(?:input|textarea)[^>]*name="{name}"[^>]*aria-invalid="true"[^>]*>', page)
    (described,) = re.findall(r'aria-describedby="([^"]+)"', field)
    assert page.count(f'id="{described}"') == 1
    (said,) = re.findall(rf'<p class="fault" id="{described}" role="alert">(.*?)</p>', page)
    return unescape(said)


@pytest.mark.slow
def test_a_wrong_password_at_a_promotion_keeps_the_page_and_what_was_typed(service: Service, release: str) -> None:
    cookie, before = first_password(service, "admin"), champion(service)
    for typed in ("not it", ""):
        answer = move(service, release, cookie, password=typed)
        assert answer.status_code == 403
        assert "<nav" in answer.text
        assert "<h1><bdi>other cells" in answer.text
        assert beside(answer.text, "password") == "The password is missing or wrong; enter it again."
        assert unescape(re.findall(r'name="reason"[^>]*>([^<]*)<', answer.text)[0]) == REASON
        assert re.search(r'name="despite_gate"[^>]* checked', answer.text)
        assert answer.text.count('aria-invalid="true"') == 1  # that of the other form is as it was
        assert "not it" not in answer.text
    for accept in ("*/*", "application/json"):  # a script gets a problem
        answer = move(service, release, cookie | {"Accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
        assert answer.json()["detail"] == "the password is missing or wrong; enter it again"
    assert champion(service) == before
    assert move(service, release, cookie, password=GOOD).status_code == 303
    assert champion(service) == release


@pytest.mark.slow
def test_what_else_is_refused_at_a_promotion_stands_on_the_page_too(service: Service, release: str) -> None:
    cookie = first_password(service, "admin")
    answer = move(service, release, cookie, password=GOOD, reason=" ")
    assert (answer.status_code, beside(answer.text, "reason")) == (422, "Give a reason.")
    for wrong, status in (({"despite_gate": "false"}, 409), ({"revision": "7"}, 412)):
        answer = move(service, release, cookie, password=GOOD, **wrong)
        assert answer.status_code == status
        assert '<p class="fault whole" role="alert" tabindex="-1" autofocus>' in answer.text
        assert "<nav" in answer.text
        assert ("to promote it anyway, set despite_gate" in answer.text) == (status == 409)


def test_a_wrong_present_password_is_told_beside_it(service: Service) -> None:
    cookie = first_password(service, "anna")
    url = "/account"
    cookie |= HTML
    wrong = service.client.post(url, data={"present": "x", "wanted": "quite another one"}, headers=cookie)
    assert (wrong.status_code, beside(wrong.text, "present")) == (403, "The current password is wrong.")
    short = service.client.post(url, data={"present": GOOD, "wanted": "short"}, headers=cookie)
    assert short.status_code == 422
    assert "15" in beside(short.text, "wanted")
    for answer in (wrong, short):
        assert "<nav" in answer.text


def test_no_other_form_asks_for_a_password() -> None:
    """A new one belongs above."""
    templates = Path(__file__).parents[2] / "app" / "web" / "templates"
    asking = {path.name for path in templates.glob("*.html") if 'type="password"' in path.read_text()}
    assert asking == {"login.html", "account.html", "promotion.html", "specimen.html"}


@pytest.mark.both_databases
def test_the_table_has_everybody_with_their_last_sign_in_and_finds_names(service: Service) -> None:
    long = "x" * 100
    for name in (long, "Ödön"):
        assert service.call("admin", "POST", "/people", data={"name": name, "role": "annotator"}).status_code == 200
    ben = service.principal("ben").account_id
    with service.context.database.write() as session:
        session.add(BrowserSession(account_id=ben, token_sha256="0" * 64, seen_at=utc_now()))
    page = service.get("admin", "/people").text
    rows = dict(re.findall(r'<tr data-text="([^"]+)">(.*?)</tr>', page, re.DOTALL))
    assert set(rows) == {"admin", "viewer", "anna", "ben", "outside", long, "Ödön"}
    assert "<time" in rows["ben"]
    assert "never" in rows["anna"]
    assert "API keys only" in rows["outside"]
    found = service.get("admin", "/people", params={"search": "öD"}).text
    assert re.findall(r'data-text="([^"]+)"', found) == ["Ödön"]


def test_nobody_is_locked_out_by_one_click(service: Service) -> None:
    ben = service.principal("ben").account_id
    page = service.get("admin", f"/people/{ben}").text
    assert re.search(r"<details><summary>Disable account</summary>.*Yes, disable the account", page, re.DOTALL)
    assert service.call("admin", "POST", f"/people/{ben}/state", data={"disabled": "true"}).status_code == 200
    page = service.get("admin", f"/people/{ben}").text
    assert "disabled since" in page
    assert "Enable account" in page
    assert "disabled" in service.get("admin", "/people").text
    assert "This is you" in service.get("admin", f"/people/{service.principal('admin').account_id}").text
    assert service.get("admin", f"/people/{uuid.uuid4()}").status_code == 422


def test_what_is_wrong_with_a_new_account_or_key_stands_beside_the_field(service: Service) -> None:
    page = service.call("admin", "POST", "/people", data={"name": "ben", "role": "viewer"}, headers=dict(HTML))
    assert page.status_code == 409
    assert 'id="name-fault"' in page.text
    assert "An account with this name exists." in page.text
    assert 'value="ben"' in page.text
    keys = f"/people/{service.principal('outside').account_id}/keys"
    page = service.call("admin", "POST", keys, data={"days": "soon", "scopes": ["predict"]}, headers=dict(HTML))
    assert page.status_code == 422
    assert 'id="days-fault"' in page.text
    assert 'value="predict" checked' in page.text
    keys = f"/people/{service.principal('ben').account_id}/keys"  # a person's page has no scopes
    page = service.call("admin", "POST", keys, data={"days": "3", "scopes": ["predict"]}, headers=dict(HTML))
    assert 'class="fault whole"' in page.text
    assert 'value="3"' in page.text


#: Every page that needs no identifier.
PAGES = (
    *("/worklist", "/report", "/report/appendix", "/policy", "/releases", "/jobs", "/imports", "/readers"),
    *("/people", "/audit", "/help", "/report/specimens"),
)
HTML = {"Accept": "text/html"}


@pytest.mark.parametrize("environment", [render.ENVIRONMENT, report.load_report_templates()], ids=["pages", "reports"])
@pytest.mark.parametrize("text", ["{{ misspelt }}", "{{ row.misspelt }}", "{% if row.misspelt %}{% endif %}"])
def test_a_template_that_names_what_is_not_there_fails(environment: Environment, text: str) -> None:
    with pytest.raises(UndefinedError):
        environment.from_string(text).render(row={"value": 1})


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


def test_the_page_is_of_last_monday_and_counts_in_tens(service: Service) -> None:
    twice(service)
    read_by_two(service, 13)
    before = reading(service)
    assert (before["n_reads"], before["n_compared"], before["confusions"]) == (0, 0, [])
    service.clock.ahead = NEXT_WEEK
    shown = reading(service)
    assert (shown["n_reads"], shown["n_compared"]) == (10, 10)
    assert (shown["seconds"]["n"], shown["cannot_tell"]["n"], shown["agreement"]["n"]) == (10, 10, 10)
    assert shown["self_agreement"] is None
    assert [row["confidence"] for row in shown["confidence"]] == [0.9]
    assert len(shown["steps"]) == 1
    for pulled in (shown["agreement"], shown["cannot_tell"], shown["agreement_surplus"]):
        assert pulled["low"] <= pulled["value"] <= pulled["high"]
    codes = classes_of(service)
    rows = [sum(cell["share"] for cell in shown["confusions"] if cell["others_say"] == code) for code in codes]
    assert rows == pytest.approx([1.0] * len(codes))
    (compared,) = (text for text in shown["sentences"] if text.startswith("Inter-rater agreement"))
    assert re.search(r"on the same cells: \d+ points? (lower|higher)", compared)
    assert not re.search(r"[+-]\d", compared)  # nobody has to look for a sign
    own = shown["agreement"]
    agrees = f'{100 * own["value"]:.0f}% <span class="muted">({100 * own["low"]:.0f} to {100 * own["high"]:.0f};'
    for path in ("/people", f"/people/{service.principal('anna').account_id}"):
        assert agrees in service.get("admin", path).text
    cookie = first_password(service, "anna")
    text = service.client.get("/me", headers=cookie | {"Accept": "text/html"}).text
    assert all(words in text for words in ("My statistics", "Confusions with other annotators", "Over time"))


def test_who_may_see_it(service: Service) -> None:
    assert reading(service)["n_reads"] == 0
    for who in ("anna", "ben"):
        service.add_case(who, cell_png(len(who)))
        assert lease(service, who) is not None
    assert reading(service)["annotator"] == reading(service, name="anna")["annotator"] == "anna"
    assert service.get("anna", "/v1/annotators/ben").status_code == 404
    refused = [service.get("anna", f"/v1/annotators/{name}").json() | {"instance": ""} for name in ("ben", "nobody")]
    assert refused[0] == refused[1]
    assert reading(service, "admin", "ben")["annotator"] == "ben"
    assert service.document("/v1/annotators", "admin")["items"] == ["anna", "ben"]
    assert service.get("viewer", "/v1/annotators/anna").status_code == 403
    assert service.get("admin", "/annotators/ben").status_code == 200
    assert service.get("anna", "/annotators/anna").status_code == 403


def test_nothing_tells_what_was_done_with_a_case_still_to_be_read(service: Service) -> None:
    """Ben reads, declines and corrects cases that anna has not read, and her page stays as it was."""
    twice(service)
    read_by_two(service, 10)
    for number in range(3):
        service.add_case(f"open {number}", cell_png(20 + number))
    service.add_case("hers", cell_png(30))
    service.clock.ahead = NEXT_WEEK
    hers = reading(service)
    codes = classes_of(service)
    for number in range(3):
        read = read_next(service, "ben")
        if number == 2:
            service.post("ben", f"/v1/reads/{read['id']}/decline", json={"reason": "image_quality"})
        else:
            assert commit(service, "ben", read, codes[number]).status_code == 201
    service.make_labels_final()
    assert reading(service) == hers


@pytest.mark.parametrize("closed", [{"repeat_rate": 0.05}, {"reveal": "never"}], ids=["held back", "never shown"])
def test_what_stays_closed_is_on_no_page(
    service: Service, monkeypatch: pytest.MonkeyPatch, closed: dict[str, Any]
) -> None:
    twice(service, **closed)
    monkeypatch.setattr(case_queries, "draw_random_unit", lambda: 0.0)
    read_by_two(service, 10)
    service.clock.ahead = NEXT_WEEK
    assert (reading(service)["n_compared"], reading(service, "admin", "anna")["n_compared"]) == (0, 10)


def test_mondays_begin_weeks() -> None:
    monday = annotators.last_monday(utc_now())
    assert (monday.weekday(), monday.hour) == (0, 0)
    assert annotators.last_monday(monday) == monday
    assert timedelta(minutes=15) < FINAL_AFTER


def test_the_page_of_a_release_states_one_concentration_for_all_cells(
    service: Service, tiny_release: Path, tmp_path: Path
) -> None:
    release, sentence = read_release(tiny_release), "One concentration for all cells"
    for name, weight in (("constant", 0.0), ("varied", 1.0)):
        calibration = Calibration(Scaling(), ConcentrationHead(np.full(FEATURES, weight), 0.5))
        files = {file: (tiny_release / file).read_bytes() for file in ("network.onnx", DISTANCE_FILE)}
        path = write_release(tmp_path / name, files, calibration, {**release.card, "name": name}).path
        page = service.get("admin", f"/releases/{service.put_release(path).id}").text
        assert (sentence in page) == (name == "constant")
