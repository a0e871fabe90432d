"""The page of a cell: ten dots, what further annotators would agree on, one scale, and the way to the next cell."""

import re
from html import unescape

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.metrics.cohort import CohortQuery, build_cohort
from app.metrics.dataset import EvaluationDataset
from app.reports.statistics import compare_consensus
from app.web.charts import ten_dots
from app.web.reference_cells import SameScale, ShownCell, ShownClass
from ml.distributions import DirichletCpe, consensus_probs
from tests.app.test_leases import all_once, answer_next, classes_of, set_policy
from tests.support.reports import report_page
from tests.support.service import Service, cell_png, store


def page_of(service: Service, case_id: str, who: str = "admin", **query: str) -> str:
    answer = service.get(who, f"/cases/{case_id}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.text


@example([0.1] * 10)
@example([0.25, 0.25, 0.25, 0.25])
@example([0.96, 0.04])
@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=50))
def test_dots_add_to_ten_and_none_is_a_dot_away_from_its_probability(weights: list[float]) -> None:
    probs = sorted(np.array(weights) / sum(weights), reverse=True)
    dots = ten_dots(probs)
    assert sum(dots) == 10
    assert all(abs(n - 10 * p) < 1 + 1e-6 for n, p in zip(dots, probs, strict=True))
    assert dots == sorted(dots, reverse=True)


def test_the_api_and_the_page_give_what_further_annotators_would_agree_on(service: Service) -> None:
    all_once(service)
    case_id = store(service, "cell", cell_png(0), {"outside 0": 0})
    prediction = service.document(f"/v1/cases/{case_id}")["prediction"]
    posterior = service.document(f"/v1/cases/{case_id}/posterior")
    for found in (prediction, posterior):
        f, masses = list(found["class_probs"].values()), found["consensus"]
        distribution = DirichletCpe([f], [found["log_concentration"]])
        assert (masses["at_least"], masses["of"]) == (4, 5)
        assert list(masses["class_probs"].values()) == pytest.approx(consensus_probs(distribution)[0])
        assert sum(masses["class_probs"].values()) + masses["split"] == pytest.approx(1)
        assert 1 - sum(masses["pair_probs"].values()) == pytest.approx(found["disagreement_prob"])
    page = page_of(service, case_id)
    assert page.count("<circle cx") == 10
    dots = [int(n) for n in re.findall(r'class="hidden">(\d+) of 10', page)]
    assert (sum(dots), len(dots)) == (10, len(prediction["classes"]))
    assert page.index("3 other classes") < page.index("95% interval")
    assert "If two more experts looked" in page
    for reader in range(1, 5):
        service.outside_label(case_id, f"outside {reader}", prediction["classes"][0])
    page = page_of(service, case_id)
    assert "If five more experts looked" in page
    shown = [int(value) for value in re.findall(r'<td class="number"><b>(\d+)%</b></td></tr>\n', page)]
    assert abs(sum(shown) - 100) <= len(shown) / 2


def test_no_more_labels_are_asked_for_than_the_policy_allows(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, target_error=1e-4)
    case_id = store(service, "cell", cell_png(0), {"outside 0": 0, "outside 1": 1})
    page = page_of(service, case_id)
    assert "Experts are split. The 5 labels that the policy allows would not settle this cell." in page
    assert "more label" not in page


@pytest.mark.slow
@pytest.mark.ci
def test_previous_and_next_stay_in_the_list_that_a_lead_came_from(service: Service) -> None:
    all_once(service)
    for number in range(6):
        site, patient = ("North & South", "East")[number % 2], {"patient": f"P{number}"} if number in {2, 5} else {}
        store(
            service, f"cell {number}", cell_png(number), {"outside 0": 0} if number == 3 else {}, site=site, **patient
        )
    for path, query in (
        ("/cells", {}),
        ("/cells", {"site": "North & South"}),
        ("/cells", {"state": "completed"}),
        *(
            ("/cells", {"sort": sort, "down": down})
            for sort in ("patient", "labels", "disagreement")
            for down in (0, 1)
        ),
        ("/worklist", {}),
        ("/worklist", {"site": "East", "search": "CELL"}),
    ):
        listed = list(
            dict.fromkeys(re.findall(r'href="(/cases/[^"]+)"', service.get("admin", path, params=query).text))
        )
        for to, key in ((listed, "j"), (listed[::-1], "k")):
            walked, following = [], to[0]
            while following:
                walked.append(following)
                page = service.get("admin", unescape(following)).text
                following = next(iter(re.findall(rf'href="([^"]+)"[^<]*<kbd class="js-only">{key}</kbd>', page)), "")
            assert walked == to, (path, query, key)
            assert "&amp;" not in walked[0] or walked[0].count("?") == 1


