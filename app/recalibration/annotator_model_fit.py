"""Fits a model of named annotators and judges it on the evaluation partition; never activates it."""

import uuid
from collections.abc import Sequence

import numpy as np
from sqlalchemy.orm import Session

from app.annotators.models.service import ReaderFitIn, ReaderFitOut, store_model
from app.http.models import MetricOut
from app.jobs.service import JobResult, RunningJob
from app.metrics.service import LabelRow
from app.recalibration.service import RecalibrationInputs, read_recalibration_inputs
from ml.annotations import Annotations
from ml.annotators.choosing import ALIKE, Choice, choose_readers
from ml.annotators.fitting import HeldOutGain, held_out_gain
from ml.distributions.families import PredictiveDistribution, has_concentration
from ml.messages import Message
from ml.metrics.jackknife import Estimate
from ml.release.artifact import Release, read_release

_FITTED = "fitted"
# share of the job that is done when the fit begins, and when it ends
_FITTING, _JUDGING = 0.05, 0.9
#: Annotators below which there is nobody to tell from the others.
MIN_ANNOTATORS = 2


def fit_reader_model(job: RunningJob) -> JobResult:
    """Job: fit a model of the annotators, judge it and keep it as a version. It switches nothing."""
    recorded_result = job.recorded(_FITTED)
    if recorded_result is not None:
        return recorded_result
    request = ReaderFitIn.model_validate(job.parameters)
    job.report(0.01, Message("reading labels and stored outputs"))
    with job.context.database.read_moment() as session:
        material = read_recalibration_inputs(session, job.context)
    release_id, release = _choose_prior_release(job, material, request.release)
    fitting = _annotations_of(material.fitting_labels, material.fitting.case_ids, material.parent.classes)
    _require_enough(fitting)
    prior = material.fitting.predicted(release, release.calibration)
    if not has_concentration(prior):
        raise ValueError(
            Message("the model release has no calibrated disagreement, so labels do not change its predictions yet")
        )
    job.report(
        _FITTING,
        Message("fitting {names} annotators on {case:,} labels", names=fitting.n_annotators, case=len(fitting.case)),
    )
    groups = np.unique(material.fitting.groups, return_inverse=True)[1].astype(np.int64)

    def progress(share: float) -> None:
        job.report(
            _FITTING + (_JUDGING - _FITTING) * share, Message("fitting {names} annotators", names=fitting.n_annotators)
        )

    choice = choose_readers(prior, fitting, fitting.annotators, groups, experts=request.experts, progress=progress)
    job.report(_JUDGING, Message("testing on the next label of cells not used for fitting"))
    gain = None if choice.kind == ALIKE else _measure_gain(material, release, choice)
    report = _fit_report(fitting, choice, gain)

    def keep(session: Session) -> JobResult:
        version = store_model(session, job.context.keys.audit, release_id, choice.model, report)
        return {"version": version, "release": str(release_id), **report.model_dump()}

    return job.batch(_FITTED, keep)


def _choose_prior_release(
    job: RunningJob, material: RecalibrationInputs, asked: uuid.UUID | None
) -> tuple[uuid.UUID, Release]:
    if asked is None or asked == material.parent_id:
        return material.parent_id, material.parent
    release = read_release(job.context.folders.path(f"releases/{asked}"))
    if release.network_sha256 != material.parent.network_sha256:
        raise ValueError(
            Message("the model release uses a different network from the champion; promote it before fitting")
        )
    return asked, release


def _annotations_of(labels: list[LabelRow], case_ids: Sequence[uuid.UUID], classes: Sequence[str]) -> Annotations:
    row_of = {case_id: row for row, case_id in enumerate(case_ids)}
    column = {code: k for k, code in enumerate(classes)}
    kept = [label for label in labels if label.case_id in row_of and label.class_code in column]
    case = np.array([row_of[label.case_id] for label in kept], dtype=np.int64)
    given = np.array([column[label.class_code] for label in kept], dtype=np.int64)
    return Annotations.of_names(case, [label.annotator for label in kept], given, len(case_ids), len(column))


def _require_enough(fitting: Annotations) -> None:
    if fitting.n_annotators < MIN_ANNOTATORS:
        raise ValueError(
            Message(
                "there are labels from {names} annotators; at least {fewest} are needed",
                names=fitting.n_annotators,
                fewest=MIN_ANNOTATORS,
            )
        )
    if not (fitting.per_case >= MIN_ANNOTATORS).any():
        raise ValueError(Message("no cell of the calibration partition has labels from two annotators yet"))


def _measure_gain(material: RecalibrationInputs, release: Release, choice: Choice) -> HeldOutGain:
    """Measure the gain in predicting the next planned blind label on the evaluation partition."""
    cohort = material.cohort
    judging = _annotations_of(material.judging_labels, material.judging.case_ids, material.parent.classes)
    prior: PredictiveDistribution = material.judging.predicted(release, release.calibration)
    models = choice.model, choice.alike
    return held_out_gain(
        prior, judging, judging.annotators, models, weights=cohort.weight2, cluster=cohort.columns.cluster
    )


def _fit_report(fitting: Annotations, choice: Choice, gain: HeldOutGain | None) -> ReaderFitOut:
    return ReaderFitOut(
        kind=choice.kind,
        left_out_losses=choice.losses,
        n_cases=int((fitting.per_case > 0).sum()),
        n_labels=len(fitting.case),
        n_annotators=fitting.n_annotators,
        gain_over_served=None if gain is None else MetricOut.of(gain.over_served),
        gain_over_alike=None if gain is None else MetricOut.of(gain.over_alike),
        passed=gain is not None and gain.passed,
        verdict=_describe_verdict(gain),
        temperature=float(np.exp(choice.model.log_temperature)),
        log_concentration_shift=choice.model.log_concentration_shift,
        weight=0.0 if gain is None else choice.model.weight,
    )


def _describe_verdict(gain: HeldOutGain | None) -> str:
    if gain is None:
        return Message(
            "annotator names do not improve predictions of held-out labels; all annotators are weighted equally"
        )
    gain_text = _format_gain(gain.over_served)
    if gain.passed:
        return Message(
            "the next label is predicted better by {said} nats on cells not used for fitting", said=gain_text
        )
    return Message(
        "no significant improvement in predicting the next label on cells not used for fitting ({said} nats)",
        said=gain_text,
    )


def _format_gain(gain: Estimate) -> str:
    if gain.low is None or gain.high is None:
        return Message("{value:.4f} (too few cells for an interval)", value=gain.value)
    return Message("{value:.4f} (95% interval {low:.4f} to {high:.4f})", value=gain.value, low=gain.low, high=gain.high)
