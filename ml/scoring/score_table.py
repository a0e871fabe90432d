"""Prediction of many images into one table in one run."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ml.release.device import Device
from ml.scoring.duplicate_ids import repeated_row
from ml.scoring.image_list import BLOCK, ImageList, open_list
from ml.scoring.predicting import Scorer
from ml.scoring.writing import ERRORS, TableWriter, replace_file, temporary_path
from ml.tables.files import Place, TableError, fail_at

Observer = Callable[[int, int], None]


@dataclass(frozen=True)
class ScoredTable:
    """Result of scoring into one table.

    Attributes:
        n_predictions: images that were predicted.
        n_errors: images that could not be read.
        predictions: table of the first.
        errors: table of the second.
    """

    n_predictions: int
    n_errors: int
    predictions: Path
    errors: Path


def score_images(
    release: Path,
    images: Path,
    out: Path,
    observer: Observer = lambda done, total: None,
    *,
    tta: int | None = None,
    seed: int = 0,
    device: Device = "auto",
) -> ScoredTable:
    """Predict a folder of images, or a manifest with columns case_id and file, into a PREDICTIONS table.

    Of an image unlike those that the release was made from (``out_of_distribution``, ``reasons``, ``distance``,
    ``distance_percentile``) the ``disagreement_prob`` is empty and ``disagreement_prob_raw`` is not. Two further
    columns say which release it was (``release_sha256``, the digest of its card) and whether it was trained
    on the cell (``trained_on``: yes, no or unknown), so that an evaluation leaves such cells out. Images that cannot be
    read are rows of a table of errors beside it. Memory does not grow with the number of images.

    Args:
        release: release folder.
        images: folder, with all folders in it, or manifest whose files are relative to it.
        out: table to write.
        observer: called with images done and in all.
        tta: augmented views an image, None for the image itself.
        seed: of the views.
        device: where the network runs.

    Raises:
        TableError: the manifest cannot be used, or a case stands twice.
        ValueError: the release cannot be read, or the device not used.
    """
    kind = out.suffix.lower()
    if kind not in {".csv", ".parquet"}:
        raise TableError(f"{out}: the extension must be .csv or .parquet")
    scorer = Scorer(release, tta=tta, seed=seed, device=device)
    listed = open_list(images)
    _check_cases(listed)
    errors = out.with_name(f"{out.stem}.errors{out.suffix}")
    with temporary_path(out) as part, temporary_path(errors) as wrong:
        n = write_rows(scorer, listed, 0, listed.rows, (part, wrong), observer, as_csv=kind == ".csv")
        replace_file(wrong, errors)
        replace_file(part, out)
    return ScoredTable(*n, out, errors)


def write_rows(
    scorer: Scorer,
    listed: ImageList,
    first: int,
    stop: int,
    files: tuple[Path, Path],
    observer: Observer,
    *,
    as_csv: bool = False,
) -> tuple[int, int]:
    """Predict some rows of a list into two files.

    Args:
        scorer: who predicts.
        listed: the images.
        first: number of the first row, of a whole block.
        stop: number after that of the last row.
        files: for predictions and for errors.
        observer: called with images done and in all.
        as_csv: whether CSV is written, else Parquet.

    Returns:
        The numbers of predictions and of errors.

    Raises:
        TableError: the list became shorter while it was read.
    """
    with ExitStack() as stack:
        good = stack.enter_context(TableWriter(files[0], scorer.schema, as_csv=as_csv))
        bad = stack.enter_context(TableWriter(files[1], ERRORS, as_csv=as_csv))
        for rows in listed.read(first, stop):
            predictions, errors = scorer(rows)
            good.add(predictions)
            bad.add(errors)
            observer(good.rows + bad.rows, stop - first)
    if good.rows + bad.rows != stop - first:
        raise TableError(f"{listed.source}: the list changed while it was read")
    return good.rows, bad.rows


def _check_cases(listed: ImageList) -> None:
    """Every case stands once."""
    again = repeated_row(rows.case_ids for rows in listed.read(0, listed.rows))
    if again is not None:
        start = again // BLOCK * BLOCK
        rows = next(iter(listed.read(start, min(start + BLOCK, listed.rows))))
        place = Place.of_file(listed.source).part(np.array([again]))
        fail_at(place, [True], "case_id", "duplicated case", [rows.case_ids[again - start]])
