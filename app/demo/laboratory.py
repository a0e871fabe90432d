"""Demo laboratory that stores cells and labels through an outside system's account."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import select

from app.annotators.reference_cells.service import DefinitionIn, choose_reference_cells, update_definition
from app.cases.service import CaseIn, NewCase, partition_of, prepare_case, store_case
from app.context import ServiceContext
from app.database.advisory_locks import lock_digests
from app.database.tables import Account, Case
from app.demo.people import ROBOT, Say, progress_bar
from app.http.principal import Principal
from app.labels.service import LabelIn, submit_label
from app.triage.service import PolicyIn, ReportingGroupIn, add_policy, current_policy

# cells stored in one transaction, short enough for others to write in between
_BATCH = 8
_TRIAGE = "second reads of cells on which two annotators are likely to differ"


@dataclass(frozen=True)
class PlannedCell:
    """A cell to be stored: its external id, and what gives its fields, its image and its labels."""

    name: str
    build: Callable[[], tuple[CaseIn, bytes, list[LabelIn]]]


@dataclass(frozen=True)
class DemoPlan:
    """Cells of an earlier study, and those that come later, under a policy of triage."""

    # why the policy of the study is as it is
    study: str
    earlier: list[PlannedCell]
    later: list[PlannedCell]
    # of the policy of the study; None for the present one
    threshold: float | None = None
    # what each class is, by code
    definitions: Mapping[str, str] = field(default_factory=dict)
    # of the policy of triage
    groups: tuple[ReportingGroupIn, ...] = ()


def can_wait_for_read(context: ServiceContext, patient: str | None, name: str) -> bool:
    """Whether a demo may leave a cell unread: it is of the half that is fitted."""
    # Labels of outside systems judge only if there are no others: a visitor who reads some cells and recalibrates would
    # have these alone to judge by.
    return partition_of(context.keys.partition, patient, name) == "calibration"


class DemoLaboratory:
    """Stores cells and labels as an outside system would, with its account."""

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        with context.database.read() as session:
            accounts = {name: account for name, account in session.execute(select(Account.name, Account))}
        robot, lead = accounts[ROBOT], accounts["admin"]
        self.robot = Principal(robot.id, robot.name, robot.role, frozenset({"cases:write", "labels:write"}))
        self.lead = Principal(lead.id, lead.name, lead.role, frozenset({"manage"}))

    def fill(self, plan: DemoPlan) -> Iterator[int]:
        """Store the missing cells of a plan, each half under its policy; yield the number of stored cells."""
        with self.context.database.read() as session:
            present = current_policy(session).threshold or 0.0
        during = present if plan.threshold is None else plan.threshold
        self._change_policy(None, PolicyIn(threshold=during, adjudicate_below=None, repeat_rate=0, reason=plan.study))
        yield from self._store(plan.earlier, 0)
        groups = list(plan.groups)
        triage = PolicyIn(threshold=present or 0.2, repeat_rate=0, reporting_groups=groups, reason=_TRIAGE)
        self._change_policy(plan.study, triage)
        yield from self._store(plan.later, len(plan.earlier))

    def _change_policy(self, before: str | None, policy: PolicyIn) -> None:
        with self.context.database.write() as session:
            present = current_policy(session)
            if present.version == 1 if before is None else present.reason == before:
                add_policy(session, self.context.keys.audit, self.lead, policy)

    def _store(self, cells: list[PlannedCell], n_before: int) -> Iterator[int]:
        with self.context.database.read() as session:
            stored_ids = set(session.execute(select(Case.external_id)).scalars())
        missing = [cell for cell in cells if cell.name not in stored_ids]
        n_stored = n_before + len(cells) - len(missing)

        def prepare(cell: PlannedCell) -> tuple[NewCase, list[LabelIn]]:
            fields, image, labels = cell.build()
            return prepare_case(self.context, fields, image), labels

        with ThreadPoolExecutor(2) as pool:
            for start in range(0, len(missing), _BATCH):
                yield n_stored + start
                self._store_together(list(pool.map(prepare, missing[start : start + _BATCH])))
        yield n_before + len(cells)

    def show_references(self, definitions: Mapping[str, str]) -> None:
        """Write what each class is, and choose its reference cells."""
        with self.context.database.write() as session:
            for code, text in definitions.items():
                update_definition(session, self.context, self.lead, code, DefinitionIn(text=text))
            choose_reference_cells(session, self.context, self.lead)

    def _store_together(self, cells: list[tuple[NewCase, list[LabelIn]]]) -> None:
        with self.context.database.write() as session:
            lock_digests(session, [digest for new, _ in cells for digest in new.held()])
            for new, labels in cells:
                status, case = store_case(session, self.context, self.robot, new)
                for label in labels if status == 201 else []:  # another filling was faster, with the labels
                    submit_label(session, self.context, self.robot, UUID(case.id), label)


def can_fill_demo(context: ServiceContext) -> bool:
    """Whether there are no cases yet, or those that are there come from a filling that was interrupted."""
    with context.database.read() as session:
        none_yet = session.execute(select(Case.id).limit(1)).first() is None
    return none_yet or (context.settings.home / "demo" / "unfinished").exists()


def fill_laboratory(context: ServiceContext, say: Say, plan: DemoPlan) -> None:
    """Store the missing cells; keep the marker file until all are stored."""
    unfinished = context.settings.home / "demo" / "unfinished"
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    unfinished.touch()
    try:
        with progress_bar("cells", len(plan.earlier) + len(plan.later)) as bar:
            laboratory = DemoLaboratory(context)
            for n_stored in laboratory.fill(plan):
                bar.update(n_stored)
            laboratory.show_references(plan.definitions)
    except KeyboardInterrupt:
        say("demo: interrupted; `secondread demo` resumes")
        raise
    unfinished.unlink()
