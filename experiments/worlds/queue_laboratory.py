"""A laboratory whose cases go through the service's own plan and queue: who reads which case when is not assumed."""

import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import StaticPool, create_engine, text
from sqlalchemy.orm import Session

from app.audit.chain.keys import DerivedKey
from app.database.tables import (
    Account,
    Annotator,
    BaseTable,
    Case,
    CasePrediction,
    Label,
    PolicyRow,
    Read,
    ReadRequest,
    ReleaseRow,
    utc_now,
)
from app.labels.leases import lease_request
from app.labels.queue import next_request
from app.metrics.cohort import Cohort, CohortQuery, build_cohort, evaluate_cohort
from app.metrics.dataset import EvaluationDataset
from app.metrics.load import load_dataset
from app.triage.planning import ActivePolicy, plan_case
from app.triage.queries import rule_of
from experiments.worlds.laboratory import CLASSES, Laboratory, open_laboratory
from ml.metrics import evaluate
from ml.metrics.selection import quintiles, selection_weights

QUANTITIES = ("L", "EL", "L_D", "CL_D")
AUDIT_RATE, SELECTED, DUE_DAYS = 0.25, 0.2, 7
#: Days of the laboratory; on every seventh there is a second reader, and on one in five three times the cases come.
DAYS, VISIT, BURST = 18, 7, 5


@dataclass(frozen=True)
class Habits:
    """How people read.

    Attributes:
        declines: share of reads that are passed on to somebody else.
        retractions: share of second readers who, shown that they disagreed with the first, take their label back.
    """

    declines: float = 0.03
    retractions: float = 0.0


@dataclass(frozen=True)
class Week:
    """A laboratory on one evening, while second reads are open.

    Attributes:
        lab: its cases, with both labels that annotators would give.
        columns: what the service knows, in the order of the cases of ``lab``.
        at: the time, seconds since 1970.
        retracted: (N,) whether the second label was taken back after the reveal.
    """

    lab: Laboratory
    columns: EvaluationDataset
    at: float
    retracted: "np.typing.NDArray[np.bool_]"

    def complete(self) -> dict[str, float]:
        """What everybody read twice would have given."""
        counts = np.zeros_like(self.columns.label_counts)
        np.add.at(counts, (np.repeat(np.arange(len(counts)), 2), self.lab.labels.ravel()), 1)
        first = np.eye(CLASSES, dtype=np.int64)[self.lab.labels[:, 0]]
        dpe = self.columns.disagreement_probs
        metrics = evaluate(counts, self.columns.class_probs, dpe, first_label_counts=first, cluster=self.lab.cluster)
        return {name: metrics.metrics[name].value for name in QUANTITIES}

    def estimated(self) -> dict[str, float]:
        """What ``GET /v1/metrics`` says."""
        cohort = build_cohort(self.columns, CohortQuery(), self.at)
        return {name: evaluate_cohort(cohort).metrics[name].value for name in QUANTITIES}

    def estimated_by_0_1_0(self) -> dict[str, float]:
        """What version 0.1.0 said: a case is left out while any read is open, and what was taken back is gone."""
        counts = self.columns.label_counts.copy()
        rows = np.flatnonzero(self.retracted)
        counts[rows, self.lab.labels[rows, 1]] -= 1
        closed = np.flatnonzero(self.columns.open_until <= self.at)
        data = replace(self.columns, label_counts=counts).take(closed)
        quintile, selected = quintiles(data.disagreement_probs), data.pi >= 1
        answered = np.minimum(data.n_labels, data.n_planned)
        weights = [selection_weights(k, data.n_planned, answered, data.pi, selected, quintile) for k in (1, 2)]
        cohort = Cohort(data, quintile, *weights, n_open=0, at=0.0, outside_share=0.0)
        metrics = evaluate(
            data.label_counts,
            data.class_probs,
            data.disagreement_probs,
            sample_weight=(cohort.weight, cohort.weight2),
            cluster=data.cluster,
        )
        return {name: metrics.metrics[name].value for name in QUANTITIES}


