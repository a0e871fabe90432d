"""Metrics, agreement, distributions and calibration for class probabilities whose truth is a label histogram.

Everything here is implemented in ``ml`` and loaded on first use, so that importing this package costs next to nothing.

>>> import secondread
>>> labels = {"case_id": ["a", "a", "b", "b"], "annotator": ["r", "s", "r", "s"], "label": ["x", "y", "x", "x"]}
>>> predictions = {"case_id": ["a", "b"], "prob:y": [0.5, 0.1], "prob:x": [0.5, 0.9]}
>>> result = secondread.evaluate(labels, predictions)
>>> round(result.metrics["L"].value, 3)
0.26
>>> prior = secondread.DirichletCpe([[0.5, 0.5], [0.9, 0.1]], [0.0, 0.0])
>>> prior.posterior([[2, 0], [2, 0]]).class_probs.round(3)
array([[0.833, 0.167],
       [0.967, 0.033]])

Tables (pandas, polars, Arrow, mappings of columns) are read by the names of their columns, never by position.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml.adoption import adopt
    from ml.agreement import (
        AgreementReport,
        DawidSkene,
        cohen_kappa,
        dawid_skene,
        fleiss_kappa,
        krippendorff_alpha,
        measure_agreement,
    )
    from ml.calibration import Calibration, calibrate
    from ml.distributions import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe
    from ml.metrics import (
        Accumulator,
        Estimate,
        Evaluation,
        calibration_loss,
        disagreement_calibration_loss,
        disagreement_loss,
        dispersion_loss,
        epistemic_loss,
        expected_squared_loss,
    )
    from ml.tables import TableError, compare, evaluate, rank_second_reads
    from secondread import agreement, annotators, calibration, conformal, distributions, metrics, specimens, tables
    from secondread.calibrator import Calibrator
    from secondread.charts import plot_reliability, plot_triage

__version__ = "0.2.0.dev0"

_HOMES = {
    "ml.adoption": ("adopt",),
    "ml.agreement": (
        "AgreementReport",
        "DawidSkene",
        "cohen_kappa",
        "dawid_skene",
        "fleiss_kappa",
        "krippendorff_alpha",
        "measure_agreement",
    ),
    "ml.calibration": ("Calibration", "calibrate"),
    "ml.distributions": ("DirichletCpe", "DirichletMixtureCpe", "EnsembleCpe", "PointCpe"),
    "ml.metrics": (
        "Accumulator",
        "Estimate",
        "Evaluation",
        "calibration_loss",
        "disagreement_calibration_loss",
        "disagreement_loss",
        "dispersion_loss",
        "epistemic_loss",
        "expected_squared_loss",
    ),
    "ml.tables": ("TableError", "compare", "evaluate", "rank_second_reads"),
    "secondread.calibrator": ("Calibrator",),
    "secondread.charts": ("plot_reliability", "plot_triage"),
    "secondread": (
        "agreement",
        "annotators",
        "calibration",
        "conformal",
        "distributions",
        "metrics",
        "specimens",
        "tables",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Accumulator",
    "AgreementReport",
    "Calibration",
    "Calibrator",
    "DawidSkene",
    "DirichletCpe",
    "DirichletMixtureCpe",
    "EnsembleCpe",
    "Estimate",
    "Evaluation",
    "PointCpe",
    "TableError",
    "__version__",
    "adopt",
    "agreement",
    "annotators",
    "calibrate",
    "calibration",
    "calibration_loss",
    "cohen_kappa",
    "compare",
    "conformal",
    "dawid_skene",
    "disagreement_calibration_loss",
    "disagreement_loss",
    "dispersion_loss",
    "distributions",
    "epistemic_loss",
    "evaluate",
    "expected_squared_loss",
    "fleiss_kappa",
    "krippendorff_alpha",
    "measure_agreement",
    "metrics",
    "plot_reliability",
    "plot_triage",
    "rank_second_reads",
    "specimens",
    "tables",
]


def _refuse_shadows() -> None:
    """Make sure that ``ml`` and ``app`` are this package's neighbours and not files of the same name elsewhere.

    Raises:
        ImportError: one of them is somebody else's.
    """
    folder = Path(__file__).resolve().parent.parent
    for name in ("ml", "app"):
        own = folder / name / "__init__.py"
        spec = find_spec(name)
        origin = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or []), None)
        if origin is None or Path(origin).resolve() != own:
            raise ImportError(
                f"secondread's own package {name!r} is hidden by {origin or 'nothing'}: "
                "rename that file or folder, or start Python elsewhere"
            )


_refuse_shadows()


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME_OF[name]
    value = import_module(f"secondread.{name}") if home == "secondread" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
