"""A calibrator with the conventions of scikit-learn: parameters in the constructor, ``fit``, ``predict``."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ml.calibration import Calibration, FitReport, Level, Method, calibrate
from ml.calibration.scaling import METHODS
from ml.dataframes import by_class, column_names, has_cases, refuse_row_names, same_rows
from ml.distributions.families import PredictiveDistribution
from ml.tables.files import case_column, check_labels
from ml.tables.logits import LOGIT as _PREFIX
from ml.tables.logits import read_outputs
from ml.tables.reading import TableError, TableSource, open_table, positions
from ml.util.arrays import FloatArray, IntArray, as_features, as_logits

_PARAMETERS = ("method", "alpha", "seed", "refined", "level")


class Calibrator:
    """Calibration of a network's outputs, fitted on what several annotators called each case.

    Args:
        method: how class probabilities are calibrated: ``none``, ``temperature``, ``vector`` or ``matrix``.
        alpha: whether to fit the concentration of the labels' distribution, which a posterior needs.
        seed: of the split on which steps are chosen.
        refined: whether to try summaries of the logits and a map of disagreement; the paper's method has neither.
        level: ``nominal``, or ``ordinal`` if classes are grades: a label may then also raise its neighbours.

    Attributes:
        calibration_: the fitted ``Calibration``, whose ``to_dict()`` can be stored.
        report_: how it was chosen, with losses on held-out cases.
        classes_: names of the classes in the order of the columns; None if nothing named them.

    Examples:
        >>> import numpy as np
        >>> from secondread import Calibrator
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(200, 3))
        >>> counts = [rng.multinomial(2, np.exp(row) / np.exp(row).sum()) for row in logits]
        >>> calibrator = Calibrator().fit(3 * logits, counts)
        >>> prior = calibrator.predict(3 * logits)
        >>> round(float(np.exp(calibrator.calibration_.scaling.log_temperature)), 1)
        3.0
        >>> prior.posterior(counts).class_probs.shape
        (200, 3)
    """

    calibration_: Calibration
    report_: FitReport
    classes_: tuple[str, ...] | None

    def __init__(
        self,
        method: Method = "temperature",
        *,
        alpha: bool = True,
        seed: int = 0,
        refined: bool = True,
        level: Level = "nominal",
    ) -> None:
        self.method: Method = method
        self.alpha = alpha
        self.seed = seed
        self.refined = refined
        self.level: Level = level

    def __repr__(self) -> str:
        """The constructor's call."""
        return f"Calibrator({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor, by name; ``deep`` is scikit-learn's and changes nothing."""
        return {name: getattr(self, name) for name in _PARAMETERS}

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the constructor, by name, and return the calibrator.

        Raises:
            ValueError: an unknown parameter.
        """
        for name, value in params.items():
            if name not in _PARAMETERS:
                raise ValueError(f"unknown parameter {name!r}; there are {', '.join(_PARAMETERS)}")
            setattr(self, name, value)
        return self

    def fit(
        self,
        logits: npt.ArrayLike | TableSource,
        annotations: npt.ArrayLike | TableSource,
        *,
        features: npt.ArrayLike | None = None,
        groups: str | npt.ArrayLike | None = None,
    ) -> Self:
        """Fit on 80 % of the groups, choose what helps on the other 20 %, and refit on all.

        Args:
            logits: outputs before the softmax, (N, K), or (S, N, K) of an ensemble; a table with a column per class; or
                a table with ``case_id`` and columns ``logit:<class>`` (or ``prob:<class>``), matched with LABELS.
            annotations: label counts (N, K), or LABELS, long or wide, with a table of logits.
            features: (N, D), or (S, N, D), the network's last hidden layer, from which the concentration is predicted;
                without them the concentration is one number.
            groups: patient of each case (N,), or the column of LABELS that names it; each case by itself if left out.

        Returns:
            The calibrator.

        Raises:
            ValueError: inputs that cannot be used, or too few labels; of a table the message names row and column.
        """
        if self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}; there are {', '.join(METHODS)}")
        if has_cases(annotations) or has_cases(logits):
            same_rows(logits=logits, features=features, groups=groups)
            scores, counts, classes, patients = _match(logits, annotations, groups)
        else:
            if isinstance(groups, str):
                raise ValueError("groups names a column of LABELS: with label counts give the patient of each case")
            same_rows(logits=logits, annotations=annotations, features=features, groups=groups)
            label_counts, values, classes = by_class(annotations, logits, names=("logits", _PREFIX))
            scores, counts, patients = as_logits(values), np.asarray(label_counts), _names(groups, np.shape(values)[-2])
        hidden = _constant(scores) if features is None else as_features(features, scores)
        fitted = calibrate(scores, hidden, counts, patients, **self.get_params())
        self.report_, self.calibration_ = fitted, fitted.calibration
        self.classes_ = None if classes is None else tuple(classes)
        self._n_classes, self._n_features = scores.shape[-1], None if features is None else hidden.shape[-1]
        return self

    def predict(
        self, logits: npt.ArrayLike | TableSource, *, features: npt.ArrayLike | None = None
    ) -> PredictiveDistribution:
        """Return the distribution of the labels of each case: class and disagreement probabilities, and posteriors.

        Args:
            logits: (N, K) as in ``fit``; a table, with ``case_id`` or without, if classes had names there.
            features: (N, D), if there were any in ``fit``.

        Returns:
            ``class_probs`` (N, K), ``disagreement_probs`` (N,) and ``posterior(label_counts)``, by row of the logits.

        Raises:
            ValueError: the calibrator is not fitted, or shapes or names differ from those that it was fitted on.
        """
        if not hasattr(self, "calibration_"):
            raise ValueError("this Calibrator is not fitted yet: call fit(logits, annotations) first")
        named_rows = same_rows if has_cases(logits) else refuse_row_names
        named_rows(logits=logits, features=features)
        scores = self._ordered(logits)
        if (features is None) != (self._n_features is None):
            raise ValueError(f"features must be {'given' if self._n_features else 'left out'}, as they were in fit")
        hidden = _constant(scores) if features is None else as_features(features, scores)
        for what, actual, expected in (
            ("classes", scores.shape[-1], self._n_classes),
            ("features", hidden.shape[-1], self._n_features or hidden.shape[-1]),
        ):
            if actual != expected:
                raise ValueError(f"there are {actual} {what}, and the calibrator was fitted on {expected}")
        return self.calibration_.apply(scores, hidden)

    def predict_proba(
        self, logits: npt.ArrayLike | TableSource, *, features: npt.ArrayLike | None = None
    ) -> FloatArray:
        """Return calibrated class probabilities (N, K); arguments and errors as in ``predict``."""
        return self.predict(logits, features=features).class_probs

    def _ordered(self, logits: npt.ArrayLike | TableSource) -> FloatArray:
        """Logits with classes in the order of the fit."""
        if has_cases(logits):
            table = read_outputs(logits)  # type: ignore[arg-type]
            if self.classes_ is None or set(table.classes) != set(self.classes_):
                fitted = "without names" if self.classes_ is None else ", ".join(self.classes_)
                raise ValueError(f"the classes of logits are {', '.join(table.classes)}, and those of the fit {fitted}")
            return table.logits[:, [table.classes.index(name) for name in self.classes_]]
        if self.classes_ is None:
            return as_logits(logits)  # type: ignore[arg-type]
        names = column_names(logits)
        if names is None:
            raise ValueError(f"classes had names in fit ({', '.join(self.classes_)}): pass a table of logits")
        return as_logits(by_class({name: [0] for name in self.classes_}, logits, self.classes_, ("logits", _PREFIX))[1])


def _constant(scores: FloatArray) -> FloatArray:
    """One feature that is the same for every case."""
    return np.zeros((*scores.shape[:-1], 1))


def _names(groups: npt.ArrayLike | None, n_cases: int) -> list[str]:
    """Patient of each case; each case by itself without any."""
    if groups is None:
        return [str(case) for case in range(n_cases)]
    patients = np.asarray(groups)
    if patients.shape != (n_cases,):
        raise ValueError(f"groups must have shape ({n_cases},), got {patients.shape}")
    return [str(name) for name in patients.tolist()]


def _match(
    logits: Any, annotations: Any, groups: str | npt.ArrayLike | None
) -> tuple[FloatArray, IntArray, list[str] | None, list[str]]:
    """Logits, label counts, classes and patients, by row of the logits."""
    if not (has_cases(logits) and has_cases(annotations)):
        lacking = "logits have" if has_cases(annotations) else "annotations have"
        raise ValueError(
            f"{lacking} no column 'case_id' to match cases by: give LABELS a table of logits with case_id and "
            f"{_PREFIX}<class>, or pass arrays"
        )
    outputs = read_outputs(logits)
    cases, classes, scores = outputs.case_ids, outputs.classes, outputs.logits
    table, place = open_table(annotations, "LABELS")
    labels = check_labels(table, place, classes)
    rows, counted = positions(labels.case_ids, cases), labels.counts()
    stray = np.flatnonzero((rows < 0) & counted.any(axis=1))
    if stray.size:
        raise TableError(f"{place}: case {labels.case_ids[stray[0]]!r} has a label but no logits, {stray.size} in all")
    counts = np.zeros(scores.shape, dtype=np.int64)
    counts[rows[rows >= 0]] = counted[rows >= 0]
    if not isinstance(groups, str):
        return scores, counts, classes, _names(groups, len(cases))
    patients = [f"case {case}" for case in cases]
    for row, name in zip(rows.tolist(), case_column(labels, groups, place).tolist(), strict=True):
        if row >= 0:
            patients[row] = str(name)
    return scores, counts, classes, patients
