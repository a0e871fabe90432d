"""Simulated demo: cells of new patients, stored and labelled through the real pipeline."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count, islice

import numpy as np
from PIL import Image

from app.cases.service import CaseIn
from app.context import ServiceContext
from app.demo.laboratory import DemoPlan, PlannedCell, can_fill_demo, can_wait_for_read, fill_laboratory
from app.demo.people import Say
from app.labels.service import LabelIn
from app.releases.service import get_champion_alias
from ml.datasets.cells import CLASSES, AnnotatorPool, cell_name, patient_name, simulate_cell
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
_STUDY = "an earlier study without adjudication"


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


def ensure_simulated_cases(context: ServiceContext, say: Say, extent: DemoExtent | None = None) -> None:
    """Store the cells of the demo's laboratory with their labels, unless there are other cases."""
    extent = extent or DemoExtent()
    if not can_fill_demo(context):
        return
    with context.database.read() as session:
        served = context.inference.served(get_champion_alias(session)).predictor.release.classes
    if set(served) != CODES:
        return  # another release is served here: its cases come from its lab
    say(f"demo: storing {len(extent)} cells and the labels of {len(ANNOTATORS)} annotators")
    fill_laboratory(context, say, _plan_simulated_cells(context, extent))


def _plan_simulated_cells(context: ServiceContext, extent: DemoExtent) -> DemoPlan:
    numbers = count(0, _STEP)

    def plan(n_labels: int, chosen: Iterable[int]) -> list[PlannedCell]:
        return [
            PlannedCell(cell_name(number), partial(_simulate_upload, extent.seed, number, n_labels))
            for number in chosen
        ]

    studied, recent = plan(4, islice(numbers, extent.studied)), plan(3, islice(numbers, extent.recent))
    unread = (number for number in numbers if can_wait_for_read(context, patient_name(number), cell_name(number)))
    return DemoPlan(_STUDY, studied, [*recent, *plan(0, islice(unread, extent.waiting))])


def _simulate_upload(seed: int, number: int, n_labels: int) -> tuple[CaseIn, bytes, list[LabelIn]]:
    simulated = simulate_cell(number, seed=seed, size=PICTURE_PX)
    fields = CaseIn(external_id=simulated.case_id, patient=simulated.patient, site="demo", metadata={})
    rng = np.random.default_rng([seed, number])
    opinion = opinion_of(simulated.true_probs, rng)
    people, labels = AnnotatorPool(len(ANNOTATORS)).read(opinion[None], n_labels, rng)
    named_labels = [
        LabelIn(label=CLASSES[k].code, annotator=ANNOTATORS[person], blind=True)
        for person, k in zip(people[0], labels[0], strict=True)
    ]
    return fields, encode_png(Image.fromarray(simulated.pixels)), named_labels


def opinion_of(true_probs: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Label distribution (K,) of the laboratory's annotators for a cell."""
    blurred = true_probs**SHARPNESS
    return rng.dirichlet(CONCENTRATION * blurred / blurred.sum())
