"""Prediction of many images into one table, block by block.

The bytes of a table depend on its rows alone.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import csv, parquet

from ml.calibration.calibration import N_SUMMARIES
from ml.images.preprocess import ImageRejectedError, Pixels, decode_image, pixel_digest
from ml.release.artifact import read_release
from ml.release.device import Device
from ml.release.ood_detector import OodScores
from ml.release.predictor import Predictor
from ml.release.score import MAY_BE_EMPTY, prediction_columns
from ml.scoring.images import BLOCK, ImageList, Rows, open_list, repeated_row
from ml.tables.evaluate import TRAINED_ON
from ml.tables.logits import read_outputs
from ml.tables.reading import Column, Place, TableError, TableSource, empty_where_nan, fail_at
from ml.util.files import replace_file, temporary_path

Observer = Callable[[int, int], None]
#: Columns of a table of images that could not be read.
ERRORS = pa.schema(
    [
        ("row", pa.int64()),
        ("case_id", pa.string()),
        ("file", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
    ]
)
#: Rows of a group of a Parquet file, which is what is held in memory.
GROUP_ROWS = 16_384
_PROBE_SIDE = 64


class TableWriter:
    """A CSV or Parquet file that is written in groups of rows."""

    def __init__(self, path: Path, schema: pa.Schema, *, as_csv: bool = False) -> None:
        self.schema, self.rows = schema, 0
        self._writer = csv.CSVWriter(path, schema) if as_csv else parquet.ParquetWriter(path, schema)
        self._held: list[pa.Table] = []
        self._n_held = 0

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._n_held:
            self._write(pa.concat_tables(self._held))
        self._writer.close()

    def add(self, table: pa.Table) -> None:
        """Add rows."""
        self.rows += table.num_rows
        self._held.append(table)
        self._n_held += table.num_rows
        if self._n_held < GROUP_ROWS:
            return
        held = pa.concat_tables(self._held)
        while held.num_rows >= GROUP_ROWS:
            self._write(held.slice(0, GROUP_ROWS))
            held = held.slice(GROUP_ROWS)
        self._held, self._n_held = [held], held.num_rows

    def _write(self, table: pa.Table) -> None:
        # in one piece: the bytes would show where a column was cut
        self._writer.write_table(table.combine_chunks())


@dataclass(frozen=True)
class ScoreRequest:
    """Images to predict, and how; other processes get it too."""

    release: Path
    images: Path  # folder or manifest
    tta: int | None = None  # augmented views per image
    seed: int = 0  # of the views
    device: Device = "auto"

    def open(self, threads: int = 0) -> "tuple[Scorer, ImageList]":
        """Open the release and the list."""
        return Scorer(self, threads), open_list(self.images)


class Scorer:
    """A release that predicts blocks of images."""

    def __init__(self, request: ScoreRequest, threads: int = 0) -> None:
        self.predictor = Predictor(read_release(request.release), threads, device=request.device)
        self.release_sha256 = self.predictor.release.card_sha256
        self.tta, self.seed = request.tta, request.seed
        probe = Image.new("RGB", (_PROBE_SIDE, _PROBE_SIDE))
        self.schema: pa.Schema = self._predictions(["probe"], [probe], [pixel_digest(probe)], None).schema

    def __call__(self, rows: Rows) -> tuple[pa.Table, pa.Table]:
        """Predictions of readable images, and errors of the others."""
        kept: list[int] = []
        images: list[Image.Image | Pixels] = []
        digests: list[bytes] = []
        wrong: list[tuple[int, str, str]] = []
        for at, path in enumerate(rows.paths):
            try:
                image = decode_image(path.read_bytes())
            except (OSError, ValueError) as exc:
                wrong.append((at, *_unreadable_reason(exc)))
                continue
            kept.append(at)
            digests.append(pixel_digest(image))
            # augmented views need the image itself
            images.append(image if self.tta is not None else self.predictor.pixels([image])[0])
        errors = {
            "row": [rows.first + at for at, _, _ in wrong],
            "case_id": [rows.case_ids[at] for at, _, _ in wrong],
            "file": [rows.names[at] for at, _, _ in wrong],
            "reason": [reason for _, reason, _ in wrong],
            "message": [message for _, _, message in wrong],
        }
        hmacs = None if rows.hmacs is None else [rows.hmacs[at] for at in kept]
        predictions = self.schema.empty_table()
        if kept:
            predictions = self._predictions([rows.case_ids[at] for at in kept], images, digests, hmacs)
        return predictions, pa.table(errors, schema=ERRORS)

    def _predictions(
        self, cases: list[str], images: list[Image.Image | Pixels], digests: list[bytes], hmacs: list[str] | None
    ) -> pa.Table:
        release, plain = self.predictor.release, self.predictor.predict(images)
        distribution = plain.distribution
        if self.tta is not None:
            pictures = [image for image in images if isinstance(image, Image.Image)]
            distribution = self.predictor.predict_augmented(pictures, samples=self.tta, seed=self.seed)
        columns = prediction_columns(cases, release.classes, distribution, plain.unlikeness)
        columns["release_sha256"] = [self.release_sha256] * len(cases)
        index = release.training
        uses = ["unknown"] * len(digests)
        if index is not None:
            uses = ["yes" if use else "no" for use in index.uses_of(digests, hmacs)]
        columns[TRAINED_ON] = uses
        filled: dict[str, Column] = {name: empty_where_nan(np.asarray(columns[name])) for name in MAY_BE_EMPTY}
        return pa.table(dict(columns | filled))


def _unreadable_reason(exc: OSError | ValueError) -> tuple[str, str]:
    """Reason and message of an unreadable file, without its path."""
    if isinstance(exc, ImageRejectedError):
        return exc.reason, str(exc)
    reason = "missing" if isinstance(exc, FileNotFoundError) else "unreadable"
    return reason, (exc.strerror if isinstance(exc, OSError) else None) or "the file cannot be read"


@dataclass(frozen=True)
class ScoredTable:
    """Result of scoring into one table."""

    n_predictions: int  # images that were predicted
    n_errors: int  # images that could not be read
    predictions: Path  # table of the first
    errors: Path  # table of the second

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        names = {"n_cases": self.n_predictions, "predictions": str(self.predictions)}
        return {**names, "n_errors": self.n_errors, "errors": str(self.errors)}


def score_images(request: ScoreRequest, out: Path, observer: Observer = lambda done, total: None) -> ScoredTable:
    """Predict a folder or manifest of images into a PREDICTIONS table."""
    kind = out.suffix.lower()
    if kind not in {".csv", ".parquet"}:
        raise TableError(f"{out}: the extension must be .csv or .parquet")
    scorer, listed = request.open()
    again = repeated_row(rows.case_ids for rows in listed.read(0, listed.rows))
    if again is not None:
        start = again // BLOCK * BLOCK
        rows = next(iter(listed.read(start, min(start + BLOCK, listed.rows))))
        place = Place.of_file(listed.source).part(np.array([again]))
        fail_at(place, [True], "case_id", "duplicated case", [rows.case_ids[again - start]])
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
    """Predict a range of rows into predictions and errors; their numbers."""
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


def score_outputs(release_path: Path, logits: TableSource, features: TableSource | None, out: Path) -> ScoredTable:
    """Calibrate a table of a model's outputs into a PREDICTIONS table; no image is seen, so none is checked."""
    kind = out.suffix.lower()
    if kind not in {".csv", ".parquet"}:
        raise TableError(f"{out}: the extension must be .csv or .parquet")
    release = read_release(release_path)
    outputs = read_outputs(logits, features, release.classes)
    adopted, head = release.card.get("adopted"), release.calibration.concentration
    names = [] if adopted is None else adopted["feature_names"]
    if head is not None and (adopted is None or names):
        n_summaries = 0 if release.calibration.refinement.summaries is None else N_SUMMARIES
        names = names or [str(number) for number in range(len(head.weight) - n_summaries)]
    hidden = outputs.named_features(names if head is not None or release.head is not None else [])
    distribution = release.calibration.apply(*release.by_members(outputs.logits, hidden))
    unknown = np.full(len(hidden), np.nan)
    unlike = OodScores(np.zeros(len(hidden), dtype=bool), unknown, unknown, [[] for _ in unknown])
    columns = prediction_columns(outputs.case_ids, release.classes, distribution, unlike)
    columns |= {"release_sha256": [release.card_sha256] * len(hidden), TRAINED_ON: ["unknown"] * len(hidden)}
    columns |= {name: empty_where_nan(np.asarray(columns[name])) for name in MAY_BE_EMPTY}
    table = pa.table(dict(columns))
    with temporary_path(out) as part:
        with TableWriter(part, table.schema, as_csv=kind == ".csv") as writer:
            writer.add(table)
        replace_file(part, out)
    return ScoredTable(len(hidden), 0, out, out)
