"""Every number of a world, by the library's public functions, as nested mappings with names for keys."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from ml import metrics
from ml.agreement import cohen_kappa, excess_disagreement_test, fleiss_kappa, krippendorff_alpha, measure_agreement
from ml.calibration import Calibration
from ml.distributions import class_intervals, expected_gain, further_labels_expected, majority_prob, moment_matched
from ml.metrics.definitions import without_long_names
from ml.metrics.ordinal import ranked_probability_change
from ml.release.card import CARD_METRICS
from ml.tables import EvaluationOptions
from ml.tables import evaluate as evaluate_tables
from ml.tables.streaming import evaluate_stream
from tests.golden.comparing import FITTED, differences
from tests.golden.worlds import FEATURES, World, write_csv

#: The names that the files have for the forms of CL.
_FORM_NAMES = {"pair": "pair", "paper": "paper", "none": "None"}


def numbers_of(world: World) -> dict[str, Any]:
    """Every number of a world."""
    with np.errstate(invalid="ignore"):  # of one patient, nothing is left without it
        return _numbers_of(world)


def _numbers_of(world: World) -> dict[str, Any]:
    by_arrays = evaluated(world)
    agreeing = agreement(world)
    confusion = [row.pop("confusion", None) for row in agreeing["report"]["annotators"]]
    return {
        "evaluate": by_arrays,
        "tables": tables(world, by_arrays),
        "stream": streamed(world),
        "accumulator": accumulated(world),
        "change": changed(world),
        "losses": losses(world),
        "posterior": posterior(world),
        "known truth": plain(metrics.exact_metrics(world.truth, world.probs, world.distribution.disagreement_probs)),
        "triage": triage(world),
        "agreement": agreeing,
        "card": card(world),
        FITTED: fitted(world, confusion),
    }


def evaluation(found: metrics.Evaluation) -> dict[str, Any]:
    """An evaluation: all but the wording of its warnings, and the edges of the bins."""

    def rows(bins: Any) -> list[Any]:
        return [[row.n, row.mean_prob, row.mean_freq, row.freq_low, row.freq_high] for row in bins if row.n]

    return {
        "sizes": [found.n_cases, found.n_labels, found.n_classes, found.n_bins, found.debias],
        "metrics": plain(found.metrics),
        "classes": {
            row.name: {"CL": row.calibration_loss, "EL": row.epistemic_loss, "bins": rows(row.bins)}
            for row in found.classes
        },
        "class bins": rows(found.class_bins),
        "disagreement bins": rows(found.disagreement_bins),
        "edges": [[row.low for row in found.class_bins][:3], found.disagreement_bins[-1].high],
        "n warnings": len(found.warnings),
    }


def _options(world: World) -> dict[str, Any]:
    return {"sample_weight": world.weights, "cluster": world.patients}


def evaluated(world: World) -> dict[str, Any]:
    """The evaluation of arrays, with all that is known of who gave which label."""
    return evaluation(
        metrics.evaluate(
            world.counts,
            world.probs,
            world.dpe,
            first_label_counts=world.first_counts,
            readings=world.readings if world.n_readers else None,
            n_bins=world.n_bins,
            debias=world.debias,
            classes=world.classes,
            **_options(world),
        )
    )


def tables(world: World, by_arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What the evaluation of tables has that that of arrays has not, or has to other digits."""
    found = evaluation(
        evaluate_tables(
            world.labels_table,
            world.predictions_table(),
            n_bins=world.n_bins,
            debias=world.debias,
            binary=world.level == "binary",
            level="ordinal" if world.level == "ordinal" else "nominal",
            sample_weight=(world.columns["weights"], world.columns["weights2"]),
            cluster=world.columns["cluster"],
        )
    )
    parts = {name: found.pop(name) for name in ("metrics", "classes")}
    others = {name: part for name, part in found.items() if differences(by_arrays[name], part)}
    for name, part in parts.items():
        others |= {f"{name}/{key}": v for key, v in part.items() if differences(by_arrays[name].get(key, {}), v)}
    return others


