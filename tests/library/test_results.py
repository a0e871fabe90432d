"""Results of the library are values: they can be printed, compared and put into a table."""

import numpy as np
import pandas as pd
import pytest

import secondread
from secondread.calibration import Calibration, ConcentrationHead, Scaling
from secondread.distributions import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe
from secondread.metrics import Estimate, Evaluation

COUNTS = np.random.default_rng(1).multinomial(3, [0.5, 0.3, 0.2], size=200)
PROBS = np.random.default_rng(2).dirichlet([3, 2, 1], size=200)


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return secondread.metrics.evaluate(COUNTS, PROBS, classes=["blast", "<b>", "mono"])


def test_an_evaluation_is_printed_in_few_lines_with_every_metric(evaluation: Evaluation) -> None:
    printed = repr(evaluation).splitlines()
    assert len(printed) <= 30
    assert printed[0] == "200 cases, 600 labels, 3 classes"
    assert {line.split()[0] for line in printed[2:]} >= set(evaluation.metrics)
    assert str(evaluation) == repr(evaluation)
    many = Evaluation(**{**vars(evaluation), "warnings": tuple(f"warning {n}" for n in range(40))})
    assert len(repr(many).splitlines()) == 30
    assert "warning 39" in many.summary()


def test_an_evaluation_is_a_table_with_the_values_of_its_document(evaluation: Evaluation) -> None:
    frame, document = evaluation.to_frame(), evaluation.to_dict()["metrics"]
    assert list(frame.index) == list(document)
    for name, row in document.items():
        for column in ("value", "se", "low", "high", "n", "dropped"):
            stored = row[column]  # type: ignore[literal-required]
            assert pd.isna(frame.loc[name, column]) if stored is None else frame.loc[name, column] == stored


def test_a_notebook_shows_names_as_text(evaluation: Evaluation) -> None:
    page = Evaluation(**{**vars(evaluation), "warnings": ("<script>",)})._repr_html_()
    assert page.count("<tr>") == 1 + len(evaluation.metrics)
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


def test_an_estimate_is_a_number() -> None:
    estimate = secondread.expected_squared_loss(COUNTS, PROBS)
    assert isinstance(estimate, Estimate)
    assert float(estimate) == estimate.value
    assert round(float(estimate), 6) == pytest.approx(np.round(estimate.value, 6))


def distributions() -> list[object]:
    even = np.full((2, len(PROBS)), np.log(0.5))
    return [
        PointCpe(PROBS),
        DirichletCpe(PROBS, np.zeros(len(PROBS))),
        EnsembleCpe(np.stack([PROBS, PROBS[::-1]])),
        DirichletMixtureCpe(np.stack([PROBS, PROBS[::-1]]), np.zeros((2, len(PROBS))), even),
        Calibration(Scaling("temperature", 0.5), ConcentrationHead(np.array([0.1, 0.2]), 0.3)),
    ]


def test_objects_with_arrays_are_equal_by_value() -> None:
    ones, others = distributions(), distributions()
    for number, one in enumerate(ones):
        assert one == others[number]
        assert hash(one) == hash(others[number])
        assert others.index(one) == number
        assert one != "a text"
    assert PointCpe(PROBS) != PointCpe(PROBS[::-1])
    head = ConcentrationHead(np.array([0.1, 0.2]), 0.3)
    assert head == ConcentrationHead(np.array([0.1, 0.2]), 0.3)
    assert head != ConcentrationHead(np.array([0.1, 0.2]), 0.4)
    assert head != ConcentrationHead(np.array([0.1]), 0.3)


def test_results_are_equal_by_value_with_nan_and_with_parts_left_out() -> None:
    one, other = (secondread.metrics.evaluate(COUNTS[:, :2] * 0 + [1, 1], PROBS[:, :2] * 0 + 0.5) for _ in range(2))
    assert np.isnan(one.metrics["accuracy"].value)
    assert one == other
    assert hash(one) == hash(other)
    assert one != secondread.metrics.evaluate(COUNTS[:, :2] * 0 + [1, 2], PROBS[:, :2] * 0 + 0.5)
    stated = PointCpe(PROBS, stated_disagreement=np.full(len(PROBS), 0.5))
    assert PointCpe(PROBS) != stated
    assert stated != PointCpe(PROBS)
    undefined = secondread.cohen_kappa([0, 0], [0, 0])
    assert np.isnan(undefined.value)
    assert undefined == secondread.cohen_kappa([0, 0], [0, 0])
    assert undefined != secondread.cohen_kappa([0, 1], [0, 0])
