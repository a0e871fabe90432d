"""The page of all cells finds each of them, and the navigation has six items for leads and three for annotators."""

import csv
import io
import re
import uuid
from datetime import timedelta

import httpx2 as httpx
import pytest
from PIL import Image
from sqlalchemy import select

from app.database.tables import Annotator, ReaderDraw, ReadRequest
from app.http.principal import ROLE_SCOPES
from app.maintenance.erasure import erase_patient_everywhere
from app.metrics.dataset import pack_dataset_ids
from app.metrics.load import load_dataset
from app.metrics.service import release_or_champion
from app.web.navigation import navigation_for
from tests.app.test_leases import all_once, answer_next, classes_of, read_next, set_policy
from tests.support.service import Service, cell_png, store


def found(service: Service, **query: str) -> set[str]:
    """External ids that the page lists."""
    page = service.get("admin", "/cells", params=query).text
    listed = set(re.findall(r"<bdi>(cell [a-z]+)</bdi></a></td>", page))
    assert re.search(rf">{len(listed)} cells?<", page)
    return listed


@pytest.fixture
def ward(service: Service) -> Service:
    """A flagged cell that is read, one whose labels conflict, and one that nobody has read."""
    codes = classes_of(service)
    all_once(service)
    read = store(service, "cell read", cell_png(0), {}, patient="P-17", site="North")
    answer_next(service, "anna", codes[2], flag=True)
    service.outside_label(read, "Dr Outside", codes[3])
    service.add_annotator("cleo")  # who decides where the two differ
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


def in_order(service: Service, sort: str, *, down: bool) -> list[str]:
    page = service.get("viewer", "/cells", params={"sort": sort, "down": down}).text
    return [name.removeprefix("cell ") for name in re.findall(r"<bdi>(cell [a-z]+)</bdi></a></td>", page)]


def test_the_table_and_its_file_are_sorted_by_each_column(ward: Service) -> None:
    disagreement = {
        case["external_id"][5:]: case["prediction"]["disagreement_prob"] for case in ward.items("/v1/cases")
    }
    by_disagreement = sorted(disagreement, key=lambda name: disagreement[name])
    for sort, ascending in {
        "cell": ["disputed", "new", "read"],
        "patient": ["read", "disputed", "new"],
        "stored": ["read", "disputed", "new"],
        "disagreement": by_disagreement,
    }.items():
        assert in_order(ward, sort, down=False) == ascending, sort
        assert in_order(ward, sort, down=True) == ascending[::-1], sort
    assert in_order(ward, "labels", down=False)[0] == "new"
    assert in_order(ward, "due", down=False)[-1] == "read"  # no read of it is open
    rows = list(csv.DictReader(io.StringIO(ward.get("viewer", "/cells.csv?sort=cell&down=false&site=South").text)))
    assert [(row["cell"], row["patient"], int(row["labels"])) for row in rows] == [
        ("cell disputed", "P-18", 2),
        ("cell new", "P-19", 0),
    ]
    assert float(rows[1]["class_prob"]) > 1 / 9


def change_reads(service: Service, who: str, case_ids: list[str], **fields: str) -> httpx.Response:
    """What the form below the table sends."""
    return service.post(who, "/cells/reads", data={"cell": case_ids, **fields}, follow_redirects=False)


@pytest.mark.both_databases
def test_reads_are_assigned_by_hand_to_who_has_not_met_the_cell_and_are_no_random_draw(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, draw_readers=True)
    ids = [store(service, f"cell {number}", cell_png(number), {}, patient=f"P-{number}") for number in range(4)]
    drawn = select(Annotator).join(ReadRequest, ReadRequest.annotator_id == Annotator.id)
    who = service.scalars(drawn)[0]
    read = read_next(service, who.name)
    service.post(who.name, f"/v1/reads/{read['id']}/decline", json={"reason": "image_quality"})
    changed = change_reads(service, "admin", ids, act="assign", annotator=str(who.id))
    assert changed.headers["Location"] == "/cells?changed=3&chosen=4"
    assert "1 cell stays as it is" in service.get("admin", changed.headers["Location"]).text
    declined = uuid.UUID(service.case_of(who.name, read["case_id"]))
    asked = set(service.scalars(select(ReadRequest.case_id).where(ReadRequest.annotator_id == who.id)))
    assert asked | {declined} == {uuid.UUID(case_id) for case_id in ids}
    by_hand = set(service.scalars(select(ReaderDraw.case_id).where(ReaderDraw.probability.is_(None))))
    with service.context.database.read() as session:
        columns = load_dataset(session, *release_or_champion(session, None))
    ids_of = [uuid.UUID(bytes=packed) for packed in pack_dataset_ids(columns)]
    assert list(columns.drawn) == [case_id not in by_hand for case_id in ids_of]
    (event,) = [one for one in service.items("/v1/audit-events", "admin") if one["action"] == "request.assign"]
    assert len(event["details"]["requests"]) == 3


def test_a_due_date_is_that_of_all_cells_of_the_patient_and_never_in_the_past(service: Service) -> None:
    all_once(service)
    ids = [store(service, f"cell {n}", cell_png(n), {}, patient=f"P-{n // 2}") for n in range(4)]
    day = (service.context.clock() + timedelta(days=1)).date()
    assert change_reads(service, "admin", ids[:1], act="due", due=day.isoformat()).status_code == 303
    due = {str(row.case_id): row.due_on == day.isoformat() for row in service.scalars(select(ReadRequest))}
    assert [due[case_id] for case_id in ids] == [True, True, False, False]
    for fields in ({"due": "2020-01-01"}, {"due": ""}, {"due": day.isoformat(), "act": "assign"}):
        assert change_reads(service, "admin", ids, **{"act": "due", **fields}).status_code == 422
    for who in ("viewer", "anna"):
        assert change_reads(service, who, ids, act="due", due=day.isoformat()).status_code == 403


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