class SimulatedQueue:
    """Cases come, are planned and are read, in a database of their own.

    Args:
        lab: the cases.
        rng: of identifiers, and of what readers do.
        days: that have passed.
    """

    def __init__(self, lab: Laboratory, rng: np.random.Generator, days: int) -> None:
        self.lab, self.rng = lab, rng
        engine = create_engine("sqlite://", poolclass=StaticPool)
        BaseTable.metadata.create_all(engine)
        self.session = Session(engine)
        self.session.execute(text("CREATE VIEW counted_labels AS SELECT * FROM labels WHERE purpose = 'read'"))
        self.start = utc_now() - timedelta(days=days)
        self.numbers: dict[uuid.UUID, int] = {}

    def open(self, people: list[Account], **policy: Any) -> None:
        """Add people, a release, and a policy by which triage selects ``SELECTED`` of the cases."""
        self.release = ReleaseRow(name="simulated", card_sha256="0" * 64, card={}, gate="not_judged")
        threshold = float(np.quantile(self.lab.prediction.disagreement_probs, 1 - SELECTED))
        usual = {"target_error": 0.01, "max_labels": 2, "lease_seconds": 600, "reason": "simulated"}
        self.policy = PolicyRow(version=1, rule="disagreement", threshold=threshold, **usual, **policy)
        self.session.add_all([*people, self.release, self.policy])
        self.session.flush()
        # by the seed, since each reader's own order follows from their identifier
        self.readers = [
            Annotator(id=uuid.UUID(bytes=self.rng.bytes(16)), name=person.name, account_id=person.id)
            for person in people
        ]
        self.owner = people[0].id
        self.session.add_all(self.readers)
        self.session.flush()

    def store(self, i: int, arrived: datetime, draws: DerivedKey) -> None:
        """Store a case and plan its reads."""
        prediction, digest = self.lab.prediction, f"{i:064x}"
        case = Case(
            id=uuid.UUID(bytes=self.rng.bytes(16)),
            created_at=arrived,
            external_id=f"case {i}",
            patient=f"patient {self.lab.cluster[i]}",
            case_metadata={},
            image_sha256=digest,
            stored_sha256=digest,
            width=1,
            height=1,
            partition="evaluation",
            u=float(self.lab.u[i]),
            pi=0.0,
            created_by=self.owner,
        )
        row = CasePrediction(
            case_id=case.id,
            release_id=self.release.id,
            class_probs=prediction.class_probs[i].tolist(),
            log_concentration=float(prediction.log_concentration[i]),
            disagreement_prob=float(prediction.disagreement_probs[i]),
            out_of_distribution=False,
        )
        in_force = ActivePolicy(self.policy, rule_of(self.policy, self.policy.threshold))
        planned = plan_case(self.session, case, row, in_force, draws)
        for planned_row in planned.rows:
            if isinstance(planned_row, ReadRequest):
                planned_row.due_at = arrived + timedelta(days=self.policy.due_days)
                planned_row.due_on = planned_row.due_at.date().isoformat()
        self.session.add(case)
        self.session.flush()
        self.session.add(row)
        planned.store(self.session)
        self.numbers[case.id] = i

    def lease(
        self, order: DerivedKey, reader: Annotator, at: datetime | None = None
    ) -> tuple[ReadRequest, Read] | None:
        """Lease the next read that the queue gives this reader."""
        taken = next_request(self.session, order, reader.id, at)
        if taken is None:
            return None
        assert isinstance(taken.request, ReadRequest)
        leased = lease_request(self.session, taken.request, reader.id, 1800)
        request = self.session.get_one(ReadRequest, taken.request.id, populate_existing=True)
        request.lease_expires_at = None
        return request, self.session.get_one(Read, leased.id)

    def label(self, request: ReadRequest, reader: Annotator, code: str | None, **chain: object) -> Label:
        """Store a label of the case of a request."""
        columns = {"kind": "label", "position": 0, "post_reveal": False} | chain
        label = Label(
            case_id=request.case_id,
            annotator_id=reader.id,
            class_code=code,
            blind=True,
            round="planned",
            created_by=self.owner,
            **columns,
        )
        self.session.add(label)
        self.session.flush()
        return label

    def load(self) -> EvaluationDataset:
        """What the service knows."""
        self.session.flush()
        self.session.expire_all()
        return load_dataset(self.session, self.release.id, [str(k) for k in range(CLASSES)])


