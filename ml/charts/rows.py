"""Chart data as rows, without a dependency on a drawing library."""

from dataclasses import dataclass
from typing import NotRequired, TypedDict


class EpochMetrics(TypedDict):
    """One epoch of a training: a line of ``metrics.jsonl``; losses in nats per label."""

    epoch: int
    train_loss: float
    learning_rate: float
    valid_loss: float
    valid_agreement: float
    images_per_second: float
    seconds: NotRequired[float]  # since the epoch before: its checkpoint, the steps and the validation
    processes: NotRequired[int]  # if several trained
    batch_norm: NotRequired[str]  # of which part of a batch its statistics were, if several trained


class MethodLosses(TypedDict):
    """Calibration and dispersion loss of a method, which belongs to a family of methods."""

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


class Optimum(TypedDict):
    """Where a curve over the log concentration is lowest."""

    curve: str
    log_concentration: float


class ConcentrationPoint(TypedDict):
    """A squared error at one log concentration by formula and, at some of them, by simulation."""

    prediction: str
    curve: str
    log_concentration: float
    value: float
    simulated: float | None


class ShiftPoint(TypedDict):
    """Answers of a release to n images that were shifted in one way; None without labels."""

    kind: str
    strength: str  # mild (drawn between a tenth and half of the standard shift), standard, or none
    n: int
    flagged: float  # share called unlike the release's images
    agreement: float | None
    agreement_change: float | None  # from the same images as they were
    agreement_change_se: float | None
    loss: float | None  # L, squared error for one label
    mean_disagreement: float  # mean of φ, of flagged images too


class TriagePoint(TypedDict):
    """Share of disagreements that a score catches at one capacity, with its 95 % interval."""

    score: str
    capacity: float
    value: float | None
    low: float | None
    high: float | None


class MethodPoint(TypedDict):
    """A measure of a method by ours or the paper's account, with its range over seeds."""

    method: str
    labels: str
    who: str
    value: float
    low: float
    high: float


class ThinningRow(TypedDict):
    """An estimate from a few labels per case, next to the answer from all of them."""

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
    """Mean of an estimator whose truth is zero, over independent runs."""

    estimator: str  # name
    n_labels: int  # labels per case
    n_cases: int  # N
    mean: float  # over the runs
    se: float  # Monte-Carlo standard error of the mean


@dataclass(frozen=True)
class CoverageRow:
    """Bias and coverage of an estimator at one size."""

    estimator: str  # name
    n_cases: int  # N
    panel: str  # how cases and labels came
    truth: float  # what it aims at
    bias: float  # mean of the estimates less the truth
    bias_se: float  # Monte-Carlo standard error of the bias
    spread: float  # standard deviation of the estimates
    coverage: float  # share of 95 % intervals that contain the truth
    above: float  # share with the truth above the upper end
    below: float  # share with the truth below the lower end
    runs: int  # number of simulated data sets
