"""The law over every public name: rows of a data frame in another order give the same result or an error.

What takes several tables that belong together row by row (arguments, or an argument and the object whose method it is)
is called with pandas frames whose index says which row is which. One of them is shuffled, index and all; then the
columns of one of them. Polars and Arrow tables have no names of rows, so their rows count by position, as those of
an array do; their columns have names, and are under the law too.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import asdict, is_dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import secondread

N, K = 60, 3
RNG = np.random.default_rng(11)
CLASSES = ["blue", "green", "red"]
F, OTHER_F, TRUTH = (RNG.dirichlet([1.0, 1.0, 1.0], N) for _ in range(3))
Y = np.stack([RNG.multinomial(2 + row % 3, f) for row, f in enumerate(TRUTH)])
DPE, OTHER_DPE, A = RNG.uniform(0.1, 0.6, N), RNG.uniform(0.1, 0.6, N), RNG.normal(0.0, 1.0, N)
FEATURES = RNG.normal(size=(N, 2))
PATIENTS = np.array([f"p{row // 3}" for row in range(N)])
#: Another order of the rows, by which no column above stays as it is.
SHUFFLED = np.roll(np.arange(N), 7)

#: Arguments with a row per case.
BY_ROW: dict[str, Any] = {
    **dict.fromkeys(("annotations", "counts", "label_counts", "labels"), Y),
    **dict.fromkeys(("class_probs", "predictions"), F),
    **dict.fromkeys(("answered", "disagreement_probs", "observed", "predicted", "scores"), DPE),
    **dict.fromkeys(("other_scores", "thresholds"), OTHER_DPE),
    **dict.fromkeys(("cluster", "groups", "patients"), PATIENTS),
    **dict.fromkeys(("first", "label"), Y.argmax(axis=1)),
    **dict.fromkeys(("answers", "second"), OTHER_F.argmax(axis=1)),
    "after": (OTHER_F, OTHER_DPE),
    "annotator": np.arange(N) % 2,
    "asked": np.arange(N) % 4 != 0,
    "before": (F, DPE),
    "case": np.arange(N) // 2,
    "cv": np.arange(N) % 5 == 0,
    "day": np.arange(N) // 5,
    "epistemic": A**2,
    "excess": DPE - 0.3,
    "features": FEATURES,
    "fit": np.arange(N) % 5 != 0,
    "log_class_probs": np.log(F),
    "log_concentration": A,
    "log_weights": [A / 3, A / 4],
    "logits": np.log(F) * 2,
    "masses": RNG.uniform(1, 2, N),
    "member_class_probs": [F, OTHER_F],
    "member_log_concentration": [A, A / 2],
    "probabilities": RNG.uniform(0.5, 1, N),
    "probs": (F, OTHER_F),
    "sample_weight": RNG.uniform(1, 2, N),
    "sets": F > 0.3,
    "true_probs": TRUTH,
    "weights": RNG.uniform(1, 2, N),
    "week": np.arange(N) // 20,
}
#: Arguments with a column per class as well.
BY_CLASS = {"annotations", "class_probs", "label_counts", "labels", "predictions"}
BY_CLASS |= {"logits", "log_class_probs", "true_probs", "sets"}
#: A label of each of two annotators of every case.
LONG = secondread.annotators.Annotations(
    np.repeat(np.arange(N), 2), np.tile([0, 1], N), (F.cumsum(axis=1) > 0.5).argmax(axis=1).repeat(2), N, 2, K
)
MODEL = secondread.annotators.ReaderModel.alike(K)
#: Arguments that are no tables; a table that was made of arrays counts as one whose rows have no names.
OTHERS: dict[str, Any] = {
    "capacities": [0.2, 0.5],
    "capacity": 0.3,
    "distribution": secondread.DirichletCpe(F, A),
    "log_temperature": 0.1,
    "long": LONG,
    "m": 2,
    "method": "vector",
    "model": MODEL,
    "models": (MODEL, MODEL),
    "n_classes": K,
    "names": ["anna", "ben"],
    "opinions": secondread.annotators.Opinions.of(secondread.DirichletCpe(F, A)),
    "other": secondread.Accumulator(K),
    "off_penalty": 1.0,
    "bias": np.zeros(K),
    "bias_penalty": 1.0,
    "confusions": np.stack([np.eye(K)] * 2),
    "penalty": 0.005,
    "population": np.eye(K),
    "prior": secondread.DirichletCpe(F, A),
    "scaling": secondread.calibration.Scaling("vector", 0.0, np.array([1.0, 2.0, 0.5]), np.zeros(K)),
    "start": (0.0, secondread.calibration.ConcentrationHead(np.array([0.1, 0.2]), 0.3)),
    "target_error": 0.05,
    "threshold": 0.3,
}
#: Tables that a function needs in another shape.
OWN: dict[str, dict[str, Any]] = {
    "calibration.calibrate": {"refined": False},
    "annotators.drift_paths": {"excess": [DPE - 0.3, OTHER_DPE - 0.3], "day": [np.arange(N), np.arange(N)]},
    "agreement.fleiss_kappa": {"label_counts": np.stack([RNG.multinomial(3, f) for f in TRUTH])},
}
#: Losses and steps of a fit: they take arrays, and refuse every table.
ARRAYS_ONLY = {
    "calibration.concentration_loss",
    "calibration.scaling_loss",
    "calibration.temperature_loss",
    "distributions.dirichlet_multinomial_nll",
}
FITTED = secondread.Calibrator(refined=False).fit(BY_ROW["logits"], Y, features=FEATURES, groups=PATIENTS)
#: What an object is made of whose methods take tables; methods of all others are exempt.
OBJECTS: dict[str, Callable[[], Any]] = {
    "Accumulator": lambda: secondread.Accumulator(K),
    "Calibrator": lambda: copy(FITTED),
    "Calibration": lambda: secondread.Calibration(OTHERS["scaling"], OTHERS["start"][1]),
    "ConcentrationHead": lambda: OTHERS["start"][1],
    "DirichletCpe": lambda: secondread.DirichletCpe(F, A),
    "DirichletMixtureCpe": lambda: secondread.DirichletMixtureCpe([F, OTHER_F], [A, A / 2]),
    "EnsembleCpe": lambda: secondread.EnsembleCpe([F, OTHER_F]),
    "PointCpe": lambda: secondread.PointCpe(F),
    "Scaling": lambda: OTHERS["scaling"],
}
#: Objects with a row per case: an argument of their methods is a second table.
HAVE_ROWS = {"DirichletCpe", "DirichletMixtureCpe", "EnsembleCpe", "PointCpe"}
#: Names without the law, and why.
EXEMPT = {
    name: reason
    for reason, names in {
        "a result": (
            "agreement.AgreementReport agreement.AnnotatorAgreement agreement.ClassAgreement "
            "agreement.DawidSkene agreement.DependenceTest "
            "agreement.PairAgreement agreement.SiteAgreement annotators.Choice annotators.HeldOutGain "
            "annotators.NamedPosterior annotators.WeekBand calibration.FitReport conformal.SetQuality "
            "conformal.Thresholds metrics.Change metrics.ClassEvaluation metrics.Estimate "
            "metrics.Evaluation metrics.ReliabilityBin tables.Comparison specimens.Components "
            "specimens.CoverageBand specimens.GroupShare specimens.LogitShare specimens.Share "
            "specimens.SpecimenShares specimens.PatientShift specimens.ThresholdDecision"
        ),
        "numbers of rows, annotators and classes": "annotators.Annotations metrics.Readings specimens.NamedReads",
        "made of a distribution": "annotators.Opinions",
        "parameters, one matrix per annotator": "annotators.ReaderModel",
        "tables whose rows have case ids": "adopt",
        "no table": (
            "annotators.describe_annotator_habit conformal.fewest_patients specimens.annotator_tilt "
            "specimens.annotator_tilt_interval "
            "specimens.fit_kappa specimens.measure_specimen"
        ),
        "arrays, which refuse names of rows": (
            "specimens.Specimen specimens.choose_reads specimens.coverage_by_band specimens.fit_shift"
        ),
        "a result is drawn": "plot_reliability",
        "names of columns, and choices": "agreement.AgreementOptions tables.EvaluationOptions",
        "rows are matched by case_id": (
            "agreement.agreement_by_finding agreement.measure_agreement tables.compare "
            "tables.evaluate_findings tables.read_labels tables.read_predictions"
        ),
        "one table": (
            "calibration.mixture_log_likelihood tables.rank_second_reads tables.read_table tables.write_table"
        ),
        "what a reader of tables returns: rows with their case_id": "tables.Predictions",
        "rows are named by case_id": "tables.read_annotations",
        "parameters": (
            "calibration.Calibration calibration.Calibrator specimens.Group specimens.GroupKnowledge "
            "specimens.Laboratory specimens.Threshold"
        ),
        "an error": "calibration.FitError tables.TableError",
        "parameters, one per feature": "calibration.ConcentrationHead",
        "parameters, four of each": "calibration.Refinement",
        "parameters, one per class": "calibration.Scaling",
    }.items()
    for name in names.split()
}


def _public() -> Iterator[tuple[str, Any]]:
    """Every public function and class with the door that it is behind, once each."""
    seen: set[int] = set()
    modules = [value for name in secondread.__all__ if isinstance(value := getattr(secondread, name), ModuleType)]
    doors = [(module.__name__.rpartition(".")[2] + ".", module) for module in modules] + [("", secondread)]
    for door, module in doors:
        for name in module.__all__:
            value = getattr(module, name)
            if (inspect.isfunction(value) or inspect.isclass(value)) and id(value) not in seen:
                seen.add(id(value))
                yield door + name, value


def _calls() -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Names with a function, the making of an object or a method, and whether what it belongs to has rows itself."""
    for name, value in _public():
        short = name.rpartition(".")[2]
        if name not in EXEMPT:
            yield name, value, False
        if short in OBJECTS:
            for method, implementation in list(vars(value).items()):
                if (method == "__call__" or not method.startswith("_")) and method != "from_dict":
                    if inspect.isfunction(implementation):
                        yield f"{name}.{method}", _method(short, method), short in HAVE_ROWS
                    elif isinstance(implementation, classmethod):
                        yield f"{name}.{method}", _method(short, method), False


