"""Recalibration: fit on collected labels, evidence, decision and the candidate release."""

import hashlib
import json
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from sqlalchemy.orm import Session

from app.annotators.models.service import ReaderFitIn
from app.context import ServiceContext
from app.database.tables import new_id
from app.http.models import MetricOut
from app.jobs import service
from app.jobs.service import JobResult, RunningJob
from app.metrics.service import (
    Cohort,
    CohortQuery,
    LabelRow,
    blind_labels,
    build_cohort,
    count_excluded_cases,
    evaluate_cohort,
    exclude_training_cases,
    label_rows,
    load_dataset,
)
from app.recalibration.change_plan import ChangePlan
from app.recalibration.evidence import (
    GateJudgement,
    begin_job_attempt,
    compare_with_first_champion,
    describe_lost_attempts,
    exclude_annotator,
    measure_paired_change,
)
from app.recalibration.gate_decision import FEWEST_ANNOTATORS, GateEvidence
from app.recalibration.preconditions import (
    RecalibrationRefusedError,
    change_beyond_plan_error,
    describe_prediction_change,
    few_double_reads_error,
    few_labels_error,
    is_refusal,
    what_is_refused,
)
from app.recalibration.report import AdaptationOut, FitOut, PredictionShift, RecalibrationFindings, RecalibrationReport
from app.recalibration.training_data import (
    StoredOutputs,
    count_case_labels,
    count_training_cases,
    exclude_kept_cases,
    read_fitting_labels,
    read_stored_outputs,
)
from app.releases.service import (
    UNFINISHED,
    Gate,
    RecalibrationIn,
    RecalibrationMethod,
    class_names,
    register_release,
    served_release_id,
)
from ml.calibration.calibrators import Calibration, FitDocument, calibrate, calibration_mix, fitted_level
from ml.calibration.domain_adaptation import FEWEST_PAIRS, recalibrate_for_annotators
from ml.distributions.families import PredictiveDistribution
from ml.messages import Message
from ml.metrics.losses import Verdict, verdict_of
from ml.metrics.paired_difference import Change
from ml.release.artifact import Release, read_release, write_recalibrated
from ml.release.card import CardContents
from ml.util.arrays import IntArray


@dataclass(frozen=True)
class LabelledOutputs:
    """Labelled outputs of the calibration partition that a fit reads."""

    # of the cases with labels
    outputs: StoredOutputs
    # (N, K) blind labels of both rounds
    counts: IntArray
    # (N, K) those of them that were planned without knowing another label
    planned: IntArray

    @property
    def n_double_reads(self) -> int:
        """Cases with two planned labels or more."""
        return int((self.planned.sum(axis=1) >= 2).sum())


@dataclass(frozen=True)
class FittedCalibration:
    """A calibration with the report of its fit."""

    calibration: Calibration
    report: FitDocument


def require_labels(labelled: LabelledOutputs, parent: Release, method: RecalibrationMethod, plan: ChangePlan) -> None:
    """Refuse a fit that the change plan does not allow, or for which there is too little."""
    n_patients = len(set(labelled.outputs.groups))
    if method == "adapt":
        if parent.calibration.concentration is None:
            raise RecalibrationRefusedError(
                Message(
                    "the champion has no concentration head to adapt; recalibrate with the method temperature once "
                    "{n} cells have labels.",
                    n=plan.min_labelled_cases,
                )
            )
        n_pairs, fewest = labelled.n_double_reads, max(plan.min_double_reads, FEWEST_PAIRS)
        if n_pairs < fewest or n_patients < plan.min_patients:
            refusal = few_double_reads_error(plan, fewest, n_pairs, n_patients)
            raise refusal
        return
    n_cases = len(labelled.counts)
    if n_cases < plan.min_labelled_cases or n_patients < plan.min_patients:
        refusal = few_labels_error(plan, n_cases, n_patients)
        raise refusal


def fit_calibration(labelled: LabelledOutputs, parent: Release, method: RecalibrationMethod) -> FittedCalibration:
    """Fit the champion's successor."""
    logits, features = parent.by_members(labelled.outputs.logits, labelled.outputs.features)
    groups = labelled.outputs.groups
    if method == "adapt":
        adaptation = recalibrate_for_annotators(
            parent.calibration, logits, features, labelled.counts, groups, pair_label_counts=labelled.planned
        )
        class_probs = adaptation.calibration.apply(logits, features).class_probs
        mix = calibration_mix(class_probs, labelled.planned).tolist()
        figures = FitDocument(n_fit=len(labelled.counts), n_cv=0, adaptation=adaptation.figures, class_mix=mix)
        return FittedCalibration(adaptation.calibration, figures)
    level = fitted_level(parent.card["calibration"])
    report = calibrate(
        logits, features, labelled.counts, groups, method=method, scaling_label_counts=labelled.planned, level=level
    )
    return FittedCalibration(report.calibration, report.report)


