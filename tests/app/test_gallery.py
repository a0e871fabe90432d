"""Labels of the gallery are never blind, change nothing that is evaluated, and seeing a tile unblinds its person."""

import csv
import io
import re
import uuid
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from sqlalchemy import func, select

from app.accounts.people import add_account, add_key
from app.cases.blindness import was_exposed
from app.cases.service import MOST_TILES
from app.database.tables import Account, Annotator, AuditEvent, Exposure, Job, Label
from app.job_table import ask_for_recalibration
from app.labels.gallery import label_in_gallery, undo_in_gallery
from app.labels.posterior import opinions_of
from app.web.forms import account_handle
from tests.app.test_leases import all_once, answer_next, classes_of, set_policy
from tests.support.service import Service, cell_png

INDEX = "/cells/gallery/index"


def names_in(service: Service, who: str = "admin", **query: str) -> dict[str, list[str]]:
    """Cells of the gallery by class, of all parts of its index."""
    groups: dict[str, list[str]] = {}
    while True:
        part = service.document(INDEX, who, **query)
        for code, cells in part["groups"].items():
            groups.setdefault(code, []).extend(cells)
        if part["next_cursor"] is None:
            return groups
        query["cursor"] = part["next_cursor"]


def all_names(service: Service, who: str = "admin", **query: str) -> list[str]:
    return [name for names in names_in(service, who, **query).values() for name in names]


def draw(service: Service, names: list[str], who: str = "admin") -> dict[str, Any]:
    answer = service.call(who, "POST", "/cells/gallery/tiles", data={"cell": names})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["tiles"])


def send(service: Service, path: str, who: str = "admin", **fields: Any) -> httpx.Response:
    account = account_handle(service.context.keys.readers, service.principal(who).account_id)
    form = {"form_key": uuid.uuid4().hex, "account": account, **fields}
    return service.call(who, "POST", f"/cells/gallery/{path}", data=form)


def own_labels(service: Service, name: str = "admin") -> list[Any]:
    columns = (Label.kind, Label.class_code, Label.blind, Label.post_reveal, Label.position)
    mine = select(*columns).join(Annotator, Annotator.id == Label.annotator_id).where(Annotator.name == name)
    return [tuple(row) for row in service.rows(mine.order_by(Label.id))]


