"""Agreement: coefficients against independent implementations, Dawid and Skene, one annotator next to the others."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import beta
from statsmodels.stats import inter_rater

from ml.agreement import dawid_skene, marginal_homogeneity_test, measure_agreement
from ml.agreement.coefficients import (
    as_label_matrix,
    cohen_kappa,
    count_matrix,
    excess_disagreement_test,
    fleiss_kappa,
    krippendorff_alpha,
)
from ml.agreement.one_annotator import (
    agreement_with_others,
    log_score_surplus,
    rate_of_all,
    shrunk_confusions,
    shrunk_mean,
    shrunk_share,
    soft_confusions,
)
from ml.tables.reading import TableError, write_table
from ml.util.arrays import FloatArray, IntArray
from tests.support.command import run_here
from tests.support.tables import matrix_table


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
    for level, weights in (("nominal", None), ("ordinal", "quadratic")):
        expected = inter_rater.cohens_kappa(table, wt=weights, return_results=False)
        found = cohen_kappa(matrix[:, 0], matrix[:, 1], 4, level=level)  # type: ignore[arg-type]
        assert found.value == pytest.approx(expected, abs=1e-12)


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


def test_fleiss_is_undefined_for_a_single_class_and_points_to_alpha_for_unequal_numbers() -> None:
    assert np.isnan(fleiss_kappa(count_matrix(np.zeros((5, 3), dtype=int), 3)).value)
    with pytest.raises(ValueError, match="Krippendorff"):
        fleiss_kappa([[2, 0], [1, 2]])


def test_agreement_of_a_table_by_every_view(tmp_path: Path) -> None:
    matrix = labels(6, n=60)
    columns = matrix_table(matrix, CLASSES)
    columns["site"] = [f"site{int(name[1:]) % 2}" for name in columns["case_id"]]
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


def test_cases_without_a_site_are_a_group_without_a_name(tmp_path: Path) -> None:
    rows = ["a,r,x,s1", "a,s,y,s1", "b,r,x,", "b,s,x,", "c,r,y,s2", "c,s,y,s2"]
    (tmp_path / "labels.csv").write_text("\n".join(["case_id,annotator,label,site", *rows]))
    assert [row.site for row in measure_agreement(tmp_path / "labels.csv").sites] == ["", "s1", "s2"]
    lines = run_here("agreement", "--labels", tmp_path / "labels.csv").stdout.splitlines()
    assert [line.split("  ")[1] for line in lines if "site" in line] == ["no site", "site s1", "site s2"]


def test_the_agreement_command(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("case_id,annotator,label\na,r,x\na,q,x\nb,r,y\nb,q,x\nc,r,y\nc,q,y\n")
    command = ["agreement", "--labels", tmp_path / "labels.csv"]
    text = run_here(*command).stdout
    assert "Krippendorff alpha" in text
    long = (tmp_path / "labels.csv").read_text().replace(",q,", f",{'q' * 60},")
    (tmp_path / "long.csv").write_text(long)
    rows = run_here(*command[:-1], tmp_path / "long.csv", "--min-shared", 2).stdout.splitlines()[1:]
    values = [match.start() for match in map(re.compile(r"(?<=  )-?\d\.\d{3}").search, rows) if match]
    assert len(values) >= 6  # no name runs into its value
    assert len(set(values)) == 1
    document = json.loads(run_here(*command, "--json").stdout)
    # by hand: 3 pairs, one differs; 3 labels x, 3 y: alpha = 1 - (1/3) / (1 - 2 * 3 * 2 / (6 * 5))
    assert document["krippendorff_alpha"]["value"] == pytest.approx(1 - (1 / 3) / (18 / 30), abs=1e-12)
    (tmp_path / "wide.csv").write_text("case_id,count:x,count:y\na,1,1\n")
    failed = run_here(*command[:-1], tmp_path / "wide.csv")
    assert (failed.returncode, failed.stderr) == (0, "")


CLASSES = ("k0", "k1", "k2", "k3")


@pytest.mark.parametrize("level", ["nominal", "ordinal"])
@pytest.mark.parametrize("clustered", [False, True])
def test_errors_of_alpha_and_kappa_are_those_of_leaving_out(level: Any, clustered: bool) -> None:
    """Each coefficient again without every patient in turn, from the beginning."""
    matrix = labels(7, n=36, absent=0.2)
    groups = np.random.default_rng(0).integers(0, 8, 36) if clustered else np.arange(36)
    usable = (matrix >= 0).sum(axis=1) >= 2
    both = (matrix[:, :2] >= 0).all(axis=1)

    complete = labels(1, n=36, absent=0.0)

    def alpha(rows: Any) -> float:
        return krippendorff_alpha(count_matrix(matrix[rows], 4), level=level).value

    def fleiss(rows: Any) -> float:
        return fleiss_kappa(count_matrix(complete[rows], 4)).value

    def kappa(rows: Any) -> float:
        return cohen_kappa(matrix[rows, 0], matrix[rows, 1], 4, level=level).value

    found = {
        alpha: (krippendorff_alpha(count_matrix(matrix, 4), level=level, cluster=groups), usable),
        kappa: (cohen_kappa(matrix[:, 0], matrix[:, 1], 4, level=level, cluster=groups), both),
        fleiss: (fleiss_kappa(count_matrix(complete, 4), cluster=groups), usable | True),
    }
    for coefficient, (estimate, counted) in found.items():
        kept = [coefficient(groups != group) for group in np.unique(groups[counted])]
        expected = np.sqrt((len(kept) - 1) / len(kept) * ((np.array(kept) - np.mean(kept)) ** 2).sum())
        assert estimate.se == pytest.approx(expected, rel=1e-8)


def test_the_order_of_grades_is_said_or_follows_from_numbers() -> None:
    matrix = labels(1, n=30)
    table = matrix_table(matrix, CLASSES)
    grades = np.array(["mild", "slight", "plain", "severe"])
    texts = table | {"label": [grades[int(label[1:])] for label in table["label"]]}
    expected = krippendorff.alpha(np.where(matrix < 0, np.nan, matrix).T, level_of_measurement="ordinal")
    found = measure_agreement(texts, level="ordinal", classes=grades.tolist())
    assert found.krippendorff_alpha.value == pytest.approx(expected, abs=1e-12)
    tens = table | {"label": [str(10 ** int(label[1:])) for label in table["label"]]}
    assert measure_agreement(tens, level="ordinal").krippendorff_alpha.value == pytest.approx(expected, abs=1e-12)
    with pytest.raises(TableError, match="the order of mild, plain, severe, slight is unknown"):
        measure_agreement(texts, level="ordinal")
    with pytest.raises(TableError, match="unknown class"):
        measure_agreement(texts, level="ordinal", classes=["mild", "severe"])


def test_pairs_that_share_few_cases_are_counted_and_not_judged() -> None:
    matrix = np.full((30, 4), -1)
    matrix[:20, :2] = labels(0, n=20, annotators=2, absent=0.0)
    matrix[18:22, 2] = 1
    found = measure_agreement(matrix_table(matrix, CLASSES))
    assert [pair.annotators for pair in found.pairs] == [("r0", "r1")]
    assert "2 pairs of annotators share fewer than 5 cells, too few for kappa" in found.warnings
    assert len(measure_agreement(matrix_table(matrix, CLASSES), min_shared=2).pairs) == 3
    alone = cohen_kappa(matrix[:22, 0], matrix[:22, 1], 4)
    assert found.pairs[0].cohen_kappa == alone


def simulated(n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three annotators, one of whom mixes up classes 1 and 2, and a tenth of the labels missing."""
    rng = np.random.default_rng(seed)
    good = np.full((3, 3), 0.05) + 0.85 * np.eye(3)
    mixing = np.array([[0.9, 0.05, 0.05], [0.05, 0.45, 0.5], [0.05, 0.5, 0.45]])
    confusion = np.stack([good, good, mixing])
    truth = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    labels = np.stack([[rng.choice(3, p=c[t]) for t in truth] for c in confusion], axis=1)
    labels[rng.random(labels.shape) < 0.1] = -1
    return labels, truth, confusion