def fit_document_for_card(parent: Release, made: FittedCalibration) -> FitDocument:
    """Fit document for the card; for an adapted calibration the original fit and the adaptation."""
    if "adaptation" not in made.report:
        return made.report
    return {
        **parent.card["calibration"],
        "adaptation": made.report["adaptation"],
        "class_mix": made.report["class_mix"],
    }


def select_labelled_outputs(outputs: StoredOutputs, counts: IntArray, planned: IntArray) -> LabelledOutputs:
    """The cases that have labels."""
    rows = np.flatnonzero(counts.sum(axis=1))
    return LabelledOutputs(outputs.take(rows), counts[rows], planned[rows])


HEADLINE_METRICS = ("agreement", "L", "skill", "EL", "CE", "L_D", "skill_D", "CE_D")
# share of the job that is done when a step begins; leaving annotators out goes from one share to the other
# the part of the job that is written once
_CANDIDATE = "candidate"
_READING, _FITTING, _JUDGING, _LEAVING_OUT, _LEFT_OUT, _WRITING = 0.02, 0.1, 0.4, 0.45, 0.9, 0.95


@dataclass(frozen=True)
class RecalibrationInputs:
    """Inputs of a recalibration, read at one moment."""

    parent_id: uuid.UUID
    parent: Release
    # outputs of the calibration partition
    fitting: StoredOutputs
    # blind labels of both rounds
    fitting_labels: list[LabelRow]
    # evaluation partition with the champion's predictions and weights
    cohort: Cohort
    # outputs of the same cases, in their order
    judging: StoredOutputs
    judging_labels: list[LabelRow]
    # of the classes, in the order of the champion's outputs
    class_names: list[str]
    # cases of the calibration partition that the champion's network was trained on
    n_left_out_of_fit: int = 0
    # further cases of it whose patients are kept for answer sets
    n_kept_for_sets: int = 0
    # cases of the evaluation partition that the champion was trained on
    n_left_out_of_judgement: int = 0


def read_recalibration_inputs(
    session: Session, context: ServiceContext, since: datetime | None = None
) -> RecalibrationInputs:
    """Read champion, outputs and labels of cases since a time, without those kept for sets."""
    parent_id = served_release_id(session)
    parent = read_release(context.folders.path(f"releases/{parent_id}"))
    columns, question = load_dataset(session, parent_id, list(parent.classes)), CohortQuery(since=since)
    cohort = build_cohort(exclude_training_cases(columns), question, context.clock().timestamp())
    outputs = read_stored_outputs(session, parent.network_sha256, "evaluation", since)
    position = {case_id: row for row, case_id in enumerate(outputs.case_ids)}
    ids = cohort.columns.ids()
    has_output = np.array([case_id in position for case_id in ids], dtype=bool)
    cohort = cohort.take(has_output)
    rows = np.array([position[case_id] for case_id in ids if case_id in position], dtype=np.intp)
    unseen = read_stored_outputs(session, parent.network_sha256, "calibration", since, seen_by=parent_id)
    fitting = exclude_kept_cases(unseen, context.keys.sets)
    judging_labels = label_rows(session, blind_labels(), cohort.columns.ids())
    return RecalibrationInputs(
        parent_id,
        parent,
        fitting,
        read_fitting_labels(session),
        cohort,
        outputs.take(rows),
        judging_labels,
        list(class_names(session, parent_id).values()),
        n_left_out_of_fit=count_training_cases(session, parent_id, "calibration", since),
        n_kept_for_sets=len(unseen.case_ids) - len(fitting.case_ids),
        n_left_out_of_judgement=count_excluded_cases(columns, question),
    )


