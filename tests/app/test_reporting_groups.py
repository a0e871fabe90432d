"""Reporting groups and the rule by specimen value: the policy's laws, its page and its form."""

import re
from collections import defaultdict
from html import unescape
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from app.triage.rules import TriageRule, decide_triage
from app.triage.service import PolicyIn
from ml.distributions.families import DirichletCpe
from tests.app.test_leases import classes_of, set_policy
from tests.app.test_refused_forms import form_at, post
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, collect

#: A share that no binary number is, and a cost that is not whole.
THRESHOLDS = [{"at": 0.0123456789, "miss_cost": 10.0}, {"at": 0.2, "miss_cost": 2.5}, {"at": 0.07, "miss_cost": 1.0}]


#: A field of a form: its name, its other attributes, and what can be chosen.
FIELD = re.compile(r'<(?:input|select|textarea) name="(\w+)"([^>]*)>((?:<option.*?</option>)*)')


def fields_of(service: Service) -> dict[str, list[str]]:
    """What a browser would send of the policy's form, without typing anything."""
    form = service.get("admin", "/policy").text.partition('action="/policy"')[2].partition("</form>")[0]
    fields = defaultdict[str, list[str]](list)
    for name, attributes, options in FIELD.findall(form):
        found = re.search(r'value="([^"]*)"' + " selected" * bool(options), options or attributes)
        fields[name].append("" if found is None else unescape(found[1]))
    return fields


BY_VALUE: dict[str, Any] = {"rule": "specimen_value", "reads_per_specimen": 5}
BLASTS: dict[str, Any] = {"group": "blasts", "classes": ["blast"], "thresholds": [{"at": 0.05}]}


def policy(**fields: Any) -> PolicyIn:
    return PolicyIn.model_validate({"threshold": None, "reason": "x"} | fields)


@pytest.mark.parametrize("goal", ["decision", "share"])
def test_the_rule_by_specimen_value_takes_a_number_of_reads_and_a_goal(goal: str) -> None:
    found = policy(**BY_VALUE, specimen_goal=goal, reporting_groups=[BLASTS])
    assert (found.reads_per_specimen, found.specimen_goal) == (5, goal)
    assert policy(**BY_VALUE, reporting_groups=[BLASTS]).specimen_goal == "decision"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rule": "specimen_value", "reporting_groups": [BLASTS]}, "needs reads_per_specimen"),
        (BY_VALUE | {"threshold": 0.2, "reporting_groups": [BLASTS]}, "takes no threshold"),
        (BY_VALUE | {"reporting_groups": [BLASTS | {"thresholds": []}]}, "needs thresholds"),
        (BY_VALUE | {"specimen_goal": "share"}, "needs reporting_groups"),
        ({"threshold": 0.2, "reads_per_specimen": 5}, "takes no reads_per_specimen"),
        ({"rule": "graded", "capacity_per_day": 5, "reads_per_specimen": 5}, "takes no reads_per_specimen"),
        ({"threshold": 0.2, "specimen_goal": "share"}, "takes no specimen_goal"),
        ({"threshold": 0.2, "reporting_groups": [BLASTS, BLASTS]}, "two reporting groups are called blasts"),
        ({"threshold": 0.2, "reporting_groups": [BLASTS, BLASTS | {"group": "b"}]}, "belongs to blasts and to b"),
        ({"threshold": 0.2, "reporting_groups": [BLASTS | {"classes": []}]}, "at least 1 item"),
        *(
            ({"threshold": 0.2, "reporting_groups": [BLASTS | {"thresholds": [{"at": at}]}]}, "than")
            for at in (-0.1, 0, 1, 5)
        ),
    ],
)
def test_a_policy_that_cannot_be_carried_out_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        policy(**fields)


def test_the_api_describes_a_fault_in_its_own_words(service: Service) -> None:
    wanted = {"threshold": 0.2, "reporting_groups": [BLASTS, BLASTS | {"group": "b"}], "reason": "x"}
    refused = service.post("admin", "/v1/policies", json=wanted).json()
    assert refused["errors"][0]["what"] == "class blast belongs to blasts and to b"
    missing = service.post("admin", "/v1/policies", json={"rule": "graded", "reason": "x"}).json()
    assert missing["errors"][0]["what"] == "the graded rule needs capacity_per_day"
    turned = service.upload("a", cell_png(1), site="north\u202e").json()
    assert turned["errors"] == [{"where": ["body", "site"], "what": "must not contain the character U+202E"}]


def test_of_a_specimen_what_is_chosen_is_read_twice_and_the_rest_at_the_audit_rate() -> None:
    rule = TriageRule("specimen_value", np.inf, 0.1, 0.02, 0.9, 5)
    for probs in ([0.98, 0.01, 0.01], [0.4, 0.35, 0.25]):
        cell = DirichletCpe(np.array([probs]), np.array([2.0]))
        found = {chosen: decide_triage(cell, rule, chosen=chosen) for chosen in (False, True)}
        assert [(one.decision, one.pi) for one in found.values()] == [("single_read", 0.1), ("second_read", 1.0)]
        assert decide_triage(cell, rule, chosen=True, near_duplicate=True).pi == 0.1
        assert decide_triage(cell, rule, out_of_distribution=True).decision == "second_read"


