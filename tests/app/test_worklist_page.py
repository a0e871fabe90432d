"""The lead's worklist: choices and a search instead of names from memory, counts, and the same image told."""

import pytest
from sqlalchemy import select

from app.database.tables import Account
from app.http.principal import ROLE_SCOPES, Principal
from app.labels.annotator_day import get_day_progress
from tests.app.test_leases import classes_of, commit, lease
from tests.support.service import Service, cell_png


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
    for number in range(3):
        service.add_case(f"case {number}", cell_png(number))
    with service.context.database.read() as session:
        account = session.execute(select(Account).where(Account.name == "anna")).scalar_one()
    anna = Principal(account.id, "anna", "annotator", ROLE_SCOPES["annotator"])

    def totals() -> tuple[int, int]:
        with service.context.database.read() as session:
            day = get_day_progress(session, anna)
        return day.n_today, day.n_today + day.n_held + day.n_waiting

    assert totals() == (0, 3)
    held = lease(service, "anna")
    assert held is not None
    assert totals() == (0, 3)
    assert commit(service, "anna", held, classes_of(service)[0]).status_code == 201
    assert totals() == (1, 3)
