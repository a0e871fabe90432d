"""Demo on real cells: 200 blood cells that two annotators labelled, and a release trained on others."""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from app.cases.service import CaseIn
from app.context import ServiceContext
from app.demo.laboratory import DemoPlan, PlannedCell, can_fill_demo, can_wait_for_read, fill_laboratory
from app.demo.people import Say
from app.labels.service import LabelIn
from app.releases.service import add_release, get_champion_alias
from app.triage.service import ReportingGroupIn, ShareThresholdIn
from ml.release.artifact import read_release

#: Images, labels, licences and release of the demo.
FOLDER = Path(__file__).parent / "cells"
RELEASE = FOLDER / "release"
#: Names of the two annotators of the source.
ANNOTATORS = ("WBCAtt annotator 1", "WBCAtt annotator 2")
SITE = "Hospital Clinic of Barcelona"
#: Cells of the calibration half that wait for a first read, and for a second one after the first annotator's.
UNREAD, READ_ONCE = 14, 8
#: Further cells that both have read, where an adjudication is asked for if they leave it open.
RECENT = 30
_OWN_WORDS = "These are the demo's words, not those of the study from which the labels come."
_DEFINITIONS = {
    code: f"{text} {_OWN_WORDS}"
    for code, text in {
        "unsegmented-band": "The nucleus is one piece: a curved band of nearly the same width along its length, like a "
        "C, an S or a horseshoe.",
        "unsegmented-round": "The nucleus is one piece, round or oval, with an even outline.",
        "unsegmented-indented": "The nucleus is one piece with a dent on one side, like a kidney or a bean.",
        "segmented-bilobed": "The nucleus has two lobes, joined by a thin bridge.",
        "segmented-multilobed": "The nucleus has three lobes or more, joined by thin bridges.",
        "irregular": "The nucleus has none of these shapes: it is folded, knobbly or of an uneven outline.",
    }.items()
}
#: Reporting group of the demo, with its threshold.
GROUP = ReportingGroupIn(
    group="segmented",
    classes=["segmented-bilobed", "segmented-multilobed"],
    thresholds=[ShareThresholdIn(at=0.2)],
)
# of each specimen, cells that both annotators, one or neither call segmented: 5 %, 20 % and 40 % of the labels
_SPECIMENS = {"S-1": (3, 0, 57), "S-2": (8, 8, 44), "S-3": (24, 0, 36)}
_ORDER_SEED = 2026
_STUDY = "an earlier study: both annotators read every cell, without adjudication"


@dataclass(frozen=True)
class RealCell:
    """A cell of the demo."""

    # name of its image
    file: str
    # as the source of the images says, for whoever may see more than the image
    cell_type: str
    # nucleus shape by the first and by the second annotator
    labels: tuple[str, str]
    # external id of the specimen that it was put in; None for the cells that are left
    specimen: str | None = None

    @property
    def name(self) -> str:
        """The cell's external id."""
        return Path(self.file).stem


def real_cells() -> list[RealCell]:
    """The cells that are shipped, in an order that says nothing about them."""
    with (FOLDER / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [RealCell(row["file"], row["cell_type"], (row["annotator_1"], row["annotator_2"])) for row in rows]
    random.Random(_ORDER_SEED).shuffle(cells)  # noqa: S311 - an order, no secret
    return _assemble_specimens(cells)


def _assemble_specimens(cells: list[RealCell]) -> list[RealCell]:
    """Put cells into specimens by their labels, since the source names no patients."""
    left: tuple[list[RealCell], ...] = ([], [], [])
    for cell in cells:
        left[2 - sum(label in GROUP.classes for label in cell.labels)].append(cell)
    specimens: dict[str, str] = {}
    for name, numbers in _SPECIMENS.items():
        for alike, n in zip(left, numbers, strict=True):
            specimens |= dict.fromkeys((cell.file for cell in alike[:n]), name)
            del alike[:n]
    return [replace(cell, specimen=specimens.get(cell.file)) for cell in cells]


def ensure_shipped_release(context: ServiceContext, say: Say) -> None:
    """Add the release that is shipped, unless one is served."""
    with context.database.read() as session:
        if get_champion_alias(session) is not None:
            return
    say("demo: adding the shipped model release")
    add_release(context.database, context.keys.audit, RELEASE, context.folders)


def serves_real_cells(context: ServiceContext) -> bool:
    """Whether the champion's classes are those of the shipped release."""
    with context.database.read() as session:
        served = context.inference.served(get_champion_alias(session)).predictor.release.classes
    return set(served) == set(read_release(RELEASE).classes)


def ensure_real_cases(context: ServiceContext, say: Say, cells: Sequence[RealCell] | None = None) -> None:
    """Store the demo's real cells with their labels, unless there are other cases."""
    if not can_fill_demo(context) or not serves_real_cells(context):
        return
    chosen = real_cells() if cells is None else list(cells)
    say(f"demo: storing {len(chosen)} real cells and the labels of two annotators")
    fill_laboratory(context, say, _plan_real_cells(context, chosen))


def _plan_real_cells(context: ServiceContext, cells: list[RealCell]) -> DemoPlan:
    fitted = [cell for cell in cells if can_wait_for_read(context, None, cell.name)]
    unread, once = fitted[:UNREAD], fitted[UNREAD : UNREAD + READ_ONCE]
    both = [cell for cell in cells if cell not in unread and cell not in once]
    return DemoPlan(
        study=_STUDY,
        earlier=[*_plan_labels(both[RECENT:], 2), *_plan_labels(once, 1)],
        later=[*_plan_labels(both[:RECENT], 2), *_plan_labels(unread, 0)],
        threshold=0.0,  # asks for two reads of every cell
        definitions=_DEFINITIONS,
        groups=(GROUP,),
    )


def _plan_labels(cells: list[RealCell], n_labels: int) -> list[PlannedCell]:
    return [PlannedCell(cell.name, partial(_build_upload, cell, n_labels)) for cell in cells]


def _build_upload(cell: RealCell, n_labels: int) -> tuple[CaseIn, bytes, list[LabelIn]]:
    # the source names no patients
    about = {"cell type": cell.cell_type}
    fields = CaseIn(external_id=cell.name, patient=None, site=SITE, specimen=cell.specimen, metadata=about)
    named_labels = list(zip(ANNOTATORS, cell.labels, strict=True))[:n_labels]
    labels = [LabelIn(label=label, annotator=name, blind=True) for name, label in named_labels]
    return fields, (FOLDER / "images" / cell.file).read_bytes(), labels
