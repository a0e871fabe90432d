"""Calibrates the champion's answer sets in the worker: at once without thresholds, then once a day.

Thresholds that moved with each label would tell, through the sets of other cases, what was just answered.
"""

import uuid
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import version

import numpy as np
import numpy.typing as npt
from sqlalchemy import update
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.context import ServiceContext
from app.database.engine import insert_if_absent
from app.database.tables import AnswerSets, ReleaseRow, time_of
from app.http.models import AnswersOf, MetricOut
from app.metrics.prediction_set_data import AnsweredCells, read_cells
from app.predictions.service import PublishedSets, SetQualityOut, SiteThresholds
from app.releases.service import class_codes, existing_release, get_champion_alias
from ml.conformal import answer_scores, answer_sets, calibrate, judge_sets, patient_masses
from ml.util.arrays import FloatArray, IntArray

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
        basis = f"{version('secondread')} {events.last_change(session)}"
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
    """Rows of each site with enough patients, and those of all others."""
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
    """Mass (M,) of each answer: that of its cell, shared between the cell's answers."""
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
    """Judge published sets on all cells, and on each site and class with enough cells."""
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