def _method(short: str, method: str) -> Callable[..., Any]:
    bound = getattr(OBJECTS[short](), method)

    def call(**arguments: Any) -> Any:
        made = OBJECTS[short]()
        result = getattr(made, method)(**arguments)
        if isinstance(result, secondread.Calibrator):
            return result.calibration_.to_dict()
        return made.to_dict() if result is None else result

    call.__signature__ = inspect.signature(bound)  # type: ignore[attr-defined]
    return call


def _arguments(name: str, call: Callable[..., Any]) -> dict[str, Any]:
    """Tables for every argument that takes one, and what else must be given."""
    arguments = dict(OWN.get(name, {}))
    for parameter in inspect.signature(call).parameters.values():
        if parameter.name in arguments or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if parameter.name in BY_ROW:
            arguments[parameter.name] = BY_ROW[parameter.name]
        elif parameter.default is inspect.Parameter.empty:
            assert parameter.name in OTHERS, f"{name}: say in this test what {parameter.name} is, or why it is exempt"
            arguments[parameter.name] = OTHERS[parameter.name]
    return arguments


CALLS = {
    name: (call, arguments)
    for name, call, has_rows in _calls()
    for arguments in [_arguments(name, call)]
    if has_rows + sum(key in BY_ROW or key in ("distribution", "prior") for key in arguments) >= 2
}