def test_annotators_are_led_to_no_neighbour_and_names_from_outside_stay_apart(service: Service) -> None:
    codes = classes_of(service)
    all_once(service)
    name = "خلية abc <b>"
    case_id = store(service, name, cell_png(0), {}, patient="P <i>", site="North")
    answer_next(service, "anna", codes[0], note="a <i>note</i>")
    store(service, "neighbour", cell_png(1), {})
    page = page_of(service, case_id, sort="need")
    for text in ("خلية abc &lt;b&gt;", "P &lt;i&gt;", "North", "anna", "a &lt;i&gt;note&lt;/i&gt;"):
        assert f"<bdi>{text}</bdi>" in page
    assert 'class="way"' in page
    for query in ({}, {"sort": "need"}, {"search": "neighbour"}):
        seen = page_of(service, service.known_as("anna", case_id), "anna", **query)
        assert "10 experts would say" in seen
        assert 'class="way"' not in seen
        assert "neighbour" not in re.sub("[Nn]eighbouring", "", seen)
        assert service.known_as("anna", next(service.items("/v1/cases"))["id"]) not in seen


def test_cells_are_compared_at_one_scale() -> None:
    def scale(*sizes: tuple[int, float | None]) -> SameScale:
        own, *others = (ShownCell("x", size, size // 2, mpp) for size, mpp in sizes)
        return SameScale(own, [ShownClass("c", "c", "", others)])

    known = scale((80, 0.25), (360, 0.1), (50, 0.5))
    assert (known.in_microns, known.extent) == (True, 20)
    assert [known.size(cell) for cell in known.classes[0].cells] == [(36, 18), (25, 12.5)]
    unknown = scale((80, 0.25), (360, None))
    assert (unknown.in_microns, unknown.extent, unknown.size(unknown.classes[0].cells[0])) == (False, 80, (360, 180))


def columns(n: int, n_labels: int, rng: np.random.Generator) -> EvaluationDataset:
    """Simulated cells whose annotators draw their answers from a Dirichlet distribution of their own."""
    found = EvaluationDataset.empty(["a", "b", "c"], n)
    f, alpha = rng.dirichlet([2.0, 1.0, 0.5], n), rng.choice([0.3, 2.0, 20.0], n)
    q = np.array([rng.dirichlet(a * row + 1e-12) for a, row in zip(alpha, f, strict=True)])
    found.cluster[:] = np.arange(n)
    found.class_probs[:] = f
    found.label_counts[:] = [rng.multinomial(n_labels, row) for row in q]
    leading = f.argmax(axis=1)
    for place, of in ((0, 5), (2, 2)):
        named = consensus_probs(DirichletCpe(f, np.log(alpha)), 5 if of == 5 else 2)
        found.consensus[:, place] = named[np.arange(n), leading]
        found.consensus[:, place + 1] = named.sum(axis=1) - found.consensus[:, place]
    return found


@pytest.mark.parametrize(("n_labels", "of"), [(2, 2), (4, 2), (5, 5), (9, 5)])
def test_the_report_sees_what_a_calibrated_release_predicts(n_labels: int, of: int) -> None:
    """At the number of labels at hand; the share of labels that name a class would miss it by far."""
    cells = columns(6000, n_labels, np.random.default_rng(n_labels))
    rows = compare_consensus(build_cohort(cells, CohortQuery("all", "none"), 0.0))
    assert [(row.of, row.event) for row in rows] == [(of, event) for event in ("leading", "other", "split")]
    assert sum(row.said for row in rows) == pytest.approx(1)
    assert sum(row.seen.value or 0 for row in rows) == pytest.approx(1)
    for row in rows:
        assert row.seen.se is not None
        assert row.seen.value is not None
        assert abs(row.seen.value - row.said) < 4 * row.seen.se
    cells.consensus[:, 0::2] *= 0.9
    off = compare_consensus(build_cohort(cells, CohortQuery("all", "none"), 0.0))[0]
    assert off.seen.low is not None
    assert off.said < off.seen.low


def test_the_report_shows_predicted_and_observed_consensus(service: Service) -> None:
    all_once(service)
    for number in range(6):
        store(service, f"cell {number}", cell_png(number), {"outside 0": 0, "outside 1": number % 2})
    page = report_page(service, path="/report/appendix", partition="all", weighting="none")
    block = page[page.index("<h2>Consensus, predicted and observed") :]
    assert "50%" in re.sub(r"<[^>]+>", " ", block[block.index("they disagree") :][:400])
