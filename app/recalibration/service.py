"""Recalibration: fit on collected labels, evidence, decision and the candidate release.

Fitted on the calibration partition, judged on the evaluation partition, weighted for selection, paired by case and
clustered by patient; and once more with each annotator's labels left out of fit and judgement, so that nobody alone
can carry the change.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from sqlalchemy.orm import Session

from app.annotators.models.schemas import ReaderFitIn
from app.context import Context
from app.database.tables import new_id
from app.http.models import MetricOut
from app.jobs import service
from app.jobs.handle import JobResult, RunningJob
from app.metrics.cohort import Cohort, Question, cohort_of, evaluate_cohort, held_out, left_out
from app.metrics.load import read_columns
from app.metrics.queries import LabelRow, blind_labels, label_rows
from app.recalibration.change_plan import ChangePlan
from app.recalibration.evidence import (
    Judgement,
    begun_attempt,
    change_between,
    forgotten,
    since_first_champion,
    without_annotator,
)
from app.recalibration.gate_decision import FEWEST_ANNOTATORS, Evidence
from app.recalibration.preconditions import (
    RecalibrationRefusedError,
    before_and_after,
    beyond_the_plan,
    too_few_double_reads,
    too_few_labels,
)
from app.recalibration.report import Findings, FitOut, Moved, RecalibrationReport
from app.recalibration.training_data import (
    StoredOutputs,
    fitting_labels,
    histograms,
    n_seen_by,
    stored_outputs,
    without_kept,
)
from app.releases.gate_verdicts import Gate
from app.releases.queries import served_release_id
from app.releases.registration import UNFINISHED, register_release
from app.releases.schemas import RecalibrationIn, RecalibrationMethod
from ml.calibration.calibrators import Calibration, FitDocument, calibrate
from ml.calibration.domain_adaptation import FEWEST_PAIRS, relearn
from ml.distributions.families import PredictiveDistribution
from ml.metrics.paired_difference import Change
from ml.metrics.skill import Verdict, verdict_of
from ml.release.artifact import DISTANCE_FILE, FAMILIARITY_FILE, HEAD_FILE, Release, read_release, write_release
from ml.release.card import CardContents, readme_text
from ml.release.training_index import INDEX_FILE
from ml.util.arrays import IntArray


@dataclass(frozen=True)
class Labelled:
    """What a fit reads of the calibration partition.

    Attributes:
        outputs: of the cases with labels.
        counts: (N, K) blind labels of both rounds.
        planned: (N, K) those of them that were planned without knowing another label.
    """

    outputs: StoredOutputs
    counts: IntArray
    planned: IntArray

    @property
    def n_double_reads(self) -> int:
        """Cases with two planned labels or more."""
        return int((self.planned.sum(axis=1) >= 2).sum())


@dataclass(frozen=True)
class Fitted:
    """A calibration and how it came about."""

    calibration: Calibration
    report: FitDocument


def require_labels(labelled: Labelled, parent: Release, method: RecalibrationMethod, plan: ChangePlan) -> None:
    """Refuse a fit that the change plan does not allow, or for which there is too little.

    Raises:
        RecalibrationRefusedError: too few labelled cases, double reads or patients, or nothing that could be adapted.
    """
    n_patients = len(set(labelled.outputs.groups))
    if method == "adapt":
        if parent.calibration.concentration is None:
            raise RecalibrationRefusedError(
                "the champion has no concentration head that could be adapted; recalibrate with the method "
                f"temperature, which fits one, once {plan.min_labelled_cases} cases have labels."
            )
        n_pairs, fewest = labelled.n_double_reads, max(plan.min_double_reads, FEWEST_PAIRS)
        if n_pairs < fewest or n_patients < plan.min_patients:
            refusal = too_few_double_reads(plan, fewest, n_pairs, n_patients)
            raise refusal
        return
    n_cases = len(labelled.counts)
    if n_cases < plan.min_labelled_cases or n_patients < plan.min_patients:
        refusal = too_few_labels(plan, n_cases, n_patients)
        raise refusal


def fitted(labelled: Labelled, parent: Release, method: RecalibrationMethod) -> Fitted:
    """Fit the champion's successor.

    Args:
        labelled: of the calibration partition.
        parent: champion.
        method: ``adapt``, or how class probabilities are calibrated.

    Raises:
        FitError: too few labels, or no convergence.
    """
    logits, features = labelled.outputs.by_members(parent)
    groups = labelled.outputs.groups
    if method == "adapt":
        found = relearn(
            parent.calibration, logits, features, labelled.counts, groups, pair_label_counts=labelled.planned
        )
        return Fitted(found.calibration, {"n_fit": len(labelled.counts), "n_cv": 0, "adaptation": found.to_dict()})
    report = calibrate(logits, features, labelled.counts, groups, method=method, scaling_label_counts=labelled.planned)
    return Fitted(report.calibration, report.report)


def card_report(parent: Release, made: Fitted) -> FitDocument:
    """What the card says of the fit: of an adapted calibration how it was fitted, and what was changed afterwards."""
    adaptation = made.report.get("adaptation")
    if adaptation is None:
        return made.report
    return {**parent.card["calibration"], "adaptation": adaptation}


def labelled_cases(outputs: StoredOutputs, counts: IntArray, planned: IntArray) -> Labelled:
    """The cases that have labels.

    Args:
        outputs: of N cases.
        counts: (N, K) their labels.
        planned: (N, K) those of them that were planned.
    """
    rows = np.flatnonzero(counts.sum(axis=1))
    return Labelled(outputs.take(rows), counts[rows], planned[rows])


SHOWN = ("agreement", "L", "skill", "EL", "CE", "L_D", "skill_D", "CE_D")
# share of the job that is done when a step begins; leaving annotators out goes from one share to the other
# the part of the job that is written once
_CANDIDATE = "candidate"
_READING, _FITTING, _JUDGING, _LEAVING_OUT, _LEFT_OUT, _WRITING = 0.02, 0.1, 0.4, 0.45, 0.9, 0.95


@dataclass(frozen=True)
class Material:
    """Everything that a recalibration reads, at one moment.

    Attributes:
        parent_id: champion.
        parent: its release.
        fitting: outputs of the calibration partition.
        fitting_labels: blind labels of both rounds.
        cohort: evaluation partition with the champion's predictions and weights.
        judging: outputs of the same cases, in their order.
        judging_labels: blind planned labels.
        n_left_out_of_fit: cases of the calibration partition that the champion's network was trained on.
        n_kept_for_sets: further cases of it whose patients are kept for answer sets.
        n_left_out_of_judgement: cases of the evaluation partition that the champion was trained on.
    """

    parent_id: uuid.UUID
    parent: Release
    fitting: StoredOutputs
    fitting_labels: list[LabelRow]
    cohort: Cohort
    judging: StoredOutputs
    judging_labels: list[LabelRow]
    n_left_out_of_fit: int = 0
    n_kept_for_sets: int = 0
    n_left_out_of_judgement: int = 0


def gather(session: Session, context: Context, since: datetime | None = None) -> Material:
    """Read champion, outputs and labels of the cases stored at a time or later; a fit sees none that is kept for sets.

    Raises:
        NoRelease: there is no champion.
    """
    parent_id = served_release_id(session)
    parent = read_release(context.folders.path(f"releases/{parent_id}"))
    columns, question = read_columns(session, parent_id, list(parent.classes)), Question(since=since)
    cohort = cohort_of(held_out(columns), question, context.clock().timestamp())
    outputs = stored_outputs(session, parent.network_sha256, "evaluation", since)
    position = {case_id: row for row, case_id in enumerate(outputs.case_ids)}
    ids = cohort.columns.ids()
    known = np.array([case_id in position for case_id in ids], dtype=bool)
    cohort = cohort.take(known)
    rows = np.array([position[case_id] for case_id in ids if case_id in position], dtype=np.intp)
    unseen = stored_outputs(session, parent.network_sha256, "calibration", since, seen_by=parent_id)
    fitting = without_kept(unseen, context.keys.sets)
    judging_labels = label_rows(session, blind_labels(), cohort.columns.ids())
    return Material(
        parent_id,
        parent,
        fitting,
        fitting_labels(session),
        cohort,
        outputs.take(rows),
        judging_labels,
        n_left_out_of_fit=n_seen_by(session, parent_id, "calibration", since),
        n_kept_for_sets=len(unseen.case_ids) - len(fitting.case_ids),
        n_left_out_of_judgement=left_out(columns, question),
    )


def fit(material: Material, method: RecalibrationMethod, plan: ChangePlan, without: str | None = None) -> Fitted:
    """Fit on the calibration partition, by everybody's labels or without those of one annotator.

    Raises:
        ValueError: too few labels, or a fit that fails.
    """
    outputs, classes = material.fitting, list(material.parent.classes)
    planned = [label for label in material.fitting_labels if label.round == "planned"]
    counts, scaled_by = (
        histograms(labels, outputs.case_ids, classes, without) for labels in (material.fitting_labels, planned)
    )
    labelled = labelled_cases(outputs, counts, scaled_by)
    if without is None:
        require_labels(labelled, material.parent, method, plan)
    return fitted(labelled, material.parent, method)


def judge(material: Material, calibration: Calibration, without: str | None = None) -> Change:
    """Paired change of L and L_φ on the evaluation partition, from the champion to a calibration."""
    cohort, after = material.cohort, material.judging.predicted(material.parent, calibration)
    if without is not None:
        cohort = without_annotator(cohort, material.judging_labels, without)
    return change_between(cohort, cohort.columns, after)


def shown_metrics(cohort: Cohort, predicted: PredictiveDistribution) -> dict[str, MetricOut]:
    """The headline metrics of predictions for a cohort."""
    columns = replace(
        cohort.columns, class_probs=predicted.class_probs, disagreement_probs=predicted.disagreement_probs
    )
    metrics = evaluate_cohort(replace(cohort, columns=columns)).metrics
    return {name: MetricOut.of(metrics[name]) for name in SHOWN}


def snapshot_sha256(material: Material) -> str:
    """Digest of the labels that were used."""
    rows = sorted(
        (str(label.case_id), label.annotator, label.class_code)
        for label in [*material.fitting_labels, *material.judging_labels]
    )
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def recalibrate(job: RunningJob) -> JobResult:
    """Job: fit, judge, write a candidate and its report, and ask for a model of the annotators beside it.

    Raises:
        RecalibrationRefusedError: too few labels, or a change beyond the plan.
        ValueError: a fit that fails.
    """
    written = job.recorded(_CANDIDATE)
    if written is not None:
        return written  # an earlier attempt wrote the candidate and died before it could say so
    settings = job.context.settings
    asked = RecalibrationIn.model_validate(job.parameters)
    plan = ChangePlan.read(settings.change_plan)
    if asked.method not in plan.methods:
        raise RecalibrationRefusedError(
            f"the change plan allows the methods {', '.join(plan.methods)}, not {asked.method}."
        )
    job.report(_READING, "reading labels and stored outputs")
    with job.context.database.read_moment() as session:
        material = gather(session, job.context, asked.since)
    job.report(_FITTING, f"fitting on {len(material.fitting.case_ids):,} stored cases")
    made = fit(material, asked.method, plan)
    moved = _allowed_move(material, made, plan)
    job.report(_JUDGING, "judging against the champion")
    gate = _gate(job, material, made.calibration, asked.method, plan)
    now_served = material.judging.predicted(material.parent, material.parent.calibration)
    findings = Findings(
        parent=str(material.parent_id),
        method=asked.method,
        label_snapshot=snapshot_sha256(material),
        change_plan=plan,
        change_plan_sha256=plan.sha256(),
        moved=moved,
        gate=gate,
        champion=shown_metrics(material.cohort, now_served),
        candidate=shown_metrics(material.cohort, material.judging.predicted(material.parent, made.calibration)),
        fit=FitOut.model_validate(made.report),
        n_evaluated=len(material.cohort.columns),
        n_left_out_of_fit=material.n_left_out_of_fit,
        n_kept_for_sets=material.n_kept_for_sets,
        n_left_out_of_judgement=material.n_left_out_of_judgement,
    )
    job.report(_WRITING, "writing the candidate")
    return _write(job, material, made, findings)


def _allowed_move(material: Material, made: Fitted, plan: ChangePlan) -> Moved:
    """How far a calibration moves the predictions of the cases that a fit may see.

    Raises:
        RecalibrationRefusedError: further than the plan allows.
    """
    before = material.fitting.predicted(material.parent, material.parent.calibration)
    after = material.fitting.predicted(material.parent, made.calibration)
    shown, broken = plan.violations(before, after)
    moved = Moved.model_validate(shown)
    if broken:
        told = before_and_after(before, after, [info["name"] for info in material.parent.card["classes"]])
        refusal = beyond_the_plan(plan, moved, broken, told, made.report["n_fit"])
        raise refusal
    return moved


def _gate(
    job: RunningJob, material: Material, calibration: Calibration, method: RecalibrationMethod, plan: ChangePlan
) -> Gate:
    """Judgement with everybody, and with each annotator left out of fit and judgement."""
    attempt = begun_attempt(job, material.parent_id)
    names = sorted({label.annotator for label in [*material.fitting_labels, *material.judging_labels]})
    tried: dict[str, Change | str] = {}
    for number, name in enumerate(names if len(names) >= FEWEST_ANNOTATORS else []):
        done = _LEAVING_OUT + (_LEFT_OUT - _LEAVING_OUT) * number / len(names)
        job.report(done, f"judging without annotator {number + 1} of {len(names)}")
        try:
            tried[name] = judge(material, fit(material, method, plan, name).calibration, name)
        except ValueError as exc:
            tried[name] = f"the fit without their labels fails ({exc})"
    after = material.judging.predicted(material.parent, calibration)
    with job.context.database.read_moment() as session:
        folders = job.context.folders
        first = since_first_champion(session, folders, material.parent_id, material.cohort, after)
        findings = forgotten(session)
    whole = change_between(material.cohort, material.cohort.columns, after)
    evidence = Evidence(whole, material.cohort.columns.cluster, len(names), first.change, tried)
    return Judgement(material.parent_id, attempt, evidence, first, plan.max_increase, findings).gate()


def _card(parent: Release, parent_id: uuid.UUID, made: Fitted, findings: Findings) -> CardContents:
    """The parent's card with what recalibration changed."""
    contents: CardContents = parent.card
    return {
        **contents,
        "parent": str(parent_id),
        "calibration": card_report(parent, made),
        "disagreement_calibrated": made.calibration.concentration is not None,
        "disagreement": {"verdict": _verdict(made, findings), "constant": made.calibration.constant_disagreement},
        "held_out": {
            "champion": {name: metric.to_dict() for name, metric in findings.champion.items()},
            "candidate": {name: metric.to_dict() for name, metric in findings.candidate.items()},
        },
        "n_held_out": findings.n_evaluated,
        "recall": [],  # of the parent, as it was trained
        "baseline": None,
        "shifts": [],
        "recalibration": {
            "label_snapshot": findings.label_snapshot,
            "change_plan_sha256": findings.change_plan_sha256,
            "gate": findings.gate.to_dict(),
            "method": findings.method,
            "kept_for_sets": findings.n_kept_for_sets,
        },
    }


