"""The page Quality: one share of second reads, an account of every label, and numbers that are those of the API."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from app.database.tables import CountedLabel
from app.reports.charts import draw_operating_curve
from app.reports.schemas import WhatIfOut
from app.triage.rules import TriageRule, decide_triage, second_read_probabilities
from ml.distributions.decisions import expected_gain
from ml.distributions.families import DirichletCpe, PointCpe
from ml.release.artifact import read_release
from tests.app.test_evaluations import own_label
from tests.app.test_leases import set_policy
from tests.app.test_reports import estimate
from tests.support.jobs import work_off
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, collect
from tests.support.tiny_release import edit_release

EVERYTHING = {"partition": "all", "weighting": "none"}


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("rule", ["disagreement", "expected_gain"])
def test_the_share_of_second_reads_is_that_of_todays_rule_everywhere(service: Service, rule: str) -> None:
    collect(service, [cell_png(number) for number in range(40)], patients=True)
    predictions = [case["prediction"] for case in service.items("/v1/cases")]
    scores = {"disagreement": [p["disagreement_prob"] or 0.0 for p in predictions]}
    scores["expected_gain"] = [p["triage"]["expected_gain"] or 0.0 for p in predictions]
    set_policy(service, rule=rule, threshold=sorted(scores[rule])[30])  # nothing is planned by it
    judged = [case for case in service.items("/v1/cases") if case["partition"] == "evaluation"]
    share = sum(case["prediction"]["triage"]["decision"] == "second_read" for case in judged) / len(judged)
    assert 0 < share < 1
    assert service.document("/v1/report")["second_reads"]["share"] == pytest.approx(share)
    sentence = re.search(r"Second reads of (\d+)% of the cells", report_page(service))
    policy = re.search(r"The current policy selects (\d+)%", report_page(service, path="/policy"))
    assert sentence is not None
    assert policy is not None
    assert [int(sentence[1]), int(policy[1])] == [round(100 * share)] * 2
    assert f"today {100 * share:.0f}%" in report_page(service)
    set_policy(service, threshold=0.99, audit_rate=1.0)  # every cell is read twice
    assert service.document("/v1/report")["second_reads"]["share"] == 1


def test_many_cases_are_decided_as_each_one_is() -> None:
    rng = np.random.default_rng(0)
    cells = DirichletCpe(rng.dirichlet([0.5, 0.5, 0.5], 60), rng.normal(1, 1, 60))
    unlike, near = rng.random(60) < 0.2, rng.random(60) < 0.3
    rules = [("disagreement", 0.2), ("expected_gain", 0.01), ("graded", 1.2), ("graded", math.inf)]
    for score, threshold in [*rules, ("specimen_value", math.inf)]:
        rule = replace(TriageRule("disagreement", threshold, 0.1, 0.02, 0.9, 5), score=score)  # type: ignore[arg-type]
        each = [
            decide_triage(
                DirichletCpe(cells.class_probs[[row]], cells.log_concentration[[row]]),
                rule,
                out_of_distribution=bool(unlike[row]),
                near_duplicate=bool(near[row]),
            ).pi
            for row in range(60)
        ]
        together = second_read_probabilities(rule, cells.disagreement_probs, expected_gain(cells), unlike, near)
        np.testing.assert_allclose(together, each)
    by_gain, none = TriageRule("expected_gain", 0.2, 0.1, 0.02, 0.9, 5), np.zeros(60, dtype=bool)
    each = [decide_triage(PointCpe(cells.class_probs[[row]]), by_gain).pi for row in range(60)]
    plain = second_read_probabilities(
        by_gain, PointCpe(cells.class_probs).disagreement_probs, none * np.nan, none, none
    )
    np.testing.assert_allclose(plain, each)


def reasons(service: Service, **asked: str) -> dict[str, int]:
    """Labels that a report leaves out; with the others they are all labels."""
    found = service.document("/v1/report", **asked)
    assert found["n_labels"] == service.document("/v1/metrics", **asked)["n_labels"]
    left_out = {row["reason"]: row["n_labels"] for row in found["left_out"]}
    chains = select(func.count()).select_from(CountedLabel).where(CountedLabel.supersedes_id.is_(None))
    assert found["n_labels"] + sum(left_out.values()) == service.one(chains)
    return left_out


def test_every_label_is_counted_or_left_out_for_a_reason(service: Service, tiny_release: Path, tmp_path: Path) -> None:
    set_policy(service, threshold=0.0, reveal="never")
    cases: dict[bool, list[Any]] = {True: [], False: []}
    for number in range(12):
        case = service.add_case(f"case {number}", cell_png(number), patient=f"p{number}", site="north")
        cases[case["partition"] == "evaluation"].append(case)
    codes = cases[True][0]["prediction"]["classes"]
    held, own = cases[False], [case["id"] for case in cases[True]]
    for who in ("anna", "ben"):
        while (read := service.post(who, "/v1/reads")).status_code == 201:
            case_id = service.case_of(who, read.json()["case_id"])
            if who == "ben" and case_id == own[0]:
                assert service.post(
                    who, f"/v1/reads/{read.json()['id']}/decline", json={"reason": "cannot_tell"}
                ).is_success
                continue
            assert service.answer(who, case_id, codes[who == "anna"]).status_code == 201
    n_held = 2 * len(held)
    assert reasons(service) == {"correctable": 2 * len(own) - 1 + n_held}
    service.make_labels_final()
    assert reasons(service) == {"partition": n_held}
    assert reasons(service, **EVERYTHING) == {}
    assert reasons(service, partition="calibration") == {"partition": 2 * len(own) - 1}
    assert reasons(service, site="south") == {"partition": n_held, "other-cells": 2 * len(own) - 1}
    # an outside system, with and without sight of the predictions; a label that is taken back
    service.outside_label(own[1], "elsewhere", codes[0])
    service.outside_label(own[1], "somewhere", codes[0], blind=False)
    path = f"/v1/labels/{own_label(service, 'ben', own[2])}/retraction"
    assert service.post("ben", path, json={"reason": "another slide"}).status_code == 201
    # the second read of a case is answered, and the first one is open
    late = service.add_case("late", cell_png(90), patient=cases[True][3]["patient"])["id"]
    service.lease_on("anna", late)
    assert service.answer("ben", late, codes[0]).status_code == 201
    service.make_labels_final()
    expected = {"partition": n_held, "not-blinded": 1, "withdrawn": 1, "outside": 2, "open": 1}
    assert reasons(service) == expected
    assert reasons(service, weighting="none") == {"partition": n_held, "not-blinded": 1, "withdrawn": 1}
    page = report_page(service)
    for n, why in (
        (n_held, "their cells are in the half"),
        (2, "an external system"),
        (1, "their annotators withdrew"),
    ):
        assert re.search(rf"{n} labels? (?:is|are) not counted: {why}", page)
    assert 'href="?partition=evaluation&amp;weighting=none"' in page
    assert 'href="?partition=all&amp;weighting=ipw"' in page
    assert "3 cells with two planned reads lack a usable answer" in page
    service.serve(edit_release(tiny_release, tmp_path / "other", name="other"))
    assert set(reasons(service)) == {"no-prediction", "not-blinded", "withdrawn"}


def per_cent(found: dict[str, Any]) -> str:
    """An estimate as a sentence has it."""
    return f"{found['value']:.0%} (95% CI {100 * found['low']:.0f}–{found['high']:.0%})"


@pytest.mark.slow
@pytest.mark.ci
def test_every_number_of_the_page_is_the_apis(service: Service, tiny_release: Path, tmp_path: Path) -> None:
    collect(service, [cell_png(number) for number in range(48)], patients=True)
    first = service.document("/v1/releases")["items"][0]["id"]
    assert "There is no earlier model release" in report_page(service, **EVERYTHING)
    calibration = json.loads((read_release(tiny_release).path / "calibration.json").read_text())
    warmer = json.dumps(calibration | {"method": "temperature", "log_temperature": 0.5}).encode()
    champion = service.serve(edit_release(tiny_release, tmp_path / "other", {"calibration.json": warmer}, name="other"))
    assert work_off(service.context) >= 0
    page, found = report_page(service, **EVERYTHING), service.document("/v1/report", **EVERYTHING)
    sentences = re.findall(r'<p class="said">(.*?)</p>', page)
    said, sure, reads = found["disagreement"], found["leading"], found["second_reads"]
    assert sentences[0].startswith(
        f"Predicted disagreement between two annotators {said['said']:.0%}; observed {per_cent(said['seen'])}. "
    )
    by_question = {text.partition(" ")[0]: text for text in sentences[1:]}
    assert by_question["When"].startswith(
        f"When the model is confident (mean {sure['said']:.0%}), {per_cent(sure['seen'])} of annotators agree. "
    )
    skill = service.document("/v1/metrics", **EVERYTHING)["metrics"]["skill_D"]
    assert by_question["Second"] == (
        f"Second reads of {reads['share']:.0%} of the cells catch {per_cent(reads['caught'])} of the disagreements; "
        f"random second reads would catch {reads['share']:.0%}. No better than random so far: skill of the "
        f"disagreement probability {skill['value']:z.2f} (95% CI {skill['low']:z.2f} to {skill['high']:z.2f}), "
        f"from {skill['n']} cells with two labels."
    )
    assert by_question["Two"] == f"Two annotators agree on {per_cent(found['agreement'])} of the cells."
    assert by_question["Not"] == "Not yet available: fewer than 9 in 10 planned reads are answered."
    assert found["answering"]["nine_tenths"] is None
    metrics = service.document("/v1/metrics", **EVERYTHING)
    assert metrics["release"] == champion
    assert f"{metrics['n_cases']} cells, {metrics['n_labels']} labels" in page
    points = [row for row in metrics["disagreement_bins"] if row["n"] >= 5]
    for row in points if len(points) >= 3 else []:
        assert f"predicted {row['mean_prob']:.0%}, observed {row['mean_freq']:.0%}" in page
    rows = {name: (value, n) for name, value, n in re.findall(ROW, page, re.DOTALL)}
    for one in found["sensitivity"]:
        assert f"{one['sensitivity']['value']:.0%}" == rows[class_name(metrics, one["class_code"])][0]
    for one in service.document("/v1/agreement", **EVERYTHING)["annotators"]:
        shown = re.search(rf"<bdi>{one['annotator']}</bdi></th><td class=\"number\">(\d+)</td>.*?>(\d+%)<", page)
        assert shown is not None
        assert shown.groups() == (str(one["n_labels"]), f"{one['agreement_with_others']['value']:.0%}")
    compared = service.document(f"/v1/releases/{first}/comparison", **EVERYTHING)["metrics"]
    for key, words in (("L", "class probabilities"), ("L_D", "disagreement probability")):
        cells = re.search(rf"<th scope=\"row\">{words}</th>(.*?)</tr>", page)
        assert cells is not None
        numbers = [float(text.replace("−", "-")) for text in re.findall(r'"number">(−?[\d.]+)', cells[1])]
        row = compared[key]
        assert numbers == pytest.approx([row[who]["value"] for who in ("release", "champion", "change")], abs=5.1e-4)


ROW = r'<th scope="row">([^<]*)</th><td class="bar-cell">.*?<td class="number">(\d+%)<.*?<td class="number">(\d+)</td>'


def class_name(metrics: Any, code: str) -> str:
    assert code in {row["class"] for row in metrics["classes"]}
    return str(code.replace("_", " ").capitalize())


def what_if(share: float, value: float, low: float, high: float) -> WhatIfOut:
    caught = estimate(value, low, high)
    return WhatIfOut(share=share, caught=caught, threshold=0.5, reads_per_week=None, hours_per_week=None)


def test_no_end_of_the_band_falls_where_more_is_read() -> None:
    rows = [what_if(0.2, 0.4, 0.3, 0.9), what_if(0.5, 0.7, 0.1, 0.8), what_if(0.9, 0.9, 0.04, 1.0)]
    corners = [tuple(map(float, corner.split(","))) for corner in draw_operating_curve(rows, None).band.split()]
    upper, lower = corners[1:4], corners[-1:-4:-1]
    assert [round(100 - y) for _, y in upper] == [80, 80, 100]
    assert [round(100 - y) for _, y in lower] == [30, 30, 30]
    assert draw_operating_curve(rows[:2], None).band == ""


def test_without_a_label_the_page_names_what_is_missing_and_draws_nothing(service: Service) -> None:
    service.add_case("alone", cell_png(1))
    page = report_page(service, **EVERYTHING)
    assert "No label can be compared with a prediction yet" in page
    assert 'class="said"' not in page
    assert "There are no labels yet" in service.get("viewer", "/report/appendix", params=EVERYTHING).text
    assert service.document("/v1/report", **EVERYTHING)["second_reads"]["caught"] is None
