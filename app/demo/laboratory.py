"""Demo laboratory that stores cells and labels through an outside system's account.

A filling that was interrupted goes on where it stopped: the file ``demo/unfinished`` in HOME says that something is
missing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from sqlalchemy import select

from app.annotators.reference_cells.service import DefinitionIn, choose_reference_cells, update_definition
from app.cases.service import CaseIn, NewCase, prepare_case, store_case
from app.context import ServiceContext
from app.database.advisory_locks import lock_digests
from app.database.tables import Account, Case
from app.demo.people import ROBOT, Say, progress_bar
from app.http.principal import Principal
from app.labels.service import LabelIn, submit_label
from app.triage.service import PolicyIn, add_policy, current_policy

# cells stored in one transaction, short enough for others to write in between
_BATCH = 8

Cell = TypeVar("Cell")
#: A cell's external id, its other fields and its image.
Upload = tuple[CaseIn, bytes]


class DemoLaboratory:
    """Stores cells and labels as an outside system would, with its account."""

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        with context.database.read() as session:
            accounts = {name: account for name, account in session.execute(select(Account.name, Account))}
        robot, lead = accounts[ROBOT], accounts["admin"]
        self.robot = Principal(robot.id, robot.name, robot.role, frozenset({"cases:write", "labels:write"}))
        self.lead = Principal(lead.id, lead.name, lead.role, frozenset({"manage"}))

    def change_policy(self, before: str | None, policy: PolicyIn) -> None:
        """Change the policy where the present one has a certain reason, or is the first one."""
        with self.context.database.write() as session:
            present = current_policy(session)
            if present.version == 1 if before is None else present.reason == before:
                add_policy(session, self.context.keys.audit, self.lead, policy)

    def threshold(self) -> float:
        """Threshold of the policy in force, 0 for one without."""
        with self.context.database.read() as session:
            return current_policy(session).threshold or 0.0

    def store(
        self,
        cells: Sequence[Cell],
        name_of: Callable[[Cell], str],
        made: Callable[[Cell], tuple[Upload, list[LabelIn]]],
        n_before: int,
    ) -> Iterator[int]:
        """Store the cells that are missing, with their labels, a few in one transaction."""
        with self.context.database.read() as session:
            stored_ids = set(session.execute(select(Case.external_id)).scalars())
        missing = [cell for cell in cells if name_of(cell) not in stored_ids]
        n_stored = n_before + len(cells) - len(missing)

        def prepared(cell: Cell) -> tuple[NewCase, list[LabelIn]]:
            (fields, image), labels = made(cell)
            return prepare_case(self.context, fields, image), labels

        with ThreadPoolExecutor(2) as pool:
            for start in range(0, len(missing), _BATCH):
                yield n_stored + start
                self._store_together(list(pool.map(prepared, missing[start : start + _BATCH])))
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


def fill_laboratory(
    context: ServiceContext,
    say: Say,
    n_cells: int,
    steps: Callable[[DemoLaboratory], Iterator[int]],
    definitions: Mapping[str, str],
) -> None:
    """Store the missing cells; keep the marker file until all are stored."""
    unfinished = context.settings.home / "demo" / "unfinished"
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    unfinished.touch()
    try:
        with progress_bar("cells", n_cells) as bar:
            laboratory = DemoLaboratory(context)
            for n_stored in steps(laboratory):
                bar.update(n_stored)
            laboratory.show_references(definitions)
    except KeyboardInterrupt:
        say("demo: interrupted; `secondread demo` goes on where it stopped")
        raise
    unfinished.unlink()
