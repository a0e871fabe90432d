"""Results of the library are values: they can be printed, compared, put into a table, and drawn."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import secondread
from ml.metrics.definitions import Estimates, without_long_names
from secondread.calibration import Calibration, ConcentrationHead, Scaling
from secondread.distributions import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe
from secondread.metrics import Evaluation
from tests.support.tables import wide_table

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


def test_an_evaluation_prints_no_negative_zero(evaluation: Evaluation) -> None:
    nothing = replace(evaluation.metrics["EL"], value=-1e-9, low=-2e-9, high=1e-9, low_new=-3e-9, high_new=1e-9)
    shown = replace(evaluation, metrics=Estimates(EL=nothing))
    assert "-0.0000" not in shown.summary() + shown._repr_html_()


def test_an_evaluation_is_a_table_with_the_values_of_its_document(evaluation: Evaluation) -> None:
    frame, document = evaluation.to_frame(), without_long_names(evaluation.to_dict()["metrics"])
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


RNG = np.random.default_rng(8)
CHARTED = RNG.dirichlet([4, 2, 1], 80)
READ = np.stack([RNG.multinomial(2, probs) for probs in CHARTED])
CLASSES = ["blast", "mono", "neutro"]


def test_a_reliability_diagram_shows_the_bins_of_the_evaluation(tmp_path: Path) -> None:
    evaluation = secondread.evaluate(READ, CHARTED, classes=CLASSES)
    for of, bins in (
        ("all classes", evaluation.class_bins),
        ("mono", evaluation.classes[1].bins),
        ("disagreement", evaluation.disagreement_bins),
    ):
        chart = secondread.plot_reliability(evaluation, of)
        assert chart.to_dict()["vconcat"][1]["data"]["values"] == [row.to_dict() for row in bins]
        chart.save(str(tmp_path / "reliability.svg"))
        assert (tmp_path / "reliability.svg").read_text().startswith("<svg")
    with pytest.raises(
        ValueError, match="no reliability diagram of 'lymph'; there are all classes, disagreement, blast"
    ):
        secondread.plot_reliability(evaluation, "lymph")


def drawn(chart: Any) -> list[dict[str, Any]]:
    """Rows of a triage curve."""
    return list(chart.to_dict()["layer"][1]["data"]["values"])


def test_a_triage_curve_shows_the_recall_of_each_score() -> None:
    labels, predictions = (
        pd.DataFrame(wide_table(values, CLASSES, prefix)) for values, prefix in ((READ, "count:"), (CHARTED, "prob:"))
    )
    rows = drawn(secondread.plot_triage(labels, predictions.sample(frac=1.0, random_state=2)))
    for row, same in zip(rows, drawn(secondread.plot_triage(READ, CHARTED)), strict=True):
        assert row == pytest.approx(same)
    expected = secondread.metrics.triage_recall(READ, 1 - (CHARTED**2).sum(axis=1), [0.25])
    (row,) = (
        row for row in rows if row["score"] == "probability of disagreement" and abs(row["capacity"] - 0.25) < 1e-9
    )
    assert (row["value"], row["low"]) == pytest.approx((expected[0].value, expected[0].low))
    patients = [f"p{case // 2}" for case in range(80)]
    by_patient = drawn(secondread.plot_triage(labels.assign(patient=patients), predictions, cluster="patient"))
    assert by_patient == drawn(secondread.plot_triage(READ, CHARTED, cluster=patients))
    assert by_patient != rows


def test_without_the_extra_its_name_is_in_the_error() -> None:
    code = (
        "import sys; sys.modules['altair'] = None; import secondread\n"
        "try:\n    secondread.plot_triage([[1, 1], [0, 2]], [[0.5, 0.5], [0.1, 0.9]])\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "charts need the package altair: pip install 'secondread-cells[charts]'"
