"""The laboratory of the demo: simulated cells of new patients, stored and labelled by the real pipeline.

The release was trained on one crowd of annotators; those of this laboratory disagree more, so that their labels have
something to teach it. A filling that was interrupted goes on where it stopped.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from uuid import UUID

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sqlalchemy import select

from app.cases.preparing import NewCase, partition_of, prepare_case, store_case
from app.cases.schemas import CaseIn
from app.context import Context
from app.operations.demo import ROBOT, Say
from app.platform.principal import Principal
from app.reads.schemas import LabelIn
from app.reads.service import submit_label
from app.releases.queries import champion
from app.tables import Account, Case
from app.triage.queries import current_policy
from app.triage.schemas import PolicyIn
from app.triage.service import add_policy
from ml.arrays import FloatArray
from ml.datasets.annotators import AnnotatorPool
from ml.datasets.cells import cell_name, patient_name, simulate_cell
from ml.datasets.cells_morphology import CLASSES
from ml.images.preprocess import encode_png

#: Annotators of the laboratory, known to an outside system by name.
ANNOTATORS = tuple(f"reader {letter}" for letter in "ABCDE")
#: They tell similar cells apart worse than those on whose labels the release was trained: to this power they raise the
#: label distribution; what they make of one cell varies about that, as a Dirichlet distribution of this concentration.
SHARPNESS, CONCENTRATION = 0.55, 10.0
PICTURE_PX = 160
# cells stored in one transaction, short enough for others to write in between
_BATCH = 8
# every 17th simulated cell: no two are of one patient
_STEP = 17
_STUDY = "an earlier study: whatever is undecided stays so"
_SHOWN = "the demo shows what a label does"


@dataclass(frozen=True)
class Extent:
    """How much the laboratory has done.

    Attributes:
        studied: cells that four annotators have read each.
        recent: cells that three have read each; where they differ too much an adjudication is asked for.
        waiting: cells that nobody has read.
        seed: of cells and labels; the training cells are those of seed 0.
    """

    studied: int = 440
    recent: int = 20
    waiting: int = 20
    seed: int = 2021

    def __len__(self) -> int:
        return self.studied + self.recent + self.waiting


@dataclass(frozen=True)
class _Planned:
    """A cell to be stored: its number among the simulated ones, and how many annotators have read it."""

    number: int
    n_labels: int


def ensure_cases(context: Context, say: Say, extent: Extent | None = None) -> None:
    """Store the cells of the demo's laboratory with their labels, unless there are other cases.

    Args:
        context: parts of the service.
        say: where to report what is being done.
        extent: how many cells; those of the demo where left out.
    """
    extent = extent or Extent()
    unfinished = context.settings.home / "demo" / "unfinished"
    with context.database.read() as session:
        if not unfinished.exists() and session.execute(select(Case.id).limit(1)).first() is not None:
            return
        served = context.inference.served(champion(session)).predictor.release.classes
    if set(served) != {info.code for info in CLASSES}:
        return  # another release is served here: its cases come from its lab
    _fill(context, say, extent, unfinished)


def _fill(context: Context, say: Say, extent: Extent, unfinished: Path) -> None:
    """Store what is missing; the file stays as long as something is.

    Raises:
        KeyboardInterrupt: somebody pressed Ctrl-C; what is stored stays.
    """
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    unfinished.touch()
    say(f"demo: storing {len(extent)} cells and what {len(ANNOTATORS)} annotators said of them")
    laboratory = _Laboratory(context, extent)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("cells", total=len(extent))
            for n_stored in laboratory.fill():
                bar.update(task, completed=n_stored)
    except KeyboardInterrupt:
        say("demo: interrupted; `secondread demo` goes on where it stopped")
        raise
    unfinished.unlink()


class _Laboratory:
    """Stores cells and labels as an outside system would, with its account.

    Args:
        context: parts of the service.
        extent: how many.
    """

    def __init__(self, context: Context, extent: Extent) -> None:
        self.context, self.extent = context, extent
        with context.database.read() as session:
            accounts = {name: account for name, account in session.execute(select(Account.name, Account))}
        robot, lead = accounts[ROBOT], accounts["admin"]
        self.robot = Principal(robot.id, robot.name, robot.role, frozenset({"cases:write", "labels:write"}))
        self.lead = Principal(lead.id, lead.name, lead.role, frozenset({"manage"}))

    def fill(self) -> Iterator[int]:
        """Store what is missing; gives the number of cells that are there, again and again."""
        extent, numbers = self.extent, self._numbers()
        studied = [_Planned(number, 4) for number in islice(numbers, extent.studied)]
        others = [_Planned(number, 3) for number in islice(numbers, extent.recent)]
        others += [_Planned(number, 0) for number in islice(self._to_be_fitted(numbers), extent.waiting)]
        self._change_policy(None, PolicyIn(threshold=0, adjudicate_below=None, repeat_rate=0, reason=_STUDY))
        yield from self._store(studied, 0)
        self._change_policy(_STUDY, PolicyIn(threshold=0, repeat_rate=0, reason=_SHOWN))
        yield from self._store(others, len(studied))

    @staticmethod
    def _numbers() -> Iterator[int]:
        return count(0, _STEP)

    def _to_be_fitted(self, numbers: Iterator[int]) -> Iterator[int]:
        """Cells of patients whose labels are fitted, not judged by.

        Labels of outside systems judge only where there are no others: whoever reads a cell of the demo and then
        recalibrates would have that one cell to judge by.
        """
        key = self.context.keys.partition
        return (n for n in numbers if partition_of(key, patient_name(n), cell_name(n)) == "calibration")

    def _change_policy(self, before: str | None, policy: PolicyIn) -> None:
        """Change the policy where the present one has a certain reason, or is the first one.

        A service shows a case to its annotators once it is closed; the demo shows at once what a label did.
        """
        with self.context.database.write() as session:
            present = current_policy(session)
            if present.version == 1 if before is None else present.reason == before:
                shown = policy.model_copy(update={"threshold": present.threshold, "reveal": "after_commit"})
                add_policy(session, self.context.keys.audit, self.lead, shown)

    def _store(self, cells: Sequence[_Planned], n_before: int) -> Iterator[int]:
        """Store the cells that are missing, with their labels, a few in one transaction."""
        with self.context.database.read() as session:
            known = set(session.execute(select(Case.external_id)).scalars())
        missing = [cell for cell in cells if cell_name(cell.number) not in known]
        n_stored = n_before + len(cells) - len(missing)
        with ThreadPoolExecutor(2) as pool:
            for start in range(0, len(missing), _BATCH):
                yield n_stored + start
                self._store_together(list(pool.map(self._prepared, missing[start : start + _BATCH])))
        yield n_before + len(cells)

    def _prepared(self, cell: _Planned) -> tuple[NewCase, list[LabelIn]]:
        """A cell ready to be stored, and its labels; the same whenever it is made."""
        simulated = simulate_cell(cell.number, seed=self.extent.seed, size=PICTURE_PX)
        fields = CaseIn(external_id=simulated.case_id, patient=simulated.patient, site="demo", metadata={})
        new = prepare_case(self.context, fields, encode_png(Image.fromarray(simulated.pixels)))
        rng = np.random.default_rng([self.extent.seed, cell.number])
        opinion = opinion_of(simulated.true_probs, rng)
        people, labels = AnnotatorPool(len(ANNOTATORS)).read(opinion[None], cell.n_labels, rng)
        return new, [
            LabelIn(label=CLASSES[k].code, annotator=ANNOTATORS[person], blind=True)
            for person, k in zip(people[0], labels[0], strict=True)
        ]

    def _store_together(self, cells: list[tuple[NewCase, list[LabelIn]]]) -> None:
        with self.context.database.write() as session:
            for new, labels in cells:
                status, case = store_case(session, self.context, self.robot, new)
                for label in labels if status == 201 else []:  # another filling was faster, with the labels
                    submit_label(session, self.context, self.robot, UUID(case.id), label)


def opinion_of(true_probs: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Label distribution (K,) of the laboratory's annotators for a cell.

    Args:
        true_probs: (K,) of the annotators behind the release.
        rng: source of chance: how far they differ on one cell is not seen in its image alone.
    """
    blurred = true_probs**SHARPNESS
    return rng.dirichlet(CONCENTRATION * blurred / blurred.sum())