def test_the_law_is_about_what_it_should_be_about() -> None:
    wanted = {"metrics.triage_recall", "metrics.posterior_gain", "agreement.krippendorff_alpha", "tables.evaluate"}
    wanted |= {"distributions.PointCpe.posterior", "metrics.Accumulator.update", "annotators.choose_readers"}
    wanted |= {"calibration.Calibrator.fit", "calibration.Calibrator.predict", "annotators.drift_paths"}
    assert wanted | {"conformal.calibrate", "conformal.judge_sets"} <= set(CALLS)
    assert len(CALLS) > 40
    assert set(EXEMPT) <= {name for name, _ in _public()}, "an exemption of a name that is gone"


def _frame(values: Any, rows: np.ndarray[Any, Any] | None, names: list[str] | None = None) -> Any:
    """The same table as a data frame or several, with its rows in another order."""
    if isinstance(values, list | tuple):
        return type(values)(_frame(part, rows, names) for part in values)
    if values.shape[0] != N:
        return values
    made = pd.Series(values) if values.ndim == 1 else pd.DataFrame(values, columns=names)
    return made if rows is None else made.iloc[rows]


def _numbers(result: Any) -> list[float]:
    """Every number of a result."""
    if hasattr(result, "to_dict"):
        return _numbers(result.to_dict())
    if is_dataclass(result) and not isinstance(result, type):
        return _numbers(asdict(result))
    if isinstance(result, Mapping):
        return [number for value in result.values() for number in _numbers(value)]
    if isinstance(result, list | tuple | np.ndarray):
        return [number for value in result for number in _numbers(value)]
    if isinstance(result, bool | int | float | np.number | np.bool_):
        return [math.nan if result is None else float(result)]
    return []


