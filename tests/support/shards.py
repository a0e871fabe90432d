"""Lists of images for tests of shards, and both ways of making one table of them."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ml.datasets.cells import simulate_cell
from ml.scoring.shards import VERSION, JobDocument, create_json, join_job, merge_job_shards
from ml.scoring.table import ERRORS, ScoreRequest, TableWriter, score_images
from ml.util.files import file_sha256
from tests.support.images import encode

N_FILES = 40


def write_images(folder: Path) -> Path:
    """Cells, and two files that are none."""
    folder.mkdir()
    for index in range(N_FILES):
        (folder / f"{index}.png").write_bytes(encode(simulate_cell(index, seed=3, size=16).pixels))
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_bytes(b"no picture\n" * 9)
    return folder


def manifest(images: Path, rows: int, name: str = "list.csv") -> Path:
    """A list of so many cases over these files; every 50th is missing, empty, or text."""
    files = [f"{row % N_FILES}.png" for row in range(rows)]
    for row in range(7, rows, 50):
        files[row] = ("gone.png", "empty.png", "text.png")[row % 3]
    path = images / name
    cases = [f"case-{row:07d}" for row in range(rows)]
    if path.suffix == ".parquet":
        parquet.write_table(pa.table({"case_id": cases, "file": files}), path, row_group_size=150)
    else:
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([("case_id", "file"), *zip(cases, files, strict=True)])
    return path


def one_run(release: Path, listed: Path, out: Path) -> tuple[bytes, bytes]:
    done = score_images(ScoreRequest(release, listed), out)
    return done.predictions.read_bytes(), done.errors.read_bytes()


def joined(folder: Path) -> tuple[bytes, bytes]:
    done = merge_job_shards(folder)
    return done.predictions.read_bytes(), done.errors.read_bytes()


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


def write_parts(folder: Path, rows: int, n_shards: int) -> None:
    """Parts of a job as shards write them, of numbers that no network made."""
    document: JobDocument = {
        "version": VERSION,
        "release_sha256": "0" * 64,
        "images_sha256": "1" * 64,
        "n_images": rows,
        "n_shards": n_shards,
        "tta": None,
        "seed": 0,
        "columns": [],
    }
    job = join_job(folder, document)
    schema = pa.schema([("case_id", pa.string()), ("release_sha256", pa.string())])
    for k in range(8):
        schema = schema.append(pa.field(f"prob:{k}", pa.float64()))
    rng, each, at = np.random.default_rng(0), rows // n_shards, 5_000
    for shard in range(1, n_shards + 1):
        good, bad = job.file(shard, "predictions.parquet"), job.file(shard, "errors.parquet")
        with TableWriter(good, schema) as writer, TableWriter(bad, ERRORS):
            for start in range((shard - 1) * each, shard * each, at):
                names = [f"case {row}" for row in range(start, start + at)]
                columns = {"case_id": names, "release_sha256": ["0" * 64] * at}
                writer.add(pa.table(columns | {f"prob:{k}": rng.random(at) for k in range(8)}, schema=schema))
        digests = {"predictions_sha256": file_sha256(good), "errors_sha256": file_sha256(bad)}
        counts = {"n_predictions": each, "n_errors": 0}
        create_json(job.file(shard, "json"), {"job_sha256": job.sha256, "shard": shard} | counts | digests)
