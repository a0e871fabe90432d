"""Agreement coefficients against independent implementations, hand-computed cases and laws."""

import json
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pytest
from statsmodels.stats import inter_rater

from ml.agreement import marginal_homogeneity_test, measure_agreement
from ml.agreement.coefficients import (
    as_label_matrix,
    cohen_kappa,
    count_matrix,
    excess_disagreement_test,
    fleiss_kappa,
    krippendorff_alpha,
)
from ml.datasets.annotators import AnnotatorPool
from ml.tables.reading import write_table
from tests.support.command import run_here


def labels(seed: int, n: int = 80, annotators: int = 4, k: int = 4, absent: float = 0.3) -> Any:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n)
    given = np.where(rng.random((n, annotators)) < 0.6, truth[:, None], rng.integers(0, k, (n, annotators)))
    return np.where(rng.random((n, annotators)) < absent, -1, given)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("level", ["nominal", "ordinal"])
def test_alpha_equals_an_independent_implementation(seed: int, level: Any) -> None:
    matrix = labels(seed)
    expected = krippendorff.alpha(np.where(matrix < 0, np.nan, matrix).T, level_of_measurement=level)
    assert krippendorff_alpha(count_matrix(matrix, 4), level=level).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_fleiss_and_cohen_equal_statsmodels(seed: int) -> None:
    matrix = labels(seed, absent=0.0)
    counts = count_matrix(matrix, 4)
    assert fleiss_kappa(counts).value == pytest.approx(inter_rater.fleiss_kappa(counts), abs=1e-12)
    table = np.zeros((4, 4))
    np.add.at(table, (matrix[:, 0], matrix[:, 1]), 1)
    expected = inter_rater.cohens_kappa(table, return_results=False)
    assert cohen_kappa(matrix[:, 0], matrix[:, 1], 4).value == pytest.approx(expected, abs=1e-12)


def test_perfect_agreement_is_one_and_a_single_class_is_undefined() -> None:
    same = np.tile(np.arange(20) % 3, (3, 1)).T
    counts = count_matrix(same, 3)
    for estimate in (krippendorff_alpha(counts), fleiss_kappa(counts), cohen_kappa(same[:, 0], same[:, 1], 3)):
        assert estimate.value == pytest.approx(1, abs=1e-12)
    nothing_else = count_matrix(np.zeros((5, 3), dtype=int), 3)
    assert np.isnan(krippendorff_alpha(nothing_else).value)
    assert np.isnan(fleiss_kappa(nothing_else).value)


def test_alpha_rests_on_the_observed_disagreement() -> None:
    """Krippendorff's observed nominal disagreement is Σ n φ̂ / Σ n (docs/explanation)."""
    from ml.metrics.cases import observed_disagreement

    counts = count_matrix(labels(3), 4)
    counts = counts[counts.sum(axis=1) >= 2]
    n, totals = counts.sum(), counts.sum(axis=0)
    observed = (counts.sum(axis=1) * observed_disagreement(counts)).sum() / n
    expected = 1 - (totals * (totals - 1)).sum() / (n * (n - 1))
    assert krippendorff_alpha(counts).value == pytest.approx(1 - observed / expected, abs=1e-12)


@pytest.mark.parametrize("clustered", [False, True])
def test_errors_are_the_delete_one_jackknife(clustered: bool) -> None:
    matrix = labels(1, n=40, absent=0.0)
    groups = np.random.default_rng(0).integers(0, 9, 40) if clustered else np.arange(40)
    for estimator in (krippendorff_alpha, fleiss_kappa):
        kept = [estimator(count_matrix(matrix[groups != g], 4)).value for g in np.unique(groups)]
        spread = ((np.array(kept) - np.mean(kept)) ** 2).sum()
        expected = np.sqrt((len(kept) - 1) / len(kept) * spread)
        found = estimator(count_matrix(matrix, 4), cluster=groups if clustered else None)
        assert found.se == pytest.approx(expected, rel=1e-9)


def test_jackknife_intervals_cover() -> None:
    rng = np.random.default_rng(5)
    q = rng.dirichlet(np.full(3, 0.4), 200_000)
    _, many = AnnotatorPool(3).read(q, 3, rng)
    truth = krippendorff_alpha(count_matrix(many, 3)).value
    covered = 0
    for start in range(0, 300 * 100, 100):
        found = krippendorff_alpha(count_matrix(many[start : start + 100], 3))
        covered += int((found.low or 0) <= truth <= (found.high or 0))
    assert 0.90 <= covered / 300 <= 0.985


