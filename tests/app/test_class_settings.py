"""Names, order, groups and keys of the classes are edited in the product; codes and numbers never follow them."""

import html
import re
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app.annotators.practice.cells import outcomes_of
from app.database.tables import Case, ClassSettings
from app.releases.queries import class_names, reading_classes
from app.releases.service import served_release_id
from tests.support.service import Service, cell_png, store

_FIELDS = ("code", "place", "name", "group", "key")


def typed(service: Service, **changed: str) -> dict[str, Any]:
    """The form of the page as it comes, with some fields typed anew: ``name_blast="Blast cell"``."""
    page = service.get("admin", "/classes").text
    inputs = re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', page)
    form: dict[str, Any] = {name: [html.unescape(v) for n, v in inputs if n == name] for name in _FIELDS}
    for field, value in changed.items():
        name, _, code = field.partition("_")
        form[name][form["code"].index(code)] = value
    return form | {"version": re.search(r'name="version" value="(\d+)"', page)[1]}  # type: ignore[index]


def save(service: Service, **changed: str) -> Any:
    html_page = {"Accept": "text/html"}
    return service.call(
        "admin", "POST", "/classes", data=typed(service, **changed), headers=html_page, follow_redirects=False
    )


@pytest.mark.both_databases
def test_names_order_groups_and_keys_hold_everywhere_and_codes_stay(service: Service) -> None:
    before = service.document("/v1/releases")["items"][0]["classes"]
    codes = [info["code"] for info in before]
    store(service, "cell", cell_png(0), {})
    saved = save(service, name_blast="Blast cell", place_blast="2", group_monocyte="Mono & co", key_blast="Q")
    assert saved.status_code == 303, saved.text
    with service.context.database.read() as session:
        shown = reading_classes(session)
        assert list(class_names(session)) == codes  # numbers are computed in the order of the outputs
    assert [info.code for info in shown] == [codes[1], codes[0], *codes[2:]]
    listed = {info["code"]: info for info in service.document("/v1/releases")["items"][0]["classes"]}
    assert list(listed) == codes
    assert (listed["blast"]["name"], listed["blast"]["shortcut"]) == ("Blast cell", "q")
    assert listed["monocyte"]["group"] == "Mono & co"
    read = service.call("anna", "POST", "/v1/reads", headers={"Idempotency-Key": "k"}).json()
    assert [info["code"] for info in read["classes"]] == [info.code for info in shown]
    for path in ("/references", f"/releases/{served(service)}"):
        assert "Blast cell" in service.get("admin", path).text
    page = service.get("admin", "/audit").text
    assert "created version" in page
    assert "of the class settings" in page
    assert service.faults() == []


def served(service: Service) -> str:
    with service.context.database.read() as session:
        return str(served_release_id(session))


def test_numbers_do_not_follow_the_order_that_people_see(service: Service) -> None:
    store(service, "cell", cell_png(0), {"anna of elsewhere": 0, "ben of elsewhere": 0})

    def probs() -> dict[str, float]:
        with service.context.database.read() as session:
            outcomes = outcomes_of(session, list(session.execute(select(Case.id)).scalars()))
        return dict(zip(outcomes.codes, outcomes.probs[0], strict=True))

    before = probs()
    codes = typed(service)["code"]
    save(service, **{f"place_{code}": str(len(codes) - place) for place, code in enumerate(codes)})
    assert [typed(service)["code"], probs()] == [codes[::-1], pytest.approx(before)]
    assert not np.isnan(list(before.values())).any()


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"name_blast": "monocyte "}, "name-monocyte", "already used by the class blast"),
        ({"key_blast": "7", "key_monocyte": "7"}, "key-monocyte", "already used by the class blast"),
        ({"key_blast": "/"}, "key-blast", "other keys are reserved"),
        ({"place_blast": "1.5"}, "place-blast", "whole number from 1 to"),
        ({"code_blast": "tree"}, "name-tree", "does not have"),
    ],
)
def test_a_fault_stands_beside_its_field_and_nothing_typed_is_lost(
    service: Service, changed: dict[str, str], field: str, words: str
) -> None:
    answer = save(service, **changed, group_basophil="Typed <group>")
    assert answer.status_code == 422
    (fault,) = re.findall(rf'id="{field}-fault"[^>]*>([^<]*)<', answer.text)
    assert words in fault
    assert f'aria-describedby="{field}-fault"' in answer.text
    assert "Typed &lt;group&gt;" in answer.text
    with service.context.database.read() as session:
        assert session.execute(select(ClassSettings)).all() == []


def test_an_earlier_version_is_restored_by_one_button_and_no_change_is_no_version(service: Service) -> None:
    assert save(service).status_code == 303
    assert typed(service)["version"] == "0"
    save(service, name_blast="First name")
    stale = typed(service)
    save(service, name_blast="Second name")
    twice = typed(service) | {"version": "1"}  # a form that came twice
    assert service.call("admin", "POST", "/classes", data=twice, follow_redirects=False).status_code == 303
    assert typed(service)["version"] == "2"
    stale["name"][1] = "Third name"
    answer = service.call("admin", "POST", "/classes", data=stale, follow_redirects=False)
    assert answer.status_code == 409
    assert "omebody else changed the classes" in answer.text
    for version, name in ((1, "First name"), (0, "Blast")):
        form = {"version": version, "seen": typed(service)["version"]}
        answer = service.call("admin", "POST", "/classes/restore", data=form, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        assert name in typed(service)["name"]
    assert typed(service)["version"] == "4"
    gone = {"version": 9, "seen": 4}
    assert service.call("admin", "POST", "/classes/restore", data=gone).status_code == 404


def test_pages_translate_names_until_they_are_set(service: Service) -> None:
    german = {"Accept-Language": "de"}
    page = service.get("admin", "/classes", headers=german).text
    names = [html.unescape(name) for name in re.findall(r'name="name"[^>]*value="([^"]*)"', page)]
    form = typed(service) | {"name": names}  # saved as it came, in German
    form["key"][0] = "q"
    saved = service.call("admin", "POST", "/classes", data=form, headers=german, follow_redirects=False)
    assert saved.status_code == 303
    (classes,) = (row[0].classes for row in service.rows(select(ClassSettings)))
    assert [one["name"] for one in classes] == [None] * len(names)
    assert "Blast" in typed(service)["name"]
