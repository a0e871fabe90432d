"""What the routes of evaluations answer."""

import uuid
from datetime import datetime
from typing import Any, Literal

from app.platform.values import In, Line, Moment, Out


class MetricOut(Out):
    """One estimate."""

    value: float | None
    se: float | None
    low: float | None
    high: float | None
    n: int
    dropped: int
    ess: float | None
    clipped: bool
    singleton_mass: float
    horvitz_thompson: float | None
    largest_weight: float | None


class BinOut(Out):
    """One bin of a reliability diagram."""

    low: float
    high: float
    n: int
    mean_prob: float | None
    mean_freq: float | None
    freq_low: float | None
    freq_high: float | None


class GroupOut(Out):
    """Metrics of one site or month."""

    group: str
    n_cases: int
    metrics: dict[str, MetricOut]


class DriftOut(Out):
    """How far images and labels have moved from those that the release was made from; ``site`` null: all."""

    site: str | None
    n_cases: int
    stain_shift: list[float] | None
    feature_shift: float | None
    unfamiliar_share: float
    label_shift: float | None
    label_p_value: float | None
    warnings: list[str]


class CapacityOut(MetricOut):
    """Share of disagreements caught when this share of the cases is sent for a second read."""

    capacity: float


class MetricsOut(Out):
    """The document of ``secondread evaluate``, and what it was computed over."""

    release: str
    partition: str
    weighting: str
    n_cases: int
    n_labels: int
    n_classes: int
    n_bins: int
    debias: str
    metrics: dict[str, MetricOut]
    classes: list[dict[str, Any]]
    class_bins: list[BinOut]
    disagreement_bins: list[BinOut]
    warnings: list[str]
    selection: dict[str, Any]
    posterior_gain: MetricOut | None
    triage_curve: list[CapacityOut]
    drift: list[DriftOut]
    groups: list[GroupOut]


class ComparedOut(Out):
    """One metric of the champion, of another release on the same cases, and of their difference."""

    champion: MetricOut
    release: MetricOut
    change: MetricOut


class ComparisonOut(Out):
    """A release beside the champion; ``change`` is release less champion, with the interval of the difference."""

    champion: str
    release: str
    partition: str
    weighting: str
    n_cases: int
    n_labels: int
    n_labelled: int
    n_labelled_not_predicted: int
    metrics: dict[str, ComparedOut]


class EvaluationIn(In):
    """What is to be frozen and evaluated."""

    release: uuid.UUID | None = None
    partition: Literal["all", "evaluation", "calibration"] = "evaluation"
    weighting: Literal["ipw", "none"] = "ipw"
    since: Moment | None = None
    until: Moment | None = None
    site: Line | None = None


class EvaluationOut(Out):
    """A frozen evaluation; ``document`` is null until its job has succeeded."""

    id: str
    state: str
    progress: float
    message: str
    error: str | None
    created_at: datetime
    release: str | None
    snapshot_sha256: str | None
    document: dict[str, Any] | None


class EvaluationsOut(Out):
    """Frozen evaluations, newest first."""

    items: list[EvaluationOut]
