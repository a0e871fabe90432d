"""Calibrates the champion's answer sets in the worker: at once without thresholds, then once a day."""

import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import exists, select, update
from sqlalchemy.orm import Session, aliased

from app.audit.chain import events
from app.audit.chain.keys import DerivedKey
from app.context import ServiceContext
from app.database.engine import insert_if_absent
from app.database.tables import AnswerSets, Case, CasePrediction, CountedLabel, ReleaseRow, time_of
from app.database.tables.values import Partition
from app.http.models import AnswersOf, MetricOut
from app.metrics.cohort import cluster_name, is_kept_for_sets
from app.metrics.queries import LabelRow, blind_labels, label_rows
from app.predictions.service import PublishedSets, SetQualityOut, SiteThresholds, stored_predictions
from app.releases.service import class_codes, existing_release, get_champion_alias
from ml.conformal import answer_scores, answer_sets, calibrate, judge_sets, patient_masses
from ml.distributions.families import has_concentration
from ml.util.arrays import FloatArray, IntArray
from secondread import __version__


@dataclass(frozen=True)
class AnsweredCells:
    """N cells with labels that a release has predicted, has not been trained on, and does not find unlike its own."""

    # (N,) number of the cluster
    patients: IntArray
    # (N,) names, empty where not recorded
    sites: npt.NDArray[np.str_]
    # (N,) probability of a second planned read
    pi: FloatArray
    # (N, K) class probabilities
    prior: FloatArray
    # (N, K) those after the answer to the first planned read; the prior without one
    after: FloatArray
    # (N,) class that answers the first planned read, −1 without an answer by an own annotator
    first: IntArray
    # (N,) the same of the second
    second: IntArray
    # (M, 2) cell and class of each label of an outside system
    outside: IntArray

    def answers(self, answers_of: AnswersOf) -> tuple[IntArray, IntArray, FloatArray]:
        """Cell, class and share (M,) of each answer: one per cell, or all labels of an outside system alike."""
        if answers_of == "annotators":
            rows = np.flatnonzero(self.first >= 0)
            return rows, self.first[rows], np.ones(rows.size)
        rows, classes = self.outside[:, 0], self.outside[:, 1]
        return rows, classes, 1.0 / np.bincount(rows, minlength=len(self.pi))[rows]


def read_cells(
    session: Session, release_id: uuid.UUID, classes: list[str], partition: Partition, key: DerivedKey
) -> AnsweredCells:
    """Cells of a partition; of the calibration partition those whose patients no fit has seen."""
    rows, clusters = [], []
    for row in session.execute(_cell_predictions_query(release_id, partition)):
        cluster = cluster_name(row.id, row.patient, row.first_id, row.first_patient)
        if partition == "evaluation" or is_kept_for_sets(key, cluster):
            rows.append(row)
            clusters.append(cluster)
    first, second, outside = _read_answers(session, [row.id for row in rows], classes)
    prior, after = _prior_and_posterior(rows, first, len(classes))
    return AnsweredCells(
        patients=np.unique(np.array(clusters, dtype=np.str_), return_inverse=True)[1].astype(np.int64).ravel(),
        sites=np.array([row.site or "" for row in rows], dtype=np.str_),
        pi=np.array([row.pi for row in rows], dtype=np.float64),
        prior=prior,
        after=after,
        first=first,
        second=second,
        outside=outside,
    )


def _cell_predictions_query(release_id: uuid.UUID, partition: Partition) -> Any:
    first = aliased(Case)
    return (
        select(
            Case.id,
            Case.patient,
            Case.site,
            Case.pi,
            first.id.label("first_id"),
            first.patient.label("first_patient"),
            CasePrediction.class_probs,
            CasePrediction.log_concentration,
            CasePrediction.disagreement_prob,
            CasePrediction.members,
        )
        .join(CasePrediction, CasePrediction.case_id == Case.id)
        .outerjoin(first, first.id == Case.same_image_as)
        .where(
            CasePrediction.release_id == release_id,
            CasePrediction.trained_on.is_(None),
            CasePrediction.out_of_distribution.is_not(True),
            Case.partition == partition,
            # without a name it may have been in a fit
            Case.erased_at.is_(None),
            Case.pi > 0,
            exists().where(CountedLabel.case_id == Case.id, CountedLabel.blind.is_(True)),
        )
        .order_by(Case.id)
    )