@pytest.mark.parametrize(
    ("case", "annotator", "label"),
    [([0, 0], [0, 1], [0]), ([0, -1], [0, 1], [0, 1]), ([0, 0], [0, 1], [0.5, 1.0]), ([[0, 0]], [[0, 1]], [[0, 1]])],
)
def test_the_marginal_test_refuses_what_are_no_numbers(case: Any, annotator: Any, label: Any) -> None:
    with pytest.raises(ValueError, match=r"one length|whole numbers from 0"):
        marginal_homogeneity_test(case, annotator, label)


def test_more_disagreement_than_the_probabilities_allow_is_found() -> None:
    rng = np.random.default_rng(0)
    q = rng.dirichlet(np.ones(3), 400)
    counts = np.array([rng.multinomial(3, p) for p in q])
    assert excess_disagreement_test(counts, q).p_value > 0.01
    sure = np.eye(3)[q.argmax(axis=1)] * 0.97 + 0.01
    assert excess_disagreement_test(counts, sure).p_value < 1e-6
    with pytest.raises(ValueError, match="two cases"):
        excess_disagreement_test(counts[:1], q[:1])


@pytest.mark.parametrize("bad", [np.zeros(3, dtype=int), np.full((2, 2), 5), np.full((2, 2), -2), np.zeros((2, 2))])
def test_bad_label_matrices_are_named(bad: Any) -> None:
    with pytest.raises(ValueError, match="labels must"):
        as_label_matrix(bad, 3)


def test_fleiss_refuses_unequal_numbers_and_points_to_alpha() -> None:
    with pytest.raises(ValueError, match="Krippendorff"):
        fleiss_kappa([[2, 0], [1, 2]])


def test_agreement_of_a_table_by_every_view(tmp_path: Path) -> None:
    matrix = labels(6, n=60)
    rows = [(f"c{i}", f"r{a}", f"class{matrix[i, a]}", f"site{i % 2}") for i, a in np.argwhere(matrix >= 0)]
    columns = dict(zip(("case_id", "annotator", "label", "site"), map(list, zip(*rows, strict=True)), strict=True))
    write_table(columns, tmp_path / "labels.csv")
    document = measure_agreement(tmp_path / "labels.csv").to_dict()
    counts = count_matrix(matrix, 4)
    assert document["krippendorff_alpha"]["value"] == pytest.approx(krippendorff_alpha(counts).value, abs=1e-12)
    assert [row["annotator"] for row in document["annotators"]] == ["r0", "r1", "r2", "r3"]
    assert len(document["pairs"]) == 6
    assert {row["site"] for row in document["sites"]} == {"site0", "site1"}
    both = (matrix[:, 0] >= 0) & ((matrix[:, 1:] >= 0).any(axis=1))
    shares = [np.mean([other == row[0] for other in row[1:] if other >= 0]) for row in matrix[both]]
    found = document["annotators"][0]["agreement_with_others"]
    assert found["value"] == pytest.approx(np.mean(shares), abs=1e-12)
    binary = np.where(matrix < 0, np.nan, matrix == 2)
    expected = krippendorff.alpha(binary.T, level_of_measurement="nominal")
    assert document["classes"][2]["krippendorff_alpha"]["value"] == pytest.approx(expected, abs=1e-12)


def test_labels_of_one_class_only_leave_alpha_undefined_and_are_no_error() -> None:
    """The first day of a laboratory: nobody has used another class yet."""
    table = {"case_id": ["a", "a", "b", "b"], "annotator": ["r", "s"] * 2, "label": ["x"] * 4, "site": ["north"] * 4}
    report = measure_agreement(table)
    alphas = [report.krippendorff_alpha, report.classes[0].krippendorff_alpha, report.sites[0].krippendorff_alpha]
    assert np.isnan([alpha.value for alpha in alphas]).all()
    assert report.to_dict()["krippendorff_alpha"]["value"] is None
    assert [person.agreement_with_others.value for person in report.annotators] == [1, 1]
    assert report.annotators[0].confusion.shape == (1, 1)


def test_the_agreement_command(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("case_id,annotator,label\na,r,x\na,q,x\nb,r,y\nb,q,x\nc,r,y\nc,q,y\n")
    command = ["agreement", "--labels", tmp_path / "labels.csv"]
    text = run_here(*command).stdout
    assert "Krippendorff alpha" in text
    document = json.loads(run_here(*command, "--json").stdout)
    # by hand: 3 pairs, one differs; 3 labels x, 3 y: alpha = 1 - (1/3) / (1 - 2 * 3 * 2 / (6 * 5))
    assert document["krippendorff_alpha"]["value"] == pytest.approx(1 - (1 / 3) / (18 / 30), abs=1e-12)
    (tmp_path / "wide.csv").write_text("case_id,count:x,count:y\na,1,1\n")
    failed = run_here(*command[:-1], tmp_path / "wide.csv")
    assert (failed.returncode, failed.stderr) == (0, "")