def fit_candidate(
    material: RecalibrationInputs, method: RecalibrationMethod, plan: ChangePlan, without: str | None = None
) -> FittedCalibration:
    """Fit on the calibration partition, by everybody's labels or without those of one annotator."""
    outputs, classes = material.fitting, list(material.parent.classes)
    planned = [label for label in material.fitting_labels if label.round == "planned"]
    counts, scaled_by = (
        count_case_labels(labels, outputs.case_ids, classes, without) for labels in (material.fitting_labels, planned)
    )
    labelled = select_labelled_outputs(outputs, counts, scaled_by)
    if without is None:
        require_labels(labelled, material.parent, method, plan)
    return fit_calibration(labelled, material.parent, method)


def judge_candidate(material: RecalibrationInputs, calibration: Calibration, without: str | None = None) -> Change:
    """Paired change of L and L_φ on the evaluation partition, from the champion to a calibration."""
    cohort, after = material.cohort, material.judging.predicted(material.parent, calibration)
    if without is not None:
        cohort = exclude_annotator(cohort, material.judging_labels, without)
    return measure_paired_change(cohort, cohort.columns, after)


def compute_headline_metrics(cohort: Cohort, predicted: PredictiveDistribution) -> dict[str, MetricOut]:
    """The headline metrics of predictions for a cohort."""
    columns = replace(
        cohort.columns, class_probs=predicted.class_probs, disagreement_probs=predicted.disagreement_probs
    )
    metrics = evaluate_cohort(replace(cohort, columns=columns)).metrics
    return {name: MetricOut.of(metrics[name]) for name in HEADLINE_METRICS}


def hash_label_snapshot(material: RecalibrationInputs) -> str:
    """Digest of the labels that were used."""
    rows = sorted(
        (str(label.case_id), label.annotator, label.class_code)
        for label in [*material.fitting_labels, *material.judging_labels]
    )
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def recalibrate_champion(job: RunningJob) -> JobResult:
    """Job: fit, judge, write a candidate and its report, and ask for a model of the annotators beside it."""
    written = job.recorded(_CANDIDATE)
    if written is not None:
        return written  # an earlier attempt wrote the candidate and died before it could say so
    settings = job.context.settings
    request = RecalibrationIn.model_validate(job.parameters)
    plan = ChangePlan.read(settings.change_plan)
    if request.method not in plan.methods:
        raise RecalibrationRefusedError(
            Message(
                "the change plan allows the methods {methods}, not {method}.",
                methods=", ".join(plan.methods),
                method=request.method,
            )
        )
    job.report(_READING, Message("reading labels and stored outputs"))
    with job.context.database.read_moment() as session:
        material = read_recalibration_inputs(session, job.context, request.since)
    job.report(_FITTING, Message("fitting on {n:,} stored cells", n=len(material.fitting.case_ids)))
    candidate_fit = fit_candidate(material, request.method, plan)
    shift = _require_allowed_shift(material, candidate_fit, plan)
    job.report(_JUDGING, Message("comparing with the champion"))
    gate = _judge_at_gate(job, material, candidate_fit.calibration, request.method, plan)
    now_served = material.judging.predicted(material.parent, material.parent.calibration)
    findings = RecalibrationFindings(
        parent=str(material.parent_id),
        method=request.method,
        label_snapshot=hash_label_snapshot(material),
        change_plan=plan,
        change_plan_sha256=plan.sha256(),
        moved=shift,
        gate=gate,
        champion=compute_headline_metrics(material.cohort, now_served),
        candidate=compute_headline_metrics(
            material.cohort, material.judging.predicted(material.parent, candidate_fit.calibration)
        ),
        fit=FitOut.model_validate(candidate_fit.report),
        n_evaluated=len(material.cohort.columns),
        n_left_out_of_fit=material.n_left_out_of_fit,
        n_kept_for_sets=material.n_kept_for_sets,
        n_left_out_of_judgement=material.n_left_out_of_judgement,
    )
    job.report(_WRITING, Message("writing the candidate"))
    return _write_candidate(job, material, candidate_fit, findings)


def _require_allowed_shift(material: RecalibrationInputs, made: FittedCalibration, plan: ChangePlan) -> PredictionShift:
    before = material.fitting.predicted(material.parent, material.parent.calibration)
    after = material.fitting.predicted(material.parent, made.calibration)
    shift_values, broken = plan.violations(before, after)
    shift = PredictionShift.model_validate(shift_values)
    if broken:
        change_text = describe_prediction_change(before, after, material.class_names)
        refusal = change_beyond_plan_error(plan, shift, broken, change_text, made.report["n_fit"])
        raise refusal
    return shift


