"""The demo on real cells: 200 blood cells that two annotators labelled, and a release that was trained on others.

Cells, labels, licences and release lie in ``cells/``, so that nothing is fetched. The two annotators enter as those of
an outside system, by name: their source says that they differ, not who they are, so that each name may stand for
several people.
"""

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.cases.ingest import partition_of
from app.cases.schemas import CaseIn
from app.context import Context
from app.demo.laboratory import Laboratory, Upload, fill, may_be_filled
from app.demo.people import Say
from app.labels.schemas import LabelIn
from app.releases.queries import champion
from app.releases.registration import add_release
from app.triage.schemas import PolicyIn
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
_ORDER_SEED = 2026
_STUDY = "an earlier study: both annotators read every cell, and whatever is undecided stays so"
_TRIAGE = "second reads where two annotators are likely to differ, as a laboratory would ask for them"


@dataclass(frozen=True)
class RealCell:
    """A cell of the demo.

    Attributes:
        file: name of its image.
        cell_type: as the source of the images says, for whoever may see more than the image.
        labels: nucleus shape by the first and by the second annotator.
    """

    file: str
    cell_type: str
    labels: tuple[str, str]

    @property
    def name(self) -> str:
        """Its external id."""
        return Path(self.file).stem


@dataclass(frozen=True)
class _Planned:
    """A cell and by how many of the two annotators it is stored as read."""

    cell: RealCell
    n_labels: int


def real_cells() -> list[RealCell]:
    """The cells that are shipped, in an order that says nothing about them."""
    with (FOLDER / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [RealCell(row["file"], row["cell_type"], (row["annotator_1"], row["annotator_2"])) for row in rows]
    random.Random(_ORDER_SEED).shuffle(cells)  # noqa: S311 - an order, no secret
    return cells


def ensure_shipped_release(context: Context, say: Say) -> None:
    """Add the release that is shipped, unless one is served."""
    with context.database.read() as session:
        if champion(session) is not None:
            return
    say("demo: adding the release that comes with it")
    add_release(context.database, context.keys.audit, RELEASE, context.folders)


def serves_real_cells(context: Context) -> bool:
    """Whether the champion's classes are those of the shipped release."""
    with context.database.read() as session:
        served = context.inference.served(champion(session)).predictor.release.classes
    return set(served) == set(read_release(RELEASE).classes)


def ensure_real_cases(context: Context, say: Say, cells: Sequence[RealCell] | None = None) -> None:
    """Store the demo's real cells with their labels, unless there are other cases.

    Args:
        context: parts of the service.
        say: where to report what is being done.
        cells: all that are shipped where left out.
    """
    if not may_be_filled(context) or not serves_real_cells(context):
        return
    chosen = real_cells() if cells is None else list(cells)
    say(f"demo: storing {len(chosen)} real cells and what two annotators said of them")
    fill(context, say, len(chosen), lambda laboratory: _stored(laboratory, chosen), _DEFINITIONS)


def _stored(laboratory: Laboratory, cells: list[RealCell]) -> Iterator[int]:
    """Store what is missing; gives the number of cells that are there, again and again.

    What waits to be read is of the half that is fitted: labels of outside systems judge only where there are no others,
    and whoever reads some cells and recalibrates would have these alone to judge by.
    """
    fitted = [cell for cell in cells if _is_fitted(laboratory, cell)]
    unread, once = fitted[:UNREAD], fitted[UNREAD : UNREAD + READ_ONCE]
    waiting = {cell.file for cell in [*unread, *once]}
    both = [cell for cell in cells if cell.file not in waiting]
    recent, studied = both[:RECENT], both[RECENT:]
    earlier = [*(_Planned(cell, 2) for cell in studied), *(_Planned(cell, 1) for cell in once)]
    later = [*(_Planned(cell, 2) for cell in recent), *(_Planned(cell, 0) for cell in unread)]
    threshold = laboratory.threshold()
    # a threshold of 0 asks for two reads of every cell
    laboratory.change_policy(None, PolicyIn(threshold=0, adjudicate_below=None, repeat_rate=0, reason=_STUDY))
    yield from laboratory.store(earlier, _name, _made, 0)
    laboratory.change_policy(_STUDY, PolicyIn(threshold=threshold or 0.2, repeat_rate=0, reason=_TRIAGE))
    yield from laboratory.store(later, _name, _made, len(earlier))


def _is_fitted(laboratory: Laboratory, cell: RealCell) -> bool:
    return partition_of(laboratory.context.keys.partition, None, cell.name) == "calibration"


def _name(planned: _Planned) -> str:
    return planned.cell.name


def _made(planned: _Planned) -> tuple[Upload, list[LabelIn]]:
    """A cell as it is uploaded, and its labels. The source names no patients."""
    cell = planned.cell
    fields = CaseIn(external_id=cell.name, patient=None, site=SITE, metadata={"cell type": cell.cell_type})
    labels = [
        LabelIn(label=label, annotator=name, blind=True)
        for name, label in zip(ANNOTATORS[: planned.n_labels], cell.labels, strict=False)
    ]
    return (fields, (FOLDER / "images" / cell.file).read_bytes()), labels
