"""Pages of the lead: worklist, first steps, audit, people, promotions, and what a template may name."""

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
import pytest
from fastapi.testclient import TestClient
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, UndefinedError
from sqlalchemy import select
from structlog.testing import capture_logs

import app
from app.audit.sentences import WORDS
from app.database.tables import Account, BrowserSession, utc_now
from app.http.models import DistributionOut
from app.http.principal import ROLE_SCOPES, Principal
from app.labels.annotator_day import get_day_progress
from app.main import create_app
from app.maintenance.erasure import erase_patient_everywhere
from app.releases.registration import add_release
from app.reports import report
from app.settings import Settings
from app.web import render
from app.web.charts import LETTER, LETTERS, PosteriorChart, posterior_bars
from tests.app.test_leases import answer_next, classes_of, commit, read_next
from tests.app.test_own_reading import Clock, next_week, read_by_two, reading, twice
from tests.app.test_people import GOOD, first_password
from tests.support.service import Service, add_people, cell_png
from tests.support.tiny_release import write_tiny_release


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
    assert "3 cases to read" in page
    assert '<option value="Zürich">Zürich</option>' in page
    assert tiles(service.get("admin", "/worklist", params={"site": "Bern"}).text) == 2
    for search, n in (("SLIDE-9", 2), ("meier", 2), ("9_0", 1), ("%", 0)):
        assert tiles(service.get("admin", "/worklist", params={"search": search}).text) == n, search
    page = service.get("admin", "/worklist", params={"site": "Basel"}).text
    assert "Basel (no case)" in page
    assert "Show all cases" in page


def test_the_same_image_under_another_id_is_told_on_both(service: Service) -> None:
    first = service.add_case("first", cell_png(1), patient="p1")
    second = service.add_case("second", cell_png(1), patient="p2")
    service.add_case("third", cell_png(2))
    page = service.get("admin", "/worklist").text
    assert page.count("same image as") == 2
    assert f'href="/cases/{first["id"]}" title="first">same image as first' in page
    assert f'href="/cases/{second["id"]}" title="second">same image as second' in page


def test_the_cases_of_a_day_are_as_many_while_one_of_them_is_held(service: Service) -> None:
    service.add_cases(3)
    account = service.one(select(Account).where(Account.name == "anna"))
    anna = Principal(account.id, "anna", "annotator", ROLE_SCOPES["annotator"])

    def totals() -> tuple[int, int]:
        with service.context.database.read() as session:
            day = get_day_progress(session, anna)
        return day.n_today, day.n_today + day.n_held + day.n_waiting

    assert totals() == (0, 3)
    held = read_next(service, "anna")
    assert totals() == (0, 3)
    assert commit(service, "anna", held, classes_of(service)[0]).status_code == 201
    assert totals() == (1, 3)


def bars_of(*names: str) -> PosteriorChart:
    codes = {str(k): name for k, name in enumerate(names)}
    probs = dict.fromkeys(codes, 1 / len(codes))
    said = DistributionOut(
        class_probs=probs,
        log_concentration=0.0,
        disagreement_prob=0.5,
        disagreement_calibrated=True,
        disagreement_constant=False,
        class_intervals=dict.fromkeys(codes, (0.0, 1.0)),
    )
    return posterior_bars(codes, said, said, dict.fromkeys(codes, 10))


def test_a_long_name_moves_the_bars_and_a_very_long_one_is_shortened() -> None:
    short, long = bars_of("Blast", "Monocyte"), bars_of("Blast", "Segmented, several lobes")
    assert short.left == 200
    assert long.left >= LETTER * len("Segmented, several lobes · 10")
    assert long.rows[0].posterior_interval == (long.left, long.left + long.scale)
    assert long.width > long.left + long.scale
    (row,) = bars_of("x" * 90).rows
    assert len(row.shown) == LETTERS
    assert row.name == "x" * 90


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
        if who == "admin" or path in {"/worklist", "/report", "/policy", "/releases", "/jobs", "/help"}:
            assert answer.status_code == 200, (path, answer.text)
        assert 'aria-label="Pages"' in answer.text, path
    assert "Make a candidate" not in empty.get("admin", "/releases").text


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
    saved = service.call("admin", "POST", "/policy", data=form, follow_redirects=False)
    assert saved.status_code == 303
    assert states(service.get("admin", "/worklist").text) == order | {"policy": "done", "import": "next"}
    service.upload("first", cell_png(1))
    assert "<h1>Worklist" in service.get("admin", "/worklist").text


