"""Closed forms of the coefficients against their definitions, and large tables in seconds."""

import json
import time
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pytest
from statsmodels.stats import inter_rater

from ml.agreement import measure_agreement
from ml.agreement.coefficients import cohen_kappa, count_matrix, krippendorff_alpha
from ml.tables.reading import TableError, write_table
from tests.ml.test_agreement import labels
from tests.support.command import run_here
from tests.support.waiting import patient


def _table(matrix: Any) -> dict[str, list[Any]]:
    rows = [(f"c{i}", f"r{a:05}", f"k{matrix[i, a]}") for i, a in np.argwhere(matrix >= 0)]
    return dict(zip(("case_id", "annotator", "label"), map(list, zip(*rows, strict=True)), strict=True))


@pytest.mark.parametrize("level", ["nominal", "ordinal"])
@pytest.mark.parametrize("clustered", [False, True])
def test_errors_of_alpha_and_kappa_are_those_of_leaving_out(level: Any, clustered: bool) -> None:
    """Each coefficient again without every patient in turn, from the beginning."""
    matrix = labels(7, n=36, absent=0.2)
    groups = np.random.default_rng(0).integers(0, 8, 36) if clustered else np.arange(36)
    usable = (matrix >= 0).sum(axis=1) >= 2
    both = (matrix[:, :2] >= 0).all(axis=1)

    def alpha(rows: Any) -> float:
        return krippendorff_alpha(count_matrix(matrix[rows], 4), level=level).value

    def kappa(rows: Any) -> float:
        return cohen_kappa(matrix[rows, 0], matrix[rows, 1], 4, level=level).value

    found = {
        alpha: (krippendorff_alpha(count_matrix(matrix, 4), level=level, cluster=groups), usable),
        kappa: (cohen_kappa(matrix[:, 0], matrix[:, 1], 4, level=level, cluster=groups), both),
    }
    for coefficient, (estimate, counted) in found.items():
        kept = [coefficient(groups != group) for group in np.unique(groups[counted])]
        expected = np.sqrt((len(kept) - 1) / len(kept) * ((np.array(kept) - np.mean(kept)) ** 2).sum())
        assert estimate.se == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("seed", range(2))
def test_weighted_kappa_of_a_pair_equals_statsmodels(seed: int) -> None:
    matrix = labels(seed, absent=0.0)
    table = np.zeros((4, 4))
    np.add.at(table, (matrix[:, 0], matrix[:, 1]), 1)
    expected = inter_rater.cohens_kappa(table, wt="quadratic", return_results=False)
    assert cohen_kappa(matrix[:, 0], matrix[:, 1], 4, level="ordinal").value == pytest.approx(expected, abs=1e-12)


def test_counts_without_names_give_what_needs_no_names(tmp_path: Path) -> None:
    matrix = labels(2, n=40)
    counts, table = count_matrix(matrix, 4), _table(matrix)
    usable = counts.sum(axis=1) > 0
    wide = {"case_id": [f"c{i}" for i in np.flatnonzero(usable)], "site": [f"s{i % 2}" for i in np.flatnonzero(usable)]}
    write_table(wide | {f"count:k{k}": counts[usable, k] for k in range(4)}, tmp_path / "wide.csv")
    document = json.loads(run_here("agreement", "--labels", tmp_path / "wide.csv", "--json").stdout)
    named = measure_agreement(table).to_dict()
    assert document["krippendorff_alpha"] == named["krippendorff_alpha"]
    assert document["classes"] == named["classes"]
    assert (document["n_annotators"], document["pairs"], document["annotators"]) == (None, [], [])
    assert document["rater_marginals"] is None
    assert len(document["sites"]) == 2
    assert any("annotators are not named" in text for text in document["warnings"])
    assert "annotators not named" in run_here("agreement", "--labels", tmp_path / "wide.csv").stdout


def test_the_order_of_grades_is_said_or_follows_from_numbers() -> None:
    matrix = labels(1, n=30)
    table = _table(matrix)
    grades = np.array(["mild", "slight", "plain", "severe"])
    texts = table | {"label": [grades[int(label[1:])] for label in table["label"]]}
    expected = krippendorff.alpha(np.where(matrix < 0, np.nan, matrix).T, level_of_measurement="ordinal")
    found = measure_agreement(texts, level="ordinal", classes=grades.tolist())
    assert found.krippendorff_alpha.value == pytest.approx(expected, abs=1e-12)
    tens = table | {"label": [str(10 ** int(label[1:])) for label in table["label"]]}
    assert measure_agreement(tens, level="ordinal").krippendorff_alpha.value == pytest.approx(expected, abs=1e-12)
    with pytest.raises(TableError, match="nothing says in which order mild, plain, severe, slight stand"):
        measure_agreement(texts, level="ordinal")
    with pytest.raises(TableError, match="unknown class"):
        measure_agreement(texts, level="ordinal", classes=["mild", "severe"])


def test_pairs_that_share_few_cases_are_counted_and_not_judged() -> None:
    matrix = np.full((30, 4), -1)
    matrix[:20, :2] = labels(0, n=20, annotators=2, absent=0.0)
    matrix[18:22, 2] = 1
    found = measure_agreement(_table(matrix))
    assert [pair.annotators for pair in found.pairs] == [("r00000", "r00001")]
    assert "2 pairs of annotators share fewer than 5 cases: no kappa of theirs" in found.warnings
    assert len(measure_agreement(_table(matrix), min_shared=2).pairs) == 3
    alone = cohen_kappa(matrix[:22, 0], matrix[:22, 1], 4)
    assert found.pairs[0].cohen_kappa == alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_cases", "n_annotators", "n_classes", "per_case"),
    [(5_000, 5, 400, 5), (10_000, 2_500, 10, 20), (4_000, None, 300, 5)],
    ids=["hundreds of classes", "thousands of annotators", "a name per reading"],
)
def test_large_tables_take_seconds(n_cases: int, n_annotators: int | None, n_classes: int, per_case: int) -> None:
    rng = np.random.default_rng(0)
    case = np.repeat(np.arange(n_cases), per_case)
    if n_annotators is None:
        annotator = np.arange(case.size)
    else:
        annotator = np.concatenate([rng.choice(n_annotators, per_case, replace=False) for _ in range(n_cases)])
    truth = rng.integers(0, n_classes, n_cases)[case]
    label = np.where(rng.random(case.size) < 0.7, truth, rng.integers(0, n_classes, case.size))
    table = {
        "case_id": np.char.add("c", case.astype(str)),
        "annotator": np.char.add("r", annotator.astype(str)),
        "label": np.char.add("k", label.astype(str)),
    }
    start = time.process_time()
    found = measure_agreement(table)
    assert found.n_annotators == len(np.unique(annotator))
    assert 0.3 < found.krippendorff_alpha.value < 0.7
    assert time.process_time() - start < patient(30), "seconds, not minutes"