def test_it_recovers_habits_and_truth() -> None:
    labels, truth, confusion = simulated()
    found = dawid_skene(labels, 3)
    np.testing.assert_allclose(found.confusion, confusion, atol=0.06)
    np.testing.assert_allclose(found.class_shares, [0.5, 0.3, 0.2], atol=0.04)
    votes = (labels[..., None] == np.arange(3)).sum(axis=1).argmax(axis=1)
    assert (found.class_probs.argmax(1) == truth).mean() > (votes == truth).mean() + 0.02
    np.testing.assert_allclose(found.class_probs.sum(1), 1, atol=1e-12)


def test_the_likelihood_is_that_of_enumerated_truths() -> None:
    labels, _, _ = simulated(5)
    found = dawid_skene(labels, 3)
    total = []
    for truths in itertools.product(range(3), repeat=5):
        value = 0.0
        for row, t in enumerate(truths):
            value += np.log(found.class_shares[t])
            value += sum(np.log(found.confusion[a, t, c]) for a, c in enumerate(labels[row]) if c >= 0)
        total.append(value)
    counts = np.array([np.bincount(row[row >= 0], minlength=3) for row in labels])
    start = (counts + 1 / 3) / (counts + 1 / 3).sum(axis=1, keepdims=True)
    pooled = start.T @ counts + 1 / 3
    pseudo = pooled / pooled.sum(axis=1, keepdims=True)
    prior = (pseudo * np.log(found.confusion)).sum() + np.log(found.class_shares).sum() / 3
    assert found.log_likelihood == pytest.approx(logsumexp(total) + prior, abs=1e-10)


