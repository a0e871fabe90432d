"""Cells of a specimen as its release predicts them, and the cells that the rule by specimen value reads twice."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import DerivedKey, InstallationKeys
from app.database.tables import Alias, Case, CasePrediction, PolicyRow, ReadRequest, ReleaseRow, time_of
from app.predictions.service import stored_predictions
from app.triage.assignment import draw_for_planned_reads, twins_of_case
from app.triage.planning import new_request
from app.triage.queries import current_policy
from app.triage.rules import plan_reads
from app.triage.urgency import lock_open_reads, set_due
from ml.distributions.families import PredictiveDistribution, has_concentration
from ml.release.card import CardContents
from ml.specimens.cells import Group, NamedReads, Threshold
from ml.specimens.cells import Specimen as SpecimenOfCells
from ml.specimens.reads import choose_reads
from ml.specimens.shares import SpecimenShares, measure_specimen
from ml.util.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class SpecimenCells:
    """Cells of a specimen with the predictions of one release; an image that came twice counts once."""

    specimen_id: uuid.UUID
    release_id: uuid.UUID
    classes: list[str]
    # class mix (K,) for which the release is calibrated; None if its card has none
    mix: FloatArray | None
    # in their order
    case_ids: list[uuid.UUID]
    prior: PredictiveDistribution
    # cells that this release has not predicted yet, and copies of others
    n_left_out: int

    def measured(
        self, label_counts: IntArray | None = None, n_annotators: int = 0, named: NamedReads | None = None
    ) -> SpecimenOfCells:
        """The specimen as the library takes it, with labels or without."""
        uniform = np.full(len(self.classes), 1 / len(self.classes))
        return SpecimenOfCells(
            key=f"{self.specimen_id} {self.release_id}",
            cells=tuple(map(str, self.case_ids)),
            classes=tuple(self.classes),
            prior=self.prior,
            mix=uniform if self.mix is None else self.mix,
            label_counts=label_counts,
            n_annotators=n_annotators,
            named=named,
            target="panel" if has_concentration(self.prior) else "label",
        )


def cells_of_specimen(session: Session, specimen_id: uuid.UUID) -> SpecimenCells | None:
    """Cells of a specimen that are not erased, by the release that predicts most of them, the champion first."""
    rows = session.execute(
        select(CasePrediction, Case.pixels_sha256)
        .join(Case, Case.id == CasePrediction.case_id)
        .where(Case.specimen_id == specimen_id, Case.erased_at.is_(None))
        .order_by(CasePrediction.case_id)
    ).all()
    if not rows:
        return None
    champion = session.execute(select(Alias.release_id).where(Alias.name == "champion")).scalar_one_or_none()
    counts = Counter(row.CasePrediction.release_id for row in rows)
    release_id = max(counts, key=lambda one: (counts[one], one == champion, one))
    of_release = [row for row in reversed(rows) if row.CasePrediction.release_id == release_id]
    by_image = {row.pixels_sha256: row.CasePrediction for row in of_release}
    kept = sorted(by_image.values(), key=lambda row: row.case_id)
    release = session.get_one(ReleaseRow, release_id)
    classes = [str(info["code"]) for info in release.card["classes"]]
    n_cells = len({row.CasePrediction.case_id for row in rows})
    ids = [row.case_id for row in kept]
    prior = stored_predictions(kept)
    return SpecimenCells(
        specimen_id, release_id, classes, calibration_mix_on(release.card), ids, prior, n_cells - len(ids)
    )


def calibration_mix_on(card: CardContents) -> FloatArray | None:
    """Class mix for which a release is calibrated; by the labels of those cells on a card without it."""
    if mix := card["calibration"].get("class_mix"):
        return np.array(mix)
    by_partition = card["data"]["class_counts"]
    counts = np.array(by_partition.get("calibration", by_partition.get("valid", [])), dtype=float)
    if len(counts) != len(card["classes"]) or not counts.sum():
        return None
    return np.asarray((counts + 0.5 / len(counts)) / (counts.sum() + 0.5))


def reporting_groups(policy: PolicyRow, classes: Sequence[str]) -> list[Group]:
    """Groups that a policy reports, as far as a release has their classes."""
    return [
        Group(
            group["group"],
            tuple(group["classes"]),
            tuple(Threshold(one["at"], one["miss_cost"]) for one in group["thresholds"]),
        )
        for group in policy.reporting_groups or []
        if set(group["classes"]) <= set(classes)
    ]


def differential_groups(policy: PolicyRow, classes: Sequence[str]) -> list[Group]:
    """Groups of a differential: those that a policy reports, and each class of no group alone."""
    groups = reporting_groups(policy, classes)
    taken = {code for group in groups for code in group.classes} | {group.name for group in groups}
    return groups + [Group(code, (code,)) for code in classes if code not in taken]


def sum_values(shares: SpecimenShares, goal: str) -> tuple[FloatArray, FloatArray | None]:
    """Values (n,) of a read of each cell for a goal, and what ranks cells with the same value."""
    share = np.sum([group.read_values for group in shares.groups], axis=0)
    if goal == "share":
        return share, None
    return np.sum([group.decision_values for group in shares.groups], axis=0), share


def plan_specimen(session: Session, keys: InstallationKeys, specimen_id: uuid.UUID) -> list[uuid.UUID]:
    """Choose the cells of a specimen that are read twice, from all its cells so far and from no label.

    The coin of each cell stays as it was tossed, and its probability is the largest of all looks. Returns the cells
    that get a second planned read now.
    """
    policy = current_policy(session)
    cells = cells_of_specimen(session, specimen_id) if policy.rule == "specimen_value" else None
    groups = [] if cells is None else reporting_groups(policy, cells.classes)
    if cells is None or not groups or policy.reads_per_specimen is None:
        return []
    values, ties = sum_values(measure_specimen(cells.measured(), groups), policy.specimen_goal or "decision")
    names = choose_reads(values, policy.reads_per_specimen, tuple(map(str, cells.case_ids)), ties)
    chosen = [uuid.UUID(name) for name in names]
    lock_open_reads(session, Case.id.in_(chosen))  # requests are locked before their cases
    locked = select(Case).where(Case.id.in_(chosen), Case.erased_at.is_(None)).order_by(Case.id).with_for_update()
    raised = [
        case
        for case in session.execute(locked.execution_options(populate_existing=True)).scalars()
        if case.pi < 1 and not case.twin_selected
    ]
    second = [case for case in raised if plan_reads(case.u, False, case.pi).arm is None]
    for case in raised:
        case.pi = 1.0
    for case in second:
        _add_second_read(session, keys.draws, case, policy, cells.release_id)
    if raised:
        events.record_event(
            session,
            keys.audit,
            actor="service",
            action="specimen.plan",
            object_id=specimen_id,
            details={
                "policy_version": policy.version,
                "release": str(cells.release_id),
                "n_cells": len(second),
                "cells": [str(case.id) for case in raised],
            },
            cases=[case.id for case in raised],
        )
    return [case.id for case in second]


def _add_second_read(session: Session, draws: DerivedKey, case: Case, policy: PolicyRow, release_id: uuid.UUID) -> None:
    of_case = select(ReadRequest.ordinal, ReadRequest.due_at).where(ReadRequest.case_id == case.id)
    reads = session.execute(of_case.order_by(ReadRequest.ordinal)).all()
    ordinal = reads[-1].ordinal + 1 if reads else 1
    request = new_request(case, policy, release_id, "triage", ordinal, time_of(session))
    if reads:  # due together: a later date would tell that a read came later
        set_due(request, reads[0].due_at)
    twins = twins_of_case(session, case.id)
    drawn = draw_for_planned_reads(session, draws, case, [request], twins) if policy.draw_readers else []
    session.add(request)
    session.flush()  # a draw refers to its request
    session.add_all(drawn)
    case.waiting = True