def _read_answers(session: Session, ids: list[uuid.UUID], classes: list[str]) -> tuple[IntArray, IntArray, IntArray]:
    """Answers (N,) to the first and to the second planned read, and cell and class of outside labels (M, 2)."""
    row_of, column = {case_id: row for row, case_id in enumerate(ids)}, {code: k for k, code in enumerate(classes)}
    planned = {ordinal: np.full(len(ids), -1, dtype=np.int64) for ordinal in (1, 2)}
    outside: list[tuple[int, int]] = []
    by_case: dict[uuid.UUID, list[LabelRow]] = defaultdict(list)
    for label in label_rows(session, blind_labels(), ids):
        by_case[label.case_id].append(label)
    for case_id, labels in by_case.items():
        for label in labels:
            k = column.get(label.class_code)
            if k is not None and label.outside:
                outside.append((row_of[case_id], k))
            elif k is not None and label.ordinal in planned:
                planned[label.ordinal][row_of[case_id]] = k
    return planned[1], planned[2], np.array(outside, dtype=np.int64).reshape(-1, 2)


def _prior_and_posterior(rows: list[Any], first: IntArray, n_classes: int) -> tuple[FloatArray, FloatArray]:
    if not rows:
        return np.zeros((0, n_classes)), np.zeros((0, n_classes))
    distribution = stored_predictions(rows)
    prior = distribution.class_probs
    counts = np.zeros(prior.shape, dtype=np.int64)
    read = np.flatnonzero(first >= 0)
    counts[read, first[read]] = 1
    return prior, distribution.posterior(counts).class_probs if has_concentration(distribution) else prior


#: Patients of a site from which on it has thresholds of its own, and cells from which on a group is reported.
ENOUGH = 100
_OUTSIDE = "nobody but outside systems has answered: sets are for annotators like theirs, and cells as they select them"
_UNKNOWN = "which cells the release was trained on is unknown; cells among them would make sets too small"


def publish_answer_sets(context: ServiceContext) -> None:
    """Compute and store the champion's thresholds, if they are due."""
    with context.database.read_moment() as session:
        alias = get_champion_alias(session)
        if alias is None:
            return
        basis = f"{__version__} {events.last_change(session)}"
        stored = session.get(AnswerSets, alias.release_id)
        if stored is not None and not _is_calibration_due(stored, basis, context.clock()):
            return
        release = existing_release(session, alias.release_id)
        document = calibrate_release_sets(session, context, release)
    with context.database.write() as session:
        _store_thresholds(session, release.id, document, basis)


def _is_calibration_due(known: AnswerSets, basis: str, at: datetime) -> bool:
    """Whether thresholds are due: changed data, and a new day or no threshold yet."""
    missing = not any(part["steps"] for part in known.document["prior"])
    return known.basis != basis and (missing or known.computed_at.date() < at.date())


def _store_thresholds(session: Session, release_id: uuid.UUID, document: PublishedSets, basis: str) -> None:
    values = {"document": document.model_dump(mode="json"), "computed_at": time_of(session), "basis": basis}
    insert_if_absent(session, AnswerSets, {"release_id": release_id} | values)
    session.execute(
        update(AnswerSets)
        .where(AnswerSets.release_id == release_id)
        .values(values)
        .execution_options(synchronize_session=False)
    )


def calibrate_release_sets(session: Session, context: ServiceContext, release: ReleaseRow) -> PublishedSets:
    """Thresholds of a release from the patients who are kept for them, judged on the evaluation partition."""
    classes, key = class_codes(release), context.keys.sets
    kept = read_cells(session, release.id, classes, "calibration", key)
    answers_of: AnswersOf = "annotators" if (kept.first >= 0).any() or not len(kept.outside) else "outside"
    notes = [_OUTSIDE] if answers_of == "outside" else []
    notes += [_UNKNOWN] if "training" not in release.card else []
    published = PublishedSets(
        answers_of=answers_of,
        notes=notes,
        prior=_prior_thresholds(kept, answers_of),
        after_label=_after_label_thresholds(kept),
    )
    if not any(part.steps for part in published.prior):  # asked again as soon as anything changes
        return published
    judging = read_cells(session, release.id, classes, "evaluation", key)
    return published.model_copy(update={"quality": list(_judge_published_sets(published, judging, classes))})


def _split_rows_by_site(
    scores: FloatArray, patients: IntArray, sites: npt.NDArray[np.str_], usable: npt.NDArray[np.bool_]
) -> Iterator[tuple[str | None, npt.NDArray[np.intp]]]:
    rest = np.ones(scores.size, dtype=bool)
    for site in np.unique(sites[usable]).tolist():
        rows = np.flatnonzero(sites == site)
        if site and np.unique(patients[rows[usable[rows]]]).size >= ENOUGH:
            rest[rows] = False
            yield site, rows
    yield None, np.flatnonzero(rest)