@pytest.mark.both_databases
def test_tiles_stand_under_the_predicted_class_until_they_are_settled(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cases.gallery.INDEX_LENGTH", 4)  # an index of two parts
    cells = {cell["external_id"]: cell for cell in service.add_cases(6)}
    predicted = {
        external_id: max(cell["prediction"]["class_probs"], key=cell["prediction"]["class_probs"].get)
        for external_id, cell in cells.items()
    }
    groups = names_in(service)
    drawn = draw(service, all_names(service))
    assert service.document(INDEX, "admin")["counts"] == {code: len(names) for code, names in groups.items()}
    assert {tile["external_id"]: code for code, names in groups.items() for tile in map(drawn.get, names)} == predicted
    name, tile = next(iter(drawn.items()))
    other = next(code for code in classes_of(service) if code != tile["predicted"])
    answer = send(service, "labels", cell=[name], label=other)
    assert (answer.status_code, answer.json()["n"]) == (201, 1)
    assert name in names_in(service)[other]
    assert send(service, "labels", cell=[name], label=other).json() == {"n": 0, "first": None}
    assert names_in(service, who="viewer") == names_in(service)
    assert names_in(service, search="case 3").keys() == {predicted["case 3"]}
    assert all_names(service, state="flagged") == []


def test_a_label_is_not_blind_revises_an_earlier_one_and_is_undone(service: Service) -> None:
    codes = classes_of(service)
    service.add_cases(3)
    names = all_names(service)
    first = send(service, "labels", cell=names, label=codes[0]).json()
    assert first["n"] == 3
    assert own_labels(service) == [("label", codes[0], False, True, 0)] * 3
    second = send(service, "labels", cell=names[:2], label=codes[1]).json()
    assert own_labels(service)[3:] == [("revision", codes[1], False, True, 1)] * 2
    assert send(service, "undo", first=second["first"]).json()["n"] == 2
    assert own_labels(service)[5:] == [("revision", codes[0], False, True, 2)] * 2
    assert set(names_in(service)[codes[0]]) == set(names)
    # the one that has not been changed since goes back to its prediction, the others were changed again
    assert send(service, "undo", first=first["first"]).json()["n"] == 1
    assert own_labels(service)[7:] == [("retraction", None, False, True, 1)]
    assert send(service, "undo", first=first["first"]).status_code == 409
    events = service.one(
        select(func.count()).where(AuditEvent.action.in_(["label.add", "label.revise", "label.retract"]))
    )
    assert events == len(own_labels(service)) == 8


@pytest.mark.slow
@pytest.mark.ci
def test_a_label_of_a_page_that_was_made_for_another_lead_is_refused(service: Service) -> None:
    """Two leads use one browser: the page of the first one is still open when the second one signs in."""
    service.add_cases(1)
    page = service.get("admin", "/cells/gallery").text
    account = re.search(r'name="account" value="([^"]+)"', page)
    assert account is not None
    with service.context.database.write() as session:
        add_account(session, service.context.keys.audit, "second lead", "admin")
        service.keys["second lead"] = add_key(session, service.context.keys.audit, "second lead", [])[1]
    form = {"cell": all_names(service), "label": classes_of(service)[0], "account": account[1]}
    assert send(service, "labels", "second lead", **form).json()["type"] == "urn:secondread:problem:other-account"
    assert send(service, "labels", "second lead", **form | {"account": "ä"}).status_code == 403
    assert own_labels(service, "second lead") == []
    assert send(service, "labels", **form).status_code == 201


def test_a_form_of_the_page_without_scripts_labels_and_undoes(service: Service) -> None:
    service.add_cases(2)
    page = service.get("admin", "/cells/gallery", params={"search": "case"}).text
    names, key = re.findall(r'name="cell" value="([^"]+)"', page), re.findall(r'name="form_key" value="([^"]+)"', page)
    account = re.findall(r'name="account" value="([^"]+)"', page)[0]
    form = {
        "form_key": key[-1],
        "account": account,
        "cell": names,
        "label": classes_of(service)[2],
        "filters": "search=case&state=&site=",
    }
    html = {"headers": {"Accept": "text/html"}, "follow_redirects": False}
    for _ in range(2):  # sent twice, stored once
        answer = service.call("admin", "POST", "/cells/gallery/labels", data=form, **html)
        assert answer.status_code == 303
    assert len(own_labels(service)) == 2
    page = service.get("admin", answer.headers["Location"]).text
    first = re.search(r'name="first" value="([^"]+)"', page)
    assert first is not None
    form = {"form_key": "undo", "first": first[1]}
    assert service.call("admin", "POST", "/cells/gallery/undo", data=form, **html).status_code == 303
    assert [label[0] for label in own_labels(service)] == ["label"] * 2 + ["retraction"] * 2
    assert 'name="cell"' not in service.get("viewer", "/cells/gallery").text


def test_annotators_have_no_gallery_viewers_only_look_and_nothing_else_is_taken(service: Service) -> None:
    service.add_cases(1)
    name = all_names(service)
    code = classes_of(service)[0]
    for path in ("/cells/gallery", INDEX):
        assert [service.get(who, path).status_code for who in ("viewer", "anna", None)] == [200, 403, 401]
    assert service.call("anna", "POST", "/cells/gallery/tiles", data={"cell": name}).status_code == 403
    for who in ("viewer", "anna"):
        assert send(service, "labels", who, cell=name, label=code).status_code == 403
        assert send(service, "undo", who, first=str(uuid.uuid4())).status_code == 403
    for cell, label in ((name, ""), (name, "no class"), (["x"], code), ([str(uuid.uuid4())], code)):
        assert send(service, "labels", cell=cell, label=label).status_code in {404, 422}, label
    assert send(service, "labels", cell=name * (MOST_TILES + 1), label=code).status_code == 422
    assert send(service, "undo", first=str(uuid.uuid4())).status_code == 404
    assert own_labels(service) == []


@pytest.mark.both_databases
def test_who_has_seen_a_tile_never_reads_its_image_blind(service: Service) -> None:
    seen = service.add_case("seen", cell_png(0), patient="P-1")
    service.add_case("other", cell_png(5))
    names = all_names(service)
    assert service.scalars(select(Exposure.case_id)) == []
    found = all_names(service, search="seen")
    for _ in range(2):
        draw(service, found)
    assert service.scalars(select(Exposure.case_id)) == [uuid.UUID(seen["id"])]
    draw(service, [*set(names) - set(found)])
    assert len(service.scalars(select(Exposure.case_id))) == 2
    twin, new = service.add_case("twin", cell_png(0), patient="P-1"), service.add_case("new", cell_png(9))
    # roles never change; were this person an annotator some day, what they have seen would stand
    account = service.one(select(Account.id).where(Account.name == "admin"))
    with service.context.database.write() as session:
        session.get_one(Account, account).role = "annotator"
        annotator = session.execute(select(Annotator.id).where(Annotator.account_id == account)).scalar_one()
    with service.context.database.read() as session:
        told = [was_exposed(session, annotator, uuid.UUID(cell["id"])) for cell in (seen, twin, new)]
    assert told == [True, True, False]


def what_stands(service: Service, folder: Path) -> list[Any]:
    """Everything that is evaluated, fitted or planned, and an export without its audit and outcomes."""
    service.export(folder)
    files = {}
    for path in folder.rglob("*.csv"):
        rows = list(csv.DictReader(io.StringIO(path.read_text()))) if path.stem != "audit" else []
        files[path.name] = [{k: v for k, v in row.items() if not k.startswith("outcome")} for row in rows]
    metrics = service.document("/v1/metrics", partition="all")
    cells = [cell["id"] for cell in service.items("/v1/cases")]
    asked = [service.get("viewer", f"/v1/cases/{cell}/posterior").json() for cell in cells]
    agreement = service.document("/v1/agreement")
    work = service.document("/v1/worklist", "admin")["items"]
    planned = [[one for one in item["requests"] if one["round"] == "planned"] for item in work]
    waiting = [any(one["state"] == "open" for one in requests) for requests in planned]
    need = [(item["need"], *of) for item, of, wanted in zip(work, planned, waiting, strict=True) if wanted]
    return [files, {k: v for k, v in metrics.items() if "at" not in k}, asked, agreement, need]


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_evaluation_calibration_and_posteriors_stay_as_they_are(service: Service, tmp_path: Any) -> None:
    set_policy(service, threshold=0.0, reveal="after_case_closed", adjudicate_below=0.99)
    codes = classes_of(service)
    cells = [service.add_case(f"case {n}", cell_png(n), patient=f"p{n}") for n in range(6)]
    for who in ("anna", "ben"):
        for n in range(5):
            answer_next(service, who, codes[n % 2])
    service.outside_label(cells[0]["id"], "Dr Outside", codes[3])
    service.make_labels_final()

    before = what_stands(service, tmp_path / "before")
    names = all_names(service)
    last = send(service, "labels", cell=names, label=codes[5]).json()
    assert what_stands(service, tmp_path / "labelled") == before
    send(service, "labels", cell=names[:3], label=codes[6])
    send(service, "undo", first=last["first"])
    assert what_stands(service, tmp_path / "undone") == before


def test_labels_of_the_gallery_ask_for_no_recalibration(service: Service) -> None:
    cell = service.add_case("case", cell_png(0))
    service.context.settings.recalibrate_days = 7
    send(service, "labels", cell=all_names(service), label=classes_of(service)[0])
    ask_for_recalibration(service.context)
    assert service.scalars(select(Job.kind)) == []
    service.outside_label(cell["id"], "Dr Outside", classes_of(service)[0])
    ask_for_recalibration(service.context)
    assert service.scalars(select(Job.kind)) == ["recalibration"]


def test_undo_of_a_label_after_a_blind_one_leaves_the_blind_one(service: Service) -> None:
    # accounts that read cannot manage: only rows of another time could have both
    codes = classes_of(service)
    all_once(service)
    cell = service.add_case("case", cell_png(0))
    answer_next(service, "anna", codes[0])
    service.make_labels_final()
    anna = service.principal("anna", "manage")
    with service.context.database.write() as session:
        given = label_in_gallery(session, service.context, anna, [uuid.UUID(cell["id"])], codes[1])
    with service.context.database.write() as session:
        undo_in_gallery(session, service.context, anna, uuid.UUID(str(given.first)))
    assert [label[:3] for label in own_labels(service, "anna")] == [
        ("label", codes[0], True),
        ("revision", codes[1], False),
        ("revision", codes[0], False),
    ]
    with service.context.database.read() as session:
        assert [row.label.class_code for row in opinions_of(session, uuid.UUID(cell["id"]))] == [codes[0]]