@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "specimen_value", "threshold": None, "reads_per_specimen": 5, "specimen_goal": "share"},
        {"rule": "expected_gain", "threshold": 0.1},
    ],
)
def test_saving_the_form_keeps_what_came_over_the_api(service: Service, rule: dict[str, Any]) -> None:
    first, second = classes_of(service)[:2]
    groups = [{"group": "young", "classes": [first, second], "thresholds": THRESHOLDS}]
    before = set_policy(service, **rule, reporting_groups=groups, urgent=[{"class": first, "above": 0.07, "hours": 4}])
    answer = post(service, "/policy", **fields_of(service) | {"audit_rate": "0.3", "reason": "more"})
    assert answer.status_code == 303, answer.text
    after = service.document("/v1/policies")["items"][0]
    changed = {"version", "audit_rate", "reason", "created_at"}
    assert {name for name in after if after[name] != before[name]} == changed


@pytest.mark.parametrize(
    ("typed", "thresholds"),
    [
        ("5 % × 10, 20 %", [(0.05, 10.0), (0.2, 1.0)]),
        ("2,5% × 1,5,7,25%", [(0.025, 1.5), (0.0725, 1.0)]),
        ("5%x10;20％", [(0.05, 10.0), (0.2, 1.0)]),
        ("  ", []),
    ],
)
def test_thresholds_are_typed_in_per_cent(service: Service, typed: str, thresholds: list[tuple[float, float]]) -> None:
    first, second = classes_of(service)[:2]
    rows = {
        "group_name": ["young", " "],
        "group_classes": [f"{first} ,{second},", ""],
        "group_thresholds": [typed, ""],
    }
    assert post(service, "/policy", rule="disagreement", threshold="0.3", reason="x", **rows).status_code == 303
    (found,) = service.document("/v1/policies")["items"][0]["reporting_groups"]
    assert found["classes"] == [first, second]
    assert [(one["at"], one["miss_cost"]) for one in found["thresholds"]] == thresholds


@pytest.mark.parametrize(
    ("name", "classes", "thresholds", "words"),
    [
        ("", "blast", "", "a row without a name or classes"),
        ("young", " , ", "", "a row without a name or classes"),
        *(("young", "blast", typed, "thresholds between 0 and 100%") for typed in ("5", "2, 5%", "120%", "0%", "five")),
        ("young", "blast", "5% × 0", "Must be more than 0"),
        ("young", "plasma", "5%", "here is no class plasma"),
        ("young", "blast,blast", "5%", "belongs to young and to young"),
        ("monocyte", "blast", "5%", "onocyte is the code of a class that is not in this group"),
    ],
)
def test_a_wrong_group_comes_back_with_the_fault_beside_it(
    service: Service, name: str, classes: str, thresholds: str, words: str
) -> None:
    rows = {"group_name": name, "group_classes": classes, "group_thresholds": thresholds}
    answer = post(service, "/policy", rule="disagreement", threshold="0.3", reason="x", **rows)
    assert answer.status_code == 422
    form = form_at(answer.text, "/policy")
    assert 'id="reporting_groups-fault"' in form
    assert words in form
    assert f'name="group_thresholds" value="{thresholds}"' in form


@pytest.mark.parametrize(("goal", "thresholds"), [("decision", ""), ("share", None)])
def test_the_form_of_the_rule_by_specimen_value_asks_for_what_it_needs(
    service: Service, goal: str, thresholds: str | None
) -> None:
    typed = {"rule": "specimen_value", "reads_per_specimen": "5", "specimen_goal": goal, "reason": "x"}
    rows = {"group_name": "young", "group_classes": classes_of(service)[0], "group_thresholds": thresholds}
    answer = post(service, "/policy", **typed, **({} if thresholds is None else rows))
    assert (answer.status_code, 'id="reporting_groups-fault"' in answer.text) == (422, True)
    assert post(service, "/policy", **typed, **rows | {"group_thresholds": "5%"}).status_code == 303
    assert service.document("/v1/policies")["items"][0]["specimen_goal"] == goal


def test_the_pages_show_groups_and_the_rule_and_no_threshold_on_a_score(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(12)], patients=True)
    first, second = classes_of(service)[:2]
    groups = [{"group": "young", "classes": [first, second], "thresholds": THRESHOLDS[1:]}]
    set_policy(service, **BY_VALUE, threshold=None, reporting_groups=groups)
    page = report_page(service, path="/policy")
    assert "above 20%: a miss costs 2.5 false alarms; above 7%: a miss costs as much as a false alarm" in page
    assert page.count("specimen value, 5 cells of each specimen, for the decision") == 2  # in force, and its version
    assert "chooses cells by specimen" in page
    assert "chooses cells of each specimen by the value of a second read" in report_page(service, partition="all")
    found = service.document("/v1/report")["second_reads"]
    assert (found["by"], found["share"]) == ("specimen_value", None)