def _prior_thresholds(cells: AnsweredCells, answers_of: AnswersOf) -> list[SiteThresholds]:
    rows, answers, share = cells.answers(answers_of)
    scores, patients = answer_scores(cells.prior[rows], answers), cells.patients[rows]
    thresholds = []
    for site, some in _split_rows_by_site(scores, patients, cells.sites[rows], np.ones(rows.size, dtype=bool)):
        masses = _answer_masses(patients[some], rows[some], share[some])
        fitted = calibrate(scores[some], masses, patients[some], least_mass=1.0)
        n_cells = np.unique(rows[some]).size
        steps = list(fitted.steps[:1])  # everybody is asked about every cell: no other mass is asked for
        thresholds.append(SiteThresholds(site=site, n_patients=fitted.n_patients, n_cells=n_cells, steps=steps))
    return thresholds


def _answer_masses(patients: IntArray, cells: IntArray, share: FloatArray) -> FloatArray:
    first = np.unique(cells, return_index=True)[1]
    n_cells = np.bincount(patients[first], minlength=int(patients.max(initial=0)) + 1)
    return np.asarray(share / n_cells[patients])


def _after_label_thresholds(cells: AnsweredCells) -> list[SiteThresholds]:
    read = np.flatnonzero(cells.first >= 0)
    has_second, patients = cells.second[read] >= 0, cells.patients[read]
    scores = answer_scores(cells.after[read], np.where(has_second, cells.second[read], 0))
    thresholds = []
    for site, some in _split_rows_by_site(scores, patients, cells.sites[read], has_second):
        masses = patient_masses(patients[some], has_second[some], cells.pi[read][some])
        fitted = calibrate(scores[some], masses, patients[some])
        counts = {"n_patients": fitted.n_patients, "n_cells": fitted.n_cells}
        thresholds.append(SiteThresholds(site=site, steps=list(fitted.steps), **counts))
    return thresholds


def _judge_published_sets(
    published: PublishedSets, cells: AnsweredCells, classes: list[str]
) -> Iterator[SetQualityOut]:
    rows, answers, share = cells.answers(published.answers_of)
    masses = _answer_masses(cells.patients[rows], rows, share)
    prior = _JudgedAnswers(0, cells, rows, answers, masses, np.ones(rows.size))
    read = np.flatnonzero(cells.first >= 0)
    has_second, patients = cells.second[read] >= 0, cells.patients[read]
    masses = patient_masses(patients, has_second, cells.pi[read])
    totals = np.bincount(patients, weights=masses, minlength=int(patients.max(initial=0)) + 1).astype(np.float64)
    own = totals[patients]
    twice = np.flatnonzero(has_second)
    after = _JudgedAnswers(1, cells, read[twice], cells.second[read[twice]], masses[twice], own[twice])
    for judged in (prior, after):
        yield from judged.quality(published, classes)


class _JudgedAnswers:
    """Answers that judge sets of one kind."""

    def __init__(
        self, labels: int, cells: AnsweredCells, rows: IntArray, answers: IntArray, masses: FloatArray, own: FloatArray
    ) -> None:
        self._labels, self._answers, self._masses, self._own = labels, answers, masses, own
        self._probs = (cells.after if labels else cells.prior)[rows]
        self._patients, self._sites, self._rows = cells.patients[rows], cells.sites[rows], rows

    def quality(self, published: PublishedSets, classes: list[str]) -> Iterator[SetQualityOut]:
        """Judge the sets overall, by site and by class of the answer; nothing without a set."""
        limits = np.full(self._answers.size, np.nan)
        for row, (site, own) in enumerate(zip(self._sites.tolist(), self._own.tolist(), strict=True)):
            part = published.thresholds_of(self._labels, site or None)
            limit = None if part is None else part.at(own)
            limits[row] = np.nan if limit is None else limit
        if np.isnan(limits).all():
            return
        sets = answer_sets(self._probs, np.where(np.isnan(limits), 0.0, limits))
        groups: list[tuple[str, str, npt.NDArray[np.bool_]]] = [("all", "", np.ones(limits.size, dtype=bool))]
        groups += [("site", site, self._sites == site) for site in np.unique(self._sites).tolist() if site]
        groups += [("class", code, self._answers == k) for k, code in enumerate(classes)]
        for by, group, chosen in groups:
            if by != "all" and np.unique(self._rows[chosen]).size < ENOUGH:
                continue
            with_set = chosen & ~np.isnan(limits)
            set_quality = judge_sets(
                sets[with_set], self._answers[with_set], self._masses[with_set], self._patients[with_set]
            )
            yield SetQualityOut.model_validate(
                {
                    "labels": self._labels,
                    "by": by,
                    "group": group,
                    "n_patients": np.unique(self._patients[with_set]).size,
                    "n_cells": np.unique(self._rows[with_set]).size,
                    "n_without": np.unique(self._rows[chosen & np.isnan(limits)]).size,
                    "coverage": MetricOut.of(set_quality.coverage),
                    "mean_size": MetricOut.of(set_quality.mean_size),
                    "single": MetricOut.of(set_quality.single),
                }
            )