def _verdict(made: Fitted, findings: Findings) -> Verdict:
    """What labels say of the network's own φ: those that judged, or where these judged a constant those of the fit."""
    adaptation = made.report.get("adaptation")
    if adaptation is not None and adaptation["constant"] is not None:
        return adaptation["verdict"]
    return verdict_of(findings.candidate["skill_D"].to_dict())


def _write(job: RunningJob, material: Material, made: Fitted, findings: Findings) -> JobResult:
    """Write the candidate once: the same network, the new calibration and card, the parent named.

    Returns:
        The report, with the candidate's identifier.
    """
    parent = material.parent
    kept = (HEAD_FILE, DISTANCE_FILE, FAMILIARITY_FILE, INDEX_FILE)
    names = ["network.onnx", *[name for name in kept if name in parent.card["files"]]]
    card = _card(parent, material.parent_id, made, findings)
    folders, release_id = job.context.folders, new_id()
    folder = folders.home / "releases" / UNFINISHED.replace("*", str(job.job_id))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        files = {name: (parent.path / name).read_bytes() for name in names}
        candidate = write_release(folder, files, made.calibration, card, readme_text(card))
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
            if made.calibration.concentration is not None and _by_several(material.fitting_labels):
                asked = ReaderFitIn(release=row.id).model_dump(mode="json")
                service.submit(session, job.context, "readers", asked, None)
            return RecalibrationReport(**dict(findings), release=str(row.id)).to_dict()

        return job.batch(_CANDIDATE, add)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _by_several(labels: Sequence[LabelRow]) -> bool:
    """Whether any case has labels of two annotators, who can then be told apart beside the candidate."""
    first: dict[uuid.UUID, str] = {}
    return any(first.setdefault(label.case_id, label.annotator) != label.annotator for label in labels)