def streamed(world: World) -> Any:
    """The evaluation of sorted tables in batches, by sums over groups."""
    with TemporaryDirectory() as name:
        labels = write_csv(world.labels_table, Path(name) / "labels.csv")
        predictions = write_csv(world.predictions_table(complete=True), Path(name) / "predictions.csv")
        options = EvaluationOptions(world.n_bins, world.debias, **world.columns)
        document: Mapping[str, Any] = evaluate_stream(labels, predictions, options, batch_rows=17)
    estimates = {
        metric: {name: value for name, value in estimate.items() if value is not None and not is_usual(name, value)}
        for metric, estimate in without_long_names(document["metrics"]).items()
    }
    sizes = [document[name] for name in ("n_cases", "n_labels", "n_classes", "n_bins", "debias")]
    return {"sizes": sizes, "metrics": plain(estimates), "n warnings": len(document["warnings"])}


def accumulated(world: World) -> dict[str, Any]:
    """Values and sums of two accumulators that are merged, one of them read back from its document."""
    parts = []
    for start, stop in ((0, world.n_cases // 3), (world.n_cases // 3, world.n_cases)):
        part = metrics.Accumulator(world.n_classes, world.n_bins)
        for rows in (slice(start, (start + stop) // 2), slice((start + stop) // 2, stop)):
            columns = (world.dpe, world.weights[0], world.patients)
            part.update(world.counts[rows], world.probs[rows], *(None if c is None else c[rows] for c in columns))
        parts.append(part)
    whole = metrics.Accumulator.from_dict(parts[0].to_dict()).merge(parts[1])
    document = whole.to_dict()
    tables = document["tables"]
    if not world.all_sums:
        tables = {name: {field: totals(v) for field, v in table.items()} for name, table in tables.items()}
    cells = document["cells"]
    return {
        "values": {_FORM_NAMES[form]: plain(whole.compute(form)) for form in _FORM_NAMES},
        "sums": {name: part for name, part in document.items() if name not in {"tables", "cells"}},
        "tables": tables,
        "cells": None if cells is None else {name: _cell_sums(table) for name, table in cells.items()},
    }


def _cell_sums(table: Mapping[str, Any]) -> dict[str, Any]:
    """Totals of the columns of cells, whose order means nothing."""
    columns = {name: np.array(values) for name, values in table.items()}
    return {name: float(v.sum()) if v.dtype.kind in "iuf" else len(v) for name, v in columns.items()}


def changed(world: World) -> dict[str, Any]:
    """Paired changes from the world's prediction to its rival."""
    dpe = world.distribution.disagreement_probs if world.dpe is None else world.dpe
    pair = (world.counts, (world.probs, dpe), world.rival)
    chosen = {"first_label_counts": world.first_counts, **_options(world)}
    readings = world.readings if world.n_readers else None
    weights = {"sample_weight": world.weights[0], "cluster": world.patients}
    changes = metrics.paired_changes(*pair, readings=readings, n_bins=world.n_bins, **chosen)
    return {
        "proper scores": attempt(lambda: metrics.paired_change(*pair, **chosen)),
        "all": plain(changes),
        "p of fall": {name: change.p_of_fall for name, change in changes.items()},
        "RPS": attempt(lambda: ranked_probability_change(world.counts, world.probs, world.rival[0], **weights)),
    }


def losses(world: World) -> dict[str, Any]:
    """Each loss by its own function."""
    by_class, dpe = (world.counts, world.probs), world.distribution.disagreement_probs
    weights = {"sample_weight": world.weights[0], "cluster": world.patients}
    bins = weights | {"n_bins": world.n_bins, "debias": world.debias}
    quantiles = bins | {"strategy": "quantile", "n_bins": 4}
    found: dict[str, Callable[[], Any]] = {
        "L": lambda: metrics.expected_squared_loss(*by_class, **weights),
        "EL": lambda: metrics.epistemic_loss(*by_class, **weights),
        "CL": lambda: metrics.calibration_loss(*by_class, **bins),
        "CL by quantiles": lambda: metrics.calibration_loss(*by_class, **quantiles),
        "DL": lambda: metrics.dispersion_loss(*by_class, **bins),
        "L_D": lambda: metrics.disagreement_loss(world.counts, dpe, **weights),
        "CL_D": lambda: metrics.disagreement_calibration_loss(world.counts, dpe, **bins),
        "skill": lambda: metrics.class_skill(*by_class, **weights),
        "skill_D": lambda: metrics.disagreement_skill(world.counts, dpe, **weights),
        "RPS": lambda: metrics.ranked_probability_score(*by_class, **weights),
        "ERPS": lambda: metrics.epistemic_ranked_probability_score(*by_class, **weights),
        "RPS skill": lambda: metrics.ranked_probability_skill(*by_class, **weights),
        "weighted kappa": lambda: metrics.weighted_kappa(*by_class, **weights),
    }
    return {name: attempt(function) for name, function in found.items()}


def posterior(world: World) -> dict[str, Any]:
    """Predictions before and after the labels, what labels are worth, and decisions."""
    prior = world.distribution
    after = prior.posterior(world.counts)
    weights = {"sample_weight": world.weights[1], "cluster": world.patients}
    return {
        "prior": [array(prior.class_probs), array(prior.disagreement_probs)],
        "posterior": [array(after.class_probs), array(after.disagreement_probs)],
        "log likelihood": array(prior.log_likelihood(world.counts)),
        "expected gain": [array(expected_gain(part)) for part in (prior, after)],
        "further labels": attempt(lambda: np.minimum(further_labels_expected(prior, 0.02), 1e6)),
        "gain": attempt(lambda: metrics.posterior_gain(world.counts, prior, **weights)),
        "EL after": attempt(lambda: metrics.posterior_epistemic_loss(world.counts, prior, **weights)),
        "exact EL after": attempt(lambda: metrics.exact_posterior_epistemic_loss(world.counts, world.truth, prior)),
    }


def triage(world: World) -> dict[str, Any]:
    """What a second read of the most uncertain cases finds."""
    scores = {"DPE": world.distribution.disagreement_probs, **metrics.uncertainty_scores(world.probs)}
    weights = {"sample_weight": world.weights[1], "cluster": world.patients}
    pair = (scores["DPE"], world.rival[1])
    found: dict[str, Any] = {
        name: attempt(lambda score=score: metrics.triage_recall(world.counts, score, [0.1, 0.3, 0.7], **weights))
        for name, score in scores.items()
    }
    found["net benefit"] = attempt(lambda: metrics.net_benefit(world.counts, pair[0], 0.3, 0.25, **weights))
    found["difference"] = attempt(lambda: metrics.net_benefit_difference(world.counts, *pair, 0.3, 0.25, **weights))
    return found


def agreement(world: World) -> dict[str, Any]:
    """Coefficients of agreement, by tables and by arrays."""
    level, cluster = "ordinal" if world.level == "ordinal" else "nominal", world.patients
    classes = world.classes if level == "ordinal" else None
    found = plain(measure_agreement(world.labels_table, cluster=world.columns["cluster"], level=level, classes=classes))
    found["n warnings"] = len(found.pop("warnings"))
    first, second = world.matrix[:, 0], world.matrix[:, min(1, world.matrix.shape[1] - 1)]
    alike = world.totals == world.totals.max()
    both = (first >= 0) & (second >= 0)
    return {
        "report": found,
        "alpha": attempt(lambda: krippendorff_alpha(world.counts, cluster=cluster)),
        "ordinal alpha": attempt(lambda: krippendorff_alpha(world.counts, level="ordinal", cluster=cluster)),
        "Fleiss": attempt(
            lambda: fleiss_kappa(world.counts[alike], cluster=None if cluster is None else cluster[alike])
        ),
        "Cohen": attempt(lambda: cohen_kappa(first[both], second[both], world.n_classes)),
        "excess": attempt(
            lambda: excess_disagreement_test(
                world.counts, world.probs, sample_weight=world.weights[1], cluster=world.patients
            )
        ),
    }


def calibrations(world: World) -> dict[str, Calibration]:
    """Calibrations with parameters that no fit has chosen."""
    scaling = {"version": 1, "method": "temperature", "log_temperature": 0.3, "weight": None, "bias": None}
    head = {"weight": [0.5, -0.25, 0.125, 0.75][:FEATURES], "bias": 0.4}
    refinement = {
        "summaries": {
            "centre": [0.5, 1.0, 0.75, 0.5],
            "spread": [1.0, 2.0, 0.5, 1.0],
            "low": [-2.0, -1.0, -2.0, -1.0],
            "high": [2.0, 3.0, 1.5, 2.0],
        },
        "temperature_weight": [0.05, -0.02, 0.04, 0.01],
        "disagreement_map": {"kind": "beta", "low": 0.9, "high": 1.1, "offset": -0.05},
    }
    refined = {"weight": [*head["weight"], 0.1, -0.05, 0.2, 0.15], "bias": 0.4}
    vector = {"weight": [1.0 + k / 8 for k in range(world.n_classes)], "bias": [k / 16 for k in range(world.n_classes)]}
    documents: dict[str, dict[str, Any]] = {
        "vector": scaling | {"method": "vector", "log_temperature": 0.0, "concentration": head} | vector,
        "constant": scaling | {"version": 2, "concentration": head, "constant_disagreement": 0.25},
        "refined": scaling
        | {"version": 3, "concentration": refined, "constant_disagreement": None, "refinement": refinement},
    }
    return {name: Calibration.from_dict(document) for name, document in documents.items()}


def card(world: World) -> dict[str, Any]:
    """The metrics of a card for each calibration, and what the calibration makes of outputs."""
    found: dict[str, Any] = {}
    for name, calibration in calibrations(world).items():
        distribution = calibration.apply(world.logits, world.features)
        judged = (world.counts, distribution.class_probs, distribution.disagreement_probs)
        judgement = metrics.evaluate(*judged, cluster=world.patients).metrics
        found[name] = {
            "metrics": {
                metric: {name: getattr(judgement[metric], name) for name in ("value", "low", "high", "n")}
                for metric in CARD_METRICS
            },
            "class probs": array(distribution.class_probs),
            "disagreement probs": array(distribution.disagreement_probs),
        }
    return found


def fitted(world: World, confusion: list[Any]) -> dict[str, Any]:
    """What ends after steps that stop by a tolerance."""
    prior = world.distribution
    few = type(prior)(**_first_cases(prior, 3))
    return {
        "intervals": attempt(lambda: class_intervals(few)),
        "majority": attempt(lambda: majority_prob(few)),
        "one Dirichlet": attempt(lambda: moment_matched(few)),
        "confusion": confusion,
    }


def _first_cases(distribution: Any, n: int) -> dict[str, Any]:
    """Parameters of a distribution for its first cases."""
    found = {}
    for field in fields(distribution):
        value = getattr(distribution, field.name)
        cases = -2 if field.name == "member_class_probs" else -1 if field.name != "class_probs" else 0
        found[field.name] = None if value is None else value.take(range(min(n, value.shape[cases])), axis=cases)
    return found


#: Numbers of an array that are kept as they are.
_WHOLE = 3


def plain(value: Any) -> Any:
    """Results as JSON values: a dataclass without fields that are None or as they are by default, an array in short."""
    if is_dataclass(value):
        kept = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: plain(part) for name, part in kept.items() if part is not None and not is_usual(name, part)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return array(value)
    return value.item() if isinstance(value, np.generic) else value


def is_usual(name: str, value: Any) -> bool:
    """Whether a field of an estimate is as it nearly always is, or means something for changes only."""
    return name == "p_of_fall" or (name in {"clipped", "singleton_mass"} and not value)


def array(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A long array: its first numbers, its sum, and one in which every place weighs another number."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    whole = {"shape": list(values.shape), "first": flat[:_WHOLE].tolist()}
    return whole | {"sums": totals(flat)}


def totals(values: npt.ArrayLike) -> list[float]:
    """The sum of values, and one in which every place weighs another number, no larger than two."""
    flat = np.asarray(values, dtype=np.float64)
    return [float(flat.sum()), float(flat @ (1 + np.arange(flat.size) % 97 / 97))]


def attempt(function: Callable[[], Any]) -> Any:
    """What a function gives, or that it refuses."""
    try:
        return plain(function())
    except ValueError:
        return "refused"