def _judge_at_gate(
    job: RunningJob,
    material: RecalibrationInputs,
    calibration: Calibration,
    method: RecalibrationMethod,
    plan: ChangePlan,
) -> Gate:
    """Judgement with everybody, and with each annotator left out of fit and judgement."""
    attempt = begin_job_attempt(job, material.parent_id)
    names = sorted({label.annotator for label in [*material.fitting_labels, *material.judging_labels]})
    tried: dict[str, Change | str] = {}
    for number, name in enumerate(names if len(names) >= FEWEST_ANNOTATORS else []):
        done = _LEAVING_OUT + (_LEFT_OUT - _LEAVING_OUT) * number / len(names)
        job.report(done, Message("checking without annotator {n} of {total}", n=number + 1, total=len(names)))
        try:
            tried[name] = judge_candidate(material, fit_candidate(material, method, plan, name).calibration, name)
        except ValueError as exc:
            tried[name] = f"the fit without their labels fails ({exc})"
    after = material.judging.predicted(material.parent, calibration)
    with job.context.database.read_moment() as session:
        folders = job.context.folders
        first = compare_with_first_champion(session, folders, material.parent_id, material.cohort, after)
        findings = describe_lost_attempts(session)
    whole = measure_paired_change(material.cohort, material.cohort.columns, after)
    evidence = GateEvidence(whole, material.cohort.columns.cluster, len(names), first.change, tried)
    return GateJudgement(material.parent_id, attempt, evidence, first, plan.max_increase, findings).gate()


def _build_candidate_card(
    parent: Release, parent_id: uuid.UUID, made: FittedCalibration, findings: RecalibrationFindings
) -> CardContents:
    contents: CardContents = parent.card
    return {
        **contents,
        "parent": str(parent_id),
        "calibration": fit_document_for_card(parent, made),
        "disagreement_calibrated": made.calibration.concentration is not None,
        "disagreement": {
            "verdict": _disagreement_verdict(made, findings),
            "constant": made.calibration.constant_disagreement,
        },
        "held_out": {
            "champion": {name: metric.to_dict() for name, metric in findings.champion.items()},
            "candidate": {name: metric.to_dict() for name, metric in findings.candidate.items()},
        },
        "n_held_out": findings.n_evaluated,
        "recalibration": {
            "label_snapshot": findings.label_snapshot,
            "change_plan_sha256": findings.change_plan_sha256,
            "gate": findings.gate.to_dict(),
            "method": findings.method,
            "kept_for_sets": findings.n_kept_for_sets,
        },
    }


def _disagreement_verdict(made: FittedCalibration, findings: RecalibrationFindings) -> Verdict:
    """Verdict on the network's φ: by the judging labels, or the fit's if a constant replaced φ."""
    adaptation = made.report.get("adaptation")
    if adaptation is not None and adaptation["constant"] is not None:
        return adaptation["verdict"]
    return verdict_of(findings.candidate["skill_D"].to_dict())


def _write_candidate(
    job: RunningJob, material: RecalibrationInputs, made: FittedCalibration, findings: RecalibrationFindings
) -> JobResult:
    """Write the candidate once: the same network, the new calibration and card, the parent named."""
    parent = material.parent
    card = _build_candidate_card(parent, material.parent_id, made, findings)
    folders, release_id = job.context.folders, new_id()
    folder = folders.home / "releases" / UNFINISHED.replace("*", str(job.job_id))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        candidate = write_recalibrated(folder, parent, made.calibration, card)
        folders.publish(f"releases/{release_id}", folder)
        # the row's card keeps the codes of the gate's sentences
        candidate = replace(candidate, card={**candidate.card, "recalibration": card["recalibration"]})

        def add(session: Session) -> JobResult:
            # its network is the champion's, which has been run
            row, _ = register_release(
                session,
                job.context.keys.audit,
                candidate,
                folders,
                release_id,
                actor="recalibration",
                judged=True,
            )
            if made.calibration.concentration is not None and _has_shared_cases(material.fitting_labels):
                fit_request = ReaderFitIn(release=row.id).model_dump(mode="json")
                service.submit_job(session, job.context, "readers", fit_request, None)
            return RecalibrationReport(**dict(findings), release=str(row.id)).to_dict()

        return job.batch(_CANDIDATE, add)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _has_shared_cases(labels: Sequence[LabelRow]) -> bool:
    first: dict[uuid.UUID, str] = {}
    return any(first.setdefault(label.case_id, label.annotator) != label.annotator for label in labels)