def test_an_annotator_with_few_labels_is_described_like_the_others() -> None:
    labels, _, _ = simulated(800)
    labels[1:, 2] = -1
    found = dawid_skene(labels, 3)
    assert np.abs(found.confusion[2] - found.confusion[:2].mean(axis=0)).max() < 0.5
    assert found.confusion.min() > 0


def test_permuting_classes_permutes_the_answer() -> None:
    labels, _, _ = simulated(600)
    order = np.array([2, 0, 1])
    moved = np.where(labels >= 0, order[labels], -1)
    first, second = dawid_skene(labels, 3), dawid_skene(moved, 3)
    np.testing.assert_allclose(second.class_probs[:, order], first.class_probs, atol=1e-9)


def test_no_label_is_refused() -> None:
    with pytest.raises(ValueError, match="no label"):
        dawid_skene(np.full((3, 2), -1), 3)


K = 4


def drawn(rng: np.random.Generator, n: int, said: FloatArray | None = None) -> tuple[FloatArray, IntArray]:
    """Posteriors of n cases and the answers of somebody who follows them, through a matrix where one is given."""
    others = rng.dirichlet(np.full(K, 0.4), size=n)
    classes = np.array([rng.choice(K, p=row) for row in others])
    if said is not None:
        classes = np.array([rng.choice(K, p=said[k]) for k in classes])
    return others, classes


def test_a_share_is_the_posterior_of_a_beta_prior() -> None:
    pulled = shrunk_share(3, 4, 0.9, strength=10)
    assert pulled.value == pytest.approx((3 + 9) / 14)
    assert (pulled.low, pulled.high) == pytest.approx(beta(12, 2).interval(0.95))
    none = shrunk_share(0, 0, 0.3)
    assert (none.value, none.n) == (0.3, 0)
    assert 0 < rate_of_all(0, 0) < 1


def test_a_mean_lies_between_its_own_and_everybodys_and_nears_its_own() -> None:
    means = [shrunk_mean(np.ones(n), 1.0, 0.0, spread=0.5).value for n in (1, 10, 1000)]
    assert means == sorted(means)
    assert means[0] == pytest.approx(1 / (1 + 4))
    assert means[-1] > 0.99


def test_soft_confusions_by_hand() -> None:
    others = np.array([[0.7, 0.3], [0.2, 0.8]])
    counts = soft_confusions(others, np.array([0, 0]))
    assert counts.tolist() == [pytest.approx([0.9, 0.0]), pytest.approx([1.1, 0.0])]
    said, expected = agreement_with_others(others, np.array([0, 1]))
    assert said.tolist() == [0.7, 0.8]
    assert expected.tolist() == pytest.approx([0.58, 0.68])


def test_whoever_answers_like_the_others_has_no_surplus() -> None:
    others, answers = drawn(np.random.default_rng(0), 40_000)
    said, expected = agreement_with_others(others, answers)
    assert abs(np.mean(said - expected)) < 0.005
    assert abs(np.mean(log_score_surplus(others, answers))) < 0.02


def test_permuting_classes_permutes_confusions() -> None:
    others, answers = drawn(np.random.default_rng(1), 200)
    order = np.array([2, 0, 3, 1])
    place = np.argsort(order)
    counts, permuted = soft_confusions(others, answers), soft_confusions(others[:, order], place[answers])
    np.testing.assert_allclose(permuted, counts[np.ix_(order, order)])
    found, again = shrunk_confusions(counts, counts * 5), shrunk_confusions(permuted, permuted * 5)
    np.testing.assert_allclose(again.value, found.value[np.ix_(order, order)])
    np.testing.assert_allclose(found.value.sum(axis=1), 1)


@pytest.mark.parametrize("n", [10, 50, 300])
def test_few_labels_brand_nobody_who_is_like_the_others(n: int) -> None:
    rng = np.random.default_rng(n)
    everybody = soft_confusions(*drawn(rng, 4000))
    named = [shrunk_confusions(soft_confusions(*drawn(rng, n)), everybody).notable.any() for _ in range(200)]
    assert np.mean(named) <= 0.05


def test_many_labels_tell_who_differs() -> None:
    rng, said = np.random.default_rng(7), np.eye(K)
    said[0] = [0.6, 0.4, 0, 0]
    everybody = soft_confusions(*drawn(rng, 4000))
    found = shrunk_confusions(soft_confusions(*drawn(rng, 400, said)), everybody)
    assert np.argwhere(found.notable).tolist() == [[0, 1]]
    assert found.low[0, 1] > found.everybody[0, 1]


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="hits 3 of 2"):
        shrunk_share(3, 2, 0.5)
    with pytest.raises(ValueError, match="deviation 0"):
        shrunk_mean(np.ones(2), 0, 0.0)
    with pytest.raises(ValueError, match=r"\(3, 2\) and \(2,\)"):
        soft_confusions(np.ones((3, 2)), np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="classes 0 to 1"):
        log_score_surplus(np.ones((1, 2)), np.array([2]))
    with pytest.raises(ValueError, match="shapes"):
        shrunk_confusions(np.ones((2, 2)), np.ones((3, 3)))