class QueueLaboratory(SimulatedQueue):
    """A daily and a weekly reader.

    Args:
        seed: of everything.
        n: cases.
        habits: of the readers.
    """

    def __init__(self, seed: int, n: int, habits: Habits) -> None:
        super().__init__(_with_bursts(open_laboratory(seed, n), seed), np.random.default_rng([seed, 1]), DAYS)
        self.habits, self.key = habits, DerivedKey(self.rng.bytes(32), b"order")
        self.retracted = np.zeros(n, dtype=bool)
        people = [Account(name=name, role="annotator") for name in ("daily", "weekly")]
        self.open(people, audit_rate=AUDIT_RATE, reveal="after_case_closed", due_days=DUE_DAYS)

    def run(self) -> Week:
        """Everything up to the last evening."""
        for day in range(DAYS):
            for i in np.flatnonzero(self.lab.day == day).tolist():
                self.store(i, self.start + timedelta(days=day), self.key)
            self.session.flush()
            self._read(self.readers[0])
            if day % VISIT == VISIT - 1:
                self._read(self.readers[1])
        columns = self.load()
        order = np.argsort([self.numbers[case_id] for case_id in columns.ids()])
        at = (self.start + timedelta(days=DAYS)).timestamp()
        return Week(self.lab, columns.take(order), at, self.retracted)

    def _read(self, reader: Annotator) -> None:
        """Everything that the queue gives this reader, until it gives nothing more."""
        while (leased := self.lease(self.key, reader)) is not None:
            request, read = leased
            if self.rng.random() < self.habits.declines:
                read.state, read.decline_reason, request.state = "declined", "not_my_field", "open"
            else:
                self._answer(request, read, reader)
            self.session.flush()

    def _answer(self, request: ReadRequest, read: Read, reader: Annotator) -> None:
        i = self.numbers[request.case_id]
        label = self.label(request, reader, str(self.lab.labels[i, request.ordinal - 1]))
        read.state, request.state, request.label_id = "committed", "answered", label.id
        first, second = self.lab.labels[i]
        if request.ordinal == 2 and first != second and self.rng.random() < self.habits.retractions:
            self.retracted[i] = True
            taken_back = {"kind": "retraction", "supersedes_id": label.id, "position": 1, "post_reveal": True}
            self.label(request, reader, None, **taken_back)


def _with_bursts(lab: Laboratory, seed: int) -> Laboratory:
    """Cases come at random days, three times as many on every fifth."""
    share = np.where(np.arange(DAYS) % BURST == BURST - 1, 3.0, 1.0)
    rng = np.random.default_rng([seed, 2])
    return replace(lab, day=rng.choice(DAYS, size=len(lab.u), p=share / share.sum()))


@dataclass(frozen=True)
class Bias:
    """Mean relative error of an estimate against complete labelling, with its Monte-Carlo error."""

    value: float
    error: float


def biases(weeks: list[Week]) -> dict[str, dict[str, Bias]]:
    """Relative bias of each quantity by the estimates of version 0.1.0 and by current ones, paired by laboratory."""
    complete = [week.complete() for week in weeks]
    by_rule = {
        "0.1.0": [week.estimated_by_0_1_0() for week in weeks],
        "now": [week.estimated() for week in weeks],
    }
    return {
        rule: {name: relative_bias([row[name] for row in rows], [row[name] for row in complete]) for name in QUANTITIES}
        for rule, rows in by_rule.items()
    }


def relative_bias(values: list[float], truths: list[float]) -> Bias:
    """Mean difference of estimates from their truths over the mean truth."""
    differences = np.array(values) - np.array(truths)
    scale = float(np.mean(truths))
    return Bias(float(differences.mean()) / scale, float(differences.std(ddof=1) / np.sqrt(len(values))) / scale)