def _same_or_error(call: Callable[..., Any], arguments: dict[str, Any], expected: list[float]) -> str | None:
    """What is wrong with a call, if anything is."""
    try:
        found = _numbers(call(**arguments))
    except (TypeError, ValueError, KeyError, IndexError):
        return None
    return None if found == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True) else "another number"


def test_a_table_with_rows_in_another_order_gives_the_same_or_an_error() -> None:
    faults = {}
    for name, (call, arguments) in CALLS.items():
        expected = _numbers(call(**arguments))
        assert len(expected) > 0, name
        tables = [key for key in arguments if key in BY_ROW]
        for shuffled in tables:
            frames = {key: _frame(arguments[key], SHUFFLED if key == shuffled else None) for key in tables}
            faults[name, shuffled] = _same_or_error(call, arguments | frames, expected)
    assert [key for key, fault in faults.items() if fault] == []


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_a_table_with_columns_in_another_order_gives_the_same_or_an_error(
    make: Callable[[dict[str, Any]], Any],
) -> None:
    faults = {}
    for name, (call, arguments) in CALLS.items():
        expected = _numbers(call(**arguments))
        tables = [key for key in arguments if key in BY_CLASS]
        for reordered in tables:
            named = {
                key: make({CLASSES[k]: arguments[key][:, k] for k in ((2, 0, 1) if key == reordered else range(K))})
                for key in tables
            }
            for given in (named, {reordered: named[reordered]}):
                faults[name, reordered, len(given)] = _same_or_error(call, arguments | given, expected)
    assert [key for key, fault in faults.items() if fault] == []


@pytest.mark.slow
def test_frames_in_one_order_are_taken(subtests: pytest.Subtests) -> None:
    """So that the law above is not kept by refusing every frame."""
    for name, (call, arguments) in CALLS.items():
        with subtests.test(name):
            frames = {key: _frame(arguments[key], None) for key in arguments if key in BY_ROW}
            if name in ARRAYS_ONLY:
                with pytest.raises(ValueError, match="must be an array"):
                    call(**(arguments | frames))
                continue
            expected = _numbers(call(**arguments))
            assert _numbers(call(**(arguments | frames))) == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)
