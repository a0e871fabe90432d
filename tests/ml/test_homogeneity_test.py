"""The test of whether annotators use the classes alike, where one patient's readings hang together."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ml.agreement import excess_disagreement_test, marginal_homogeneity_test, measure_agreement
from ml.audit.evaluate_findings import audit_findings, compute_tail_bins
from ml.audit.sentences import summary_sentences
from ml.metrics.homogeneity_test import DIFFERENT
from ml.tables import evaluate as evaluate_tables
from ml.tables.matching import EvaluationOptions

Ints = npt.NDArray[np.int64]


def readings(seed: int, *, lean: float, moved: float = 0.0, patients: int = 24, cells: int = 15) -> tuple[Ints, Ints]:
    """Labels (N, 3) of two classes by three annotators, and the patient (N,) of each case.

    Args:
        seed: of the draw.
        lean: how much an annotator's chance of saying 1 varies between patients, alike for all annotators.
        moved: by how much the first annotator says 1 more often everywhere.
        patients: number of patients.
        cells: cases of each.
    """
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), cells)
    truth = rng.uniform(0.3, 0.7, patient.size)[:, None]
    leaning = rng.choice((-lean, lean), (patients, 3))[patient]
    chance = np.clip(truth + leaning + np.array([moved, 0, 0]), 0, 1)
    return (rng.random(chance.shape) < chance).astype(np.int64), patient


def long(labels: Ints, patient: Ints) -> dict[str, Ints]:
    """Labels (N, A), −1 where there is none, as one row each."""
    case, annotator = np.nonzero(labels >= 0)
    return {"case": case, "annotator": annotator, "label": labels[case, annotator], "cluster": patient[case]}


def rejected(runs: int, clustered: bool, **world: Any) -> int:
    """How often the test rejects at 5 %, flipping the signs of cases or of whole patients."""
    count = 0
    for seed in range(runs):
        labels, patient = readings(seed, **world)
        rows = long(labels, patient)
        if not clustered:
            del rows["cluster"]
        count += marginal_homogeneity_test(**rows, permutations=99, seed=seed).p_value <= 0.05
    return count


def test_the_level_holds_where_patients_are_read_with_a_lean() -> None:
    """Annotators who are alike, each leaning one way in one patient and the other way in the next."""
    assert rejected(40, clustered=True, lean=0.2) <= 7, "at level 0.05 more than 7 of 40 happen once in a thousand"
    assert rejected(40, clustered=False, lean=0.2) >= 15, "case by case they are called different"


@pytest.mark.slow
def test_the_level_and_the_power_over_many_worlds() -> None:
    assert 8 <= rejected(400, clustered=True, lean=0.2) <= 36  # 20 of 400 expected, ± 3.6 standard errors
    assert 8 <= rejected(400, clustered=True, lean=0.0) <= 36
    assert rejected(100, clustered=True, lean=0.2, moved=0.2) >= 70
    assert rejected(100, clustered=True, lean=0.0, moved=0.1) >= 70


def test_an_annotator_who_differs_is_found_with_patients_and_without() -> None:
    labels, patient = readings(0, lean=0.1, moved=0.25)
    rows = long(labels, patient)
    assert marginal_homogeneity_test(**rows).p_value <= 0.01
    assert marginal_homogeneity_test(rows["case"], rows["annotator"], rows["label"]).p_value <= 0.01


def by_permuting(labels: Ints, permutations: int) -> tuple[float, float]:
    """χ² and p value of labels (N, 3), two a case, by exchanging the two of each case at random."""
    rng, (case, place) = np.random.default_rng(1), np.nonzero(labels >= 0)
    pairs, people = labels[case, place].reshape(-1, 2), place.reshape(-1, 2)
    expected = np.zeros((3, 2))
    np.add.at(expected, (people, pairs), 0.5)
    np.add.at(expected, (people, pairs[:, ::-1]), 0.5)

    def statistic(given: Ints) -> float:
        table = np.zeros((3, 2))
        np.add.at(table, (people, given), 1)
        return float(((table - expected) ** 2 / expected).sum())

    observed = statistic(pairs)
    drawn = [statistic(np.where(rng.random((len(pairs), 1)) < 0.5, pairs, pairs[:, ::-1])) for _ in range(permutations)]
    return observed, (1 + sum(value >= observed - 1e-9 for value in drawn)) / (1 + permutations)


def test_the_statistic_is_that_of_the_table_and_two_annotators_are_permuted() -> None:
    """With two labels a case and no patients, flipping signs is permuting within cases: both find the same."""
    labels, patient = readings(3, lean=0.0, moved=0.1)
    labels[np.arange(len(labels)), np.random.default_rng(0).integers(0, 3, len(labels))] = -1
    rows = long(labels, patient)
    found = marginal_homogeneity_test(rows["case"], rows["annotator"], rows["label"], permutations=1999)
    statistic, p_value = by_permuting(labels, 1999)
    assert found.statistic == pytest.approx(statistic, rel=1e-9)
    assert found.p_value == pytest.approx(p_value, abs=0.05)
    assert found.n == len(labels)


def test_renaming_changes_nothing_and_lone_labels_count_for_nothing() -> None:
    labels, patient = readings(4, lean=0.1)
    rows = long(labels, patient)
    order = np.random.default_rng(0).permutation(rows["case"].size)
    shuffled = {name: values[order] for name, values in rows.items()}
    renamed = shuffled | {"case": 7 * shuffled["case"] + 3, "annotator": 5 - shuffled["annotator"]}
    assert marginal_homogeneity_test(**renamed).statistic == pytest.approx(
        marginal_homogeneity_test(**rows).statistic, rel=1e-9
    )
    lonely = {name: np.append(values, [9999, 1, 1, 9999][i]) for i, (name, values) in enumerate(rows.items())}
    assert marginal_homogeneity_test(**lonely) == marginal_homogeneity_test(**rows)
    alone = marginal_homogeneity_test(np.arange(5), np.zeros(5, int), np.ones(5, int))
    assert (alone.p_value, alone.n) == (1.0, 0)


def table(labels: Ints, patient: Ints) -> dict[str, list[str]]:
    """LABELS, long."""
    rows = long(labels, patient)
    columns = {"case_id": "case", "annotator": "annotator", "label": "label", "patient": "cluster"}
    return {name: [f"{name} {value}" for value in rows[of]] for name, of in columns.items()}


def test_an_evaluation_and_the_agreement_warn_where_annotators_differ_and_only_there() -> None:
    """Of annotators who are alike, a draw that permuting case by case calls different and turning patients does not."""

    def misleads(seed: int) -> bool:
        labels, patient = readings(seed, lean=0.2, patients=12)
        rows = long(labels, patient)
        by_case = marginal_homogeneity_test(rows["case"], rows["annotator"], rows["label"], permutations=99).p_value
        return by_case <= 0.01 and marginal_homogeneity_test(**rows, permutations=99).p_value > 0.1

    unlucky = next(seed for seed in range(100) if misleads(seed))
    for seed, lean, moved in ((unlucky, 0.2, 0.0), (0, 0.0, 0.3)):
        labels, patient = readings(seed, lean=lean, moved=moved, patients=12)
        given = table(labels, patient)
        halves = {f"prob:label {k}": np.full(len(labels), 0.5) for k in range(2)}
        predictions = {"case_id": [f"case_id {i}" for i in range(len(labels))], **halves}
        said = evaluate_tables(given, predictions, cluster="patient").warnings
        assert any("use the classes differently" in text for text in said) == (moved > 0)
        warnings = measure_agreement(given, cluster="patient").warnings
        assert any("use the classes differently" in text for text in warnings) == (moved > 0)


def test_one_limit_decides_wherever_annotators_are_called_different() -> None:
    """A draw that is beyond .05 and not beyond the limit is called different nowhere; the printed p is one, too."""
    different = "use the classes differently"
    for seed, moved, above in ((11, 0.12, False), (0, 0.3, True)):
        labels, patient = readings(seed, lean=0.0, moved=moved, patients=12, cells=6)
        assert (DIFFERENT < marginal_homogeneity_test(**long(labels, patient)).p_value < 0.05) == (not above)
        given = table(labels, patient)
        halves = {f"prob:label {k}": np.full(len(labels), 0.5) for k in range(2)}
        predictions = {"case_id": [f"case_id {i}" for i in range(len(labels))], **halves}
        (answered,) = audit_findings(given, predictions, EvaluationOptions(cluster="patient"))
        agreement = measure_agreement(given, cluster="patient")
        places = {
            "evaluate": evaluate_tables(given, predictions, cluster="patient").warnings,
            "agreement": agreement.warnings,
            "audit": summary_sentences(answered, agreement, compute_tail_bins(answered.cases)),
        }
        said = {place: [text for text in texts if different in text] for place, texts in places.items()}
        assert {place: len(texts) for place, texts in said.items()} == dict.fromkeys(places, int(above))
        assert len({text.split("(p = ")[1].split(")")[0] for texts in said.values() for text in texts}) == above


def test_the_excess_of_disagreement_is_that_of_patients_and_of_weighted_cases() -> None:
    """Cases that stand ten times in one patient tell no more than once; a weight of two is to stand twice."""
    rng = np.random.default_rng(0)
    q = rng.dirichlet(np.ones(3), 60)
    counts, f = rng.multinomial(2, q), rng.dirichlet(np.full(3, 0.7), 60)
    alone = excess_disagreement_test(counts, f)
    often, patient = np.repeat(np.arange(60), 10), np.repeat(np.arange(60), 10)
    tenfold = excess_disagreement_test(counts[often], f[often], cluster=patient)
    assert tenfold.p_value == pytest.approx(alone.p_value, rel=1e-9)
    assert excess_disagreement_test(counts[often], f[often]).statistic > 3 * alone.statistic > 0
    twice = np.concatenate([np.arange(60), np.arange(30)])
    weighted = excess_disagreement_test(counts, f, sample_weight=np.repeat([2.0, 1.0], 30), cluster=np.arange(60))
    doubled = excess_disagreement_test(counts[twice], f[twice], cluster=twice)
    assert (weighted.statistic, weighted.p_value) == pytest.approx((doubled.statistic, doubled.p_value), rel=1e-9)