def test_the_policy_takes_a_decimal_comma_and_says_what_is_wrong_beside_the_field(service: Service) -> None:
    form = {"rule": "disagreement", "threshold": "0,3", "audit_rate": "two", "max_labels": "1", "reason": "a try"}
    page = service.call("admin", "POST", "/policy", data=form)
    assert page.status_code == 422
    for said in ("Must be a number.", "Must be at least 2.", 'value="0,3"', 'value="two"', "a try</textarea>"):
        assert said in page.text, said
    assert 'aria-describedby="audit_rate-fault"' in page.text
    assert 'aria-label="Pages"' in page.text
    page = service.call(
        "admin", "POST", "/policy", data=form | {"threshold": "", "audit_rate": "0,1", "max_labels": "5"}
    )
    assert "Is needed by this rule." in page.text
    saved = service.call(
        "admin", "POST", "/policy", data=form | {"audit_rate": "0,1", "max_labels": "5"}, follow_redirects=False
    )
    assert saved.status_code == 303
    newest = service.get("admin", "/v1/policies").json()["items"][0]
    assert (newest["threshold"], newest["audit_rate"]) == (0.3, 0.1)
    again = service.call("admin", "POST", "/policy", data=form | {"audit_rate": "0,1", "max_labels": "5"})
    assert "in force already" in again.text
    assert again.status_code == 422


def lines(page: str) -> list[str]:
    """The sentences of a page, as one reads them."""
    cells = re.findall(r'<td class="wide"><b>.*?</td>', page, re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells]


def read_one(service: Service) -> str:
    case: str = service.add_case("slide-9-004", cell_png(1), patient="Meier")["id"]
    answer_next(service, "anna", classes_of(service)[0])
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


REASON = "it is <better> & calmer"


@pytest.fixture
def release(service: Service, tmp_path: Path) -> str:
    """A release that is not served."""
    context, folder = service.context, write_tiny_release(tmp_path / "other", "other cells")
    row = add_release(context.database, context.keys.audit, folder, context.folders)[0]
    return str(row.id)


def move(service: Service, release: str, cookie: dict[str, str], **fields: Any) -> httpx.Response:
    form = {"alias": "champion", "revision": "1", "despite_gate": "true", "reason": REASON, "password": "not it"}
    headers = {"Accept": "text/html", **cookie}
    path = f"/releases/{release}/move"
    answer: httpx.Response = service.client.post(path, data=form | fields, headers=headers, follow_redirects=False)
    return answer


def champion(service: Service) -> str:
    items = service.get("viewer", "/v1/aliases").json()["items"]
    return str(next(row["release"] for row in items if row["name"] == "champion"))


def beside(page: str, name: str) -> str:
    """What is said beside a field that is marked as wrong."""
    field = re.search(rf'<(?:input|textarea)[^>]*name="{name}"[^>]*aria-invalid="true"[^>]*>', page)
    assert field is not None, name
    described = re.search(r'aria-describedby="([^"]+)"', field[0])
    assert described is not None
    assert page.count(f'id="{described[1]}"') == 1
    said = re.search(rf'<p class="fault" id="{described[1]}" role="alert">(.*?)</p>', page)
    assert said is not None
    return unescape(said[1])


@pytest.mark.slow
def test_a_wrong_password_at_a_promotion_keeps_the_page_and_what_was_typed(service: Service, release: str) -> None:
    cookie, before = first_password(service, "admin"), champion(service)
    for typed in ("not it", ""):
        answer = move(service, release, cookie, password=typed)
        assert answer.status_code == 403
        assert "<nav" in answer.text
        assert "<h1>other cells" in answer.text
        assert beside(answer.text, "password") == "Repeat your password: it is missing or wrong."
        assert unescape(re.findall(r'name="reason"[^>]*>([^<]*)<', answer.text)[0]) == REASON
        assert re.search(r'name="despite_gate"[^>]* checked', answer.text)
        assert answer.text.count('aria-invalid="true"') == 1  # that of the other form is as it was
        assert "not it" not in answer.text
    assert champion(service) == before
    assert move(service, release, cookie, password=GOOD).status_code == 303
    assert champion(service) == release


@pytest.mark.slow
def test_what_else_is_refused_at_a_promotion_stands_on_the_page_too(service: Service, release: str) -> None:
    cookie = first_password(service, "admin")
    answer = move(service, release, cookie, password=GOOD, reason=" ")
    assert (answer.status_code, beside(answer.text, "reason")) == (422, "Say why.")
    unjudged = move(service, release, cookie, password=GOOD, despite_gate="false")
    assert unjudged.status_code == 409
    assert "No gate has judged this release" in unjudged.text
    assert 'id="champion-fault"' in unjudged.text
    moved = move(service, release, cookie, password=GOOD, revision="7")
    assert moved.status_code == 412
    assert 'id="champion-fault"' in moved.text
    assert "<nav" in moved.text


@pytest.mark.slow
def test_a_script_gets_a_problem(service: Service, release: str) -> None:
    cookie = first_password(service, "admin")
    for accept in ("*/*", "application/json"):
        answer = move(service, release, cookie | {"Accept": accept})
        assert answer.status_code == 403
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"] == "repeat your password: it is missing or wrong"


