"""The page of all cells finds each of them, and the navigation has six items for leads and three for annotators."""

import io
import re

import pytest
from PIL import Image

from app.http.principal import ROLE_SCOPES
from app.maintenance.erasure import erase_patient_everywhere
from app.web.navigation import navigation_for
from tests.app.test_leases import all_once, answer_next, classes_of, set_policy
from tests.support.service import Service, cell_png, store


def found(service: Service, **query: str) -> set[str]:
    """External ids that the page lists."""
    page = service.get("admin", "/cells", params=query).text
    listed = set(re.findall(r"<bdi>(cell [a-z]+)</bdi></a></td>", page))
    assert re.search(rf">{len(listed)} cells?,", page)
    return listed


@pytest.fixture
def ward(service: Service) -> Service:
    """A flagged cell that is read, one whose labels conflict, and one that nobody has read."""
    codes = classes_of(service)
    all_once(service)
    read = store(service, "cell read", cell_png(0), {}, patient="P-17", site="North")
    answer_next(service, "anna", codes[2], flag=True)
    service.outside_label(read, "Dr Outside", codes[3])
    set_policy(service, threshold=0.0, adjudicate_below=0.99)
    store(service, "cell disputed", cell_png(1), {}, patient="P-18", site="South")
    for who, code in (("anna", codes[0]), ("ben", codes[1])):
        answer_next(service, who, code)
    store(service, "cell new", cell_png(2), {}, patient="P-19", site="South")
    return service


def test_a_cell_is_found_in_every_state_by_what_people_know_of_it(ward: Service) -> None:
    everything = {"cell read", "cell disputed", "cell new"}
    names = [info["name"] for info in ward.document("/v1/releases")["items"][0]["classes"]]
    for search, expected in {
        "": everything,
        "READ": {"cell read"},
        "p-1": everything,
        "north": {"cell read"},
        "dr outs": {"cell read"},
        "ben": {"cell disputed"},
        names[2].upper(): {"cell read"},
        names[0][:4]: {"cell disputed"},
        "100%_": set(),
    }.items():
        assert found(ward, search=search) == expected, search
    for state, expected in {
        "to_read": {"cell disputed", "cell new"},
        "adjudication": {"cell disputed"},
        "flagged": {"cell read"},
        "completed": {"cell read"},
    }.items():
        assert found(ward, state=state) == expected, state
    assert found(ward, site="South", search="new") == {"cell new"}
    assert ward.get("admin", "/cells", params={"state": "lost"}).status_code == 422


def test_the_page_is_for_leads_and_forgets_who_is_erased(ward: Service) -> None:
    case = next(ward.items("/v1/cases", external_id="cell read"))
    path = f"/cells/{case['id']}/thumbnail"
    small = ward.get("viewer", path)
    with Image.open(io.BytesIO(small.content)) as image:
        assert (small.headers["Content-Type"], image.format, max(image.size) <= 160) == ("image/webp", "WEBP", True)
    assert small.headers["Cache-Control"].startswith("private")
    for address in ("/cells", path):
        assert [ward.get(who, address).status_code for who in ("anna", None)] == [403, 401]
    erase_patient_everywhere(ward.context, "admin", "P-17", "asked for")
    assert ward.get("viewer", path).status_code == 404
    assert found(ward) == {"cell disputed", "cell new"}


def test_the_navigation_has_six_items_for_leads_three_for_annotators_and_each_page_opens(ward: Service) -> None:
    for who, role, n in (("admin", "admin", 6), ("viewer", "viewer", 5), ("anna", "annotator", 3)):
        items = navigation_for(ward.principal(who, *ROLE_SCOPES[role]), "/cases/x")
        assert len(items) == n
        assert [item.current for item in items].count(True) == 1
        for page in [page for item in items for page in item.pages]:
            answer = ward.get(who, page.path)
            assert answer.status_code == 200
            # reference cells are the same bytes for every annotator, so their page has no navigation
            assert 'aria-current="page"' in answer.text or (who, page.path) == ("anna", "/references"), page
