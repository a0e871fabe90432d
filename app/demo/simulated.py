"""Simulated demo: cells of new patients, stored and labelled through the real pipeline.

The release was trained on one crowd of annotators; those of this laboratory disagree more, so that their labels have
something to teach it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from PIL import Image

from app.cases.service import CaseIn, partition_of
from app.context import ServiceContext
from app.demo.laboratory import DemoLaboratory, Upload, can_fill_demo, fill_laboratory
from app.demo.people import Say
from app.labels.service import LabelIn
from app.releases.service import get_champion_alias
from app.triage.service import PolicyIn
from ml.datasets.annotators import AnnotatorPool
from ml.datasets.cells import CLASSES, cell_name, patient_name, simulate_cell
from ml.images.preprocess import encode_png
from ml.util.arrays import FloatArray

#: Classes of the release that the simulated demo trains.
CODES = {info.code for info in CLASSES}
#: Annotators of the laboratory, known to an outside system by name.
ANNOTATORS = tuple(f"reader {letter}" for letter in "ABCDE")
#: They tell similar cells apart worse than those on whose labels the release was trained: to this power they raise the
#: label distribution; what they make of one cell varies about that, as a Dirichlet distribution of this concentration.
SHARPNESS, CONCENTRATION = 0.55, 10.0
PICTURE_PX = 160
# every 17th simulated cell: no two are of one patient
_STEP = 17
_STUDY = "an earlier study: whatever is undecided stays so"
_TRIAGE = "second reads where two annotators are likely to differ, as a laboratory would ask for them"


@dataclass(frozen=True)
class DemoExtent:
    """Size of the simulated laboratory."""

    # cells that four annotators have read each; of two fifths the labels are fitted, since a fifth of the calibration
    # half is kept for answer sets
    studied: int = 550
    # cells that three have read each; where they differ too much an adjudication is asked for
    recent: int = 20
    # cells that nobody has read
    waiting: int = 20
    # of cells and labels; the training cells are those of seed 0
    seed: int = 2021

    def __len__(self) -> int:
        return self.studied + self.recent + self.waiting


@dataclass(frozen=True)
class _PlannedSimulation:
    """A cell to be stored: its number among the simulated ones, and how many annotators have read it."""

    number: int
    n_labels: int


def ensure_simulated_cases(context: ServiceContext, say: Say, extent: DemoExtent | None = None) -> None:
    """Store the cells of the demo's laboratory with their labels, unless there are other cases."""
    extent = extent or DemoExtent()
    if not can_fill_demo(context):
        return
    with context.database.read() as session:
        served = context.inference.served(get_champion_alias(session)).predictor.release.classes
    if set(served) != CODES:
        return  # another release is served here: its cases come from its lab
    say(f"demo: storing {len(extent)} cells and what {len(ANNOTATORS)} annotators said of them")
    fill_laboratory(context, say, len(extent), lambda laboratory: _store_simulated_cells(laboratory, extent), {})


def _store_simulated_cells(laboratory: DemoLaboratory, extent: DemoExtent) -> Iterator[int]:
    """Store the missing cells; yield the number of stored cells."""
    numbers = count(0, _STEP)
    studied = [_PlannedSimulation(number, 4) for number in islice(numbers, extent.studied)]
    others = [_PlannedSimulation(number, 3) for number in islice(numbers, extent.recent)]
    # Labels of outside systems judge only where there are no others: whoever reads a cell of the demo and then
    # recalibrates would have that one cell to judge by.
    waiting = (
        n
        for n in numbers
        if partition_of(laboratory.context.keys.partition, patient_name(n), cell_name(n)) == "calibration"
    )
    others += [_PlannedSimulation(number, 0) for number in islice(waiting, extent.waiting)]

    def made(cell: _PlannedSimulation) -> tuple[Upload, list[LabelIn]]:
        return _simulate_upload(extent.seed, cell)

    threshold = laboratory.threshold()
    laboratory.change_policy(None, PolicyIn(threshold=threshold, adjudicate_below=None, repeat_rate=0, reason=_STUDY))
    yield from laboratory.store(studied, _simulated_cell_name, made, 0)
    laboratory.change_policy(_STUDY, PolicyIn(threshold=threshold, repeat_rate=0, reason=_TRIAGE))
    yield from laboratory.store(others, _simulated_cell_name, made, len(studied))


def _simulated_cell_name(cell: _PlannedSimulation) -> str:
    return cell_name(cell.number)


def _simulate_upload(seed: int, cell: _PlannedSimulation) -> tuple[Upload, list[LabelIn]]:
    """Simulate a cell's upload and its labels; the same at every call."""
    simulated = simulate_cell(cell.number, seed=seed, size=PICTURE_PX)
    fields = CaseIn(external_id=simulated.case_id, patient=simulated.patient, site="demo", metadata={})
    rng = np.random.default_rng([seed, cell.number])
    opinion = opinion_of(simulated.true_probs, rng)
    people, labels = AnnotatorPool(len(ANNOTATORS)).read(opinion[None], cell.n_labels, rng)
    given = [
        LabelIn(label=CLASSES[k].code, annotator=ANNOTATORS[person], blind=True)
        for person, k in zip(people[0], labels[0], strict=True)
    ]
    return (fields, encode_png(Image.fromarray(simulated.pixels))), given


def opinion_of(true_probs: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Label distribution (K,) of the laboratory's annotators for a cell."""
    blurred = true_probs**SHARPNESS
    return rng.dirichlet(CONCENTRATION * blurred / blurred.sum())