def test_a_wrong_present_password_is_told_beside_it(service: Service) -> None:
    cookie = first_password(service, "anna")
    url = "/account"
    wrong = service.client.post(url, data={"present": "x", "wanted": "quite another one"}, headers=cookie)
    assert (wrong.status_code, beside(wrong.text, "present")) == (403, "The present password is wrong.")
    short = service.client.post(url, data={"present": GOOD, "wanted": "short"}, headers=cookie)
    assert short.status_code == 422
    assert "15" in beside(short.text, "wanted")
    for answer in (wrong, short):
        assert "<nav" in answer.text


def test_a_wrong_password_at_the_sign_in_keeps_the_name(service: Service) -> None:
    service.client.cookies.clear()
    answer = service.client.post("/login", data={"name": 'anna"<', "password": "x"})
    assert answer.status_code == 401
    assert 'value="anna&#34;&lt;"' in answer.text
    assert re.search(r'name="password"[^>]* autofocus', answer.text)


def test_no_other_form_asks_for_a_password() -> None:
    """A new one belongs above."""
    templates = Path(__file__).parents[2] / "app" / "web" / "templates"
    asking = {path.name for path in templates.glob("*.html") if 'type="password"' in path.read_text()}
    assert asking == {"login.html", "account.html", "release.html"}


__all__ = ["next_week"]


def account_id(service: Service, name: str) -> uuid.UUID:
    return service.one(select(Account.id).where(Account.name == name))


@pytest.mark.both_databases
def test_the_table_has_everybody_with_their_last_sign_in_and_finds_names(service: Service) -> None:
    long = "x" * 100
    for name in (long, "Ödön"):
        assert service.call("admin", "POST", "/people", data={"name": name, "role": "annotator"}).status_code == 200
    with service.context.database.write() as session:
        row = session.execute(select(Account).where(Account.name == "ben")).scalar_one()
        session.add(BrowserSession(account_id=row.id, token_sha256="0" * 64, seen_at=utc_now()))
    page = service.get("admin", "/people").text
    rows = dict(re.findall(r'<tr data-text="([^"]+)">(.*?)</tr>', page, re.DOTALL))
    assert set(rows) == {"admin", "viewer", "anna", "ben", "outside", long, "Ödön"}
    assert "<time" in rows["ben"]
    assert "never" in rows["anna"]
    assert "by keys only" in rows["outside"]
    found = service.get("admin", "/people", params={"search": "öD"}).text
    assert re.findall(r'data-text="([^"]+)"', found) == ["Ödön"]


def test_nobody_is_locked_out_by_one_click(service: Service) -> None:
    ben = account_id(service, "ben")
    page = service.get("admin", f"/people/{ben}").text
    assert re.search(r"<details><summary>Let in no more</summary>.*Yes, let them in no more", page, re.DOTALL)
    assert service.call("admin", "POST", f"/people/{ben}/state", data={"disabled": "true"}).status_code == 200
    page = service.get("admin", f"/people/{ben}").text
    assert "let in no more since" in page
    assert "Let in again" in page
    assert "let in no more" in service.get("admin", "/people").text
    me = service.get("admin", f"/people/{account_id(service, 'admin')}").text
    assert "This is you" in me
    assert service.get("admin", f"/people/{uuid.uuid4()}").status_code == 422


def test_what_is_wrong_with_a_new_account_or_key_stands_beside_the_field(service: Service) -> None:
    page = service.call("admin", "POST", "/people", data={"name": "ben", "role": "viewer"})
    assert page.status_code == 422
    assert 'id="name-fault"' in page.text
    assert "An account of this name exists." in page.text
    assert 'value="ben"' in page.text
    page = service.call("admin", "POST", f"/people/{account_id(service, 'outside')}/keys", data={"days": "soon"})
    assert page.status_code == 422
    assert 'id="days-fault"' in page.text
    page = service.call("admin", "POST", f"/people/{account_id(service, 'ben')}/keys", data={"scopes": ["predict"]})
    assert 'id="scopes-fault"' in page.text


def test_the_agreement_is_that_of_each_annotators_own_page(service: Service, next_week: Clock) -> None:
    twice(service)
    read_by_two(service, 13)
    next_week()
    own = reading(service, "admin", "anna")["agreement"]
    assert own["n"] == 10
    shown = f'{100 * own["value"]:.0f} % <span class="muted">({100 * own["low"]:.0f} to {100 * own["high"]:.0f};'
    assert shown in service.get("admin", "/people").text
    assert shown in service.get("admin", f"/people/{account_id(service, 'anna')}").text


#: Every page that needs no identifier.
PAGES = ("/worklist", "/report", "/policy", "/releases", "/jobs", "/imports", "/readers", "/people", "/audit", "/help")
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
