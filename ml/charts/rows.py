"""Chart data as rows, without a dependency on a drawing library."""

from dataclasses import dataclass
from typing import NotRequired, TypedDict


class EpochMetrics(TypedDict):
    """One epoch of a training, in nats per label."""

    epoch: int
    train_loss: float
    learning_rate: float
    valid_loss: float
    valid_agreement: float
    images_per_second: float
    seconds: NotRequired[float]  # since the epoch before
    processes: NotRequired[int]  # if several trained
    batch_norm: NotRequired[str]  # part of a batch of its statistics


class MethodLosses(TypedDict):
    """Calibration and dispersion loss of a method."""

    method: str
    family: str
    CL: float
    DL: float


class TemperaturePoint(TypedDict):
    """A measure at one temperature, in one panel of the chart."""

    panel: str
    temperature: float
    measure: str
    value: float


class ShiftPoint(TypedDict):
    """Answers of a release to n shifted images."""

    kind: str
    strength: str  # mild, standard or none
    n: int
    flagged: float  # share called unlike the release's images
    agreement: float | None
    agreement_change: float | None  # from the same images as they were
    agreement_change_se: float | None
    loss: float | None  # L, squared error for one label
    mean_disagreement: float  # mean of φ, of flagged images too


class TriagePoint(TypedDict):
    """Share of disagreements caught at one capacity."""

    score: str
    capacity: float
    value: float | None
    low: float | None
    high: float | None


class ThinningRow(TypedDict):
    """An estimate from few labels next to that from all."""

    metric: str
    estimator: str
    labels: int
    full: float | None
    value: float | None
    low: float | None
    high: float | None
    se: float | None


@dataclass(frozen=True)
class ZeroMeanRow:
    """Mean of an estimator with zero truth over runs."""

    estimator: str
    n_labels: int
    n_cases: int
    mean: float
    se: float


@dataclass(frozen=True)
class CoverageRow:
    """Bias and interval coverage of an estimator over runs."""

    estimator: str
    n_cases: int
    panel: str
    truth: float
    bias: float
    bias_se: float
    spread: float
    coverage: float
    above: float
    below: float
    runs: int
