"""One of n shards of an image list, safe to predict on any machine and more than once.

Shards are made of whole blocks in the order of the list, and their bytes are those of any other run: whoever comes
second leaves what is there, and a shard whose process was killed is made again.
"""

import re
from pathlib import Path

from ml.release.device import Device
from ml.scoring.image_list import BLOCK, ImageList, open_list
from ml.scoring.predicting import Scorer
from ml.scoring.score_table import Observer, write_rows
from ml.scoring.shard_store import Job, PartDocument, create_json, job_document, join_job
from ml.scoring.writing import ShardError, create_file, temporary_path
from ml.util.files import file_sha256


def parse_shard(text: str) -> tuple[int, int]:
    """Number of a shard and how many there are, of ``i/n``; shards count from 1.

    Raises:
        ShardError: it is something else.

    >>> parse_shard("3/8")
    (3, 8)
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None:
        raise ShardError(f"--shard {text}: say i/n, such as 3/8")
    shard, count = int(match[1]), int(match[2])
    if not 1 <= shard <= count:
        raise ShardError(f"--shard {text}: shards count from 1 to n, here from 1/{count} to {count}/{count}")
    return shard, count


def rows_of(shard: int, n_shards: int, n_rows: int) -> tuple[int, int]:
    """First row of a shard, and the row after its last one.

    >>> [rows_of(shard, 3, 500) for shard in (1, 2, 3)]
    [(0, 128), (128, 320), (320, 500)]
    """
    blocks = -(-n_rows // BLOCK)
    first, stop = (blocks * number // n_shards * BLOCK for number in (shard - 1, shard))
    return min(first, n_rows), min(stop, n_rows)


def open_job(scorer: Scorer, listed: ImageList, folder: Path, n_shards: int) -> Job:
    """The job of a list in a folder.

    Args:
        scorer: who predicts.
        listed: the images.
        folder: where the parts lie.
        n_shards: into how many parts the list is divided.

    Raises:
        ShardError: the folder has another job.
    """
    columns = [f"{field.name} {field.type}" for field in scorer.schema]
    views = (scorer.tta, scorer.seed if scorer.tta is not None else 0)
    images = (listed.sha256, listed.rows)
    document = job_document(scorer.release_sha256, images, n_shards, views, columns)
    if scorer.predictor.on_gpu:
        document["device"] = "cuda"
    return join_job(folder, document)


def score_shard(
    release: Path,
    images: Path,
    folder: Path,
    shard: tuple[int, int],
    observer: Observer = lambda done, total: None,
    *,
    tta: int | None = None,
    seed: int = 0,
    threads: int = 0,
    device: Device = "auto",
) -> PartDocument:
    """Predict one shard of a list of images, unless it is there.

    Args:
        release: release folder.
        images: folder or manifest, as of ``score_images``.
        folder: where the parts of the job lie.
        shard: its number, from 1, and how many there are.
        observer: called with images done and in all.
        tta: augmented views an image, None for the image itself.
        seed: of the views.
        threads: within one run of the network, 0 for all cores.
        device: where the network runs; the same for all parts, whose bytes it decides.

    Returns:
        What the shard contains.

    Raises:
        ShardError: the folder has parts of another job, or other bytes.
        TableError: the manifest cannot be used.
        ValueError: the release cannot be read, or the device not used.
    """
    scorer, listed = Scorer(release, tta=tta, seed=seed, threads=threads, device=device), open_list(images)
    return write_shard(scorer, listed, open_job(scorer, listed, folder, shard[1]), shard[0], observer)


def write_shard(scorer: Scorer, listed: ImageList, job: Job, shard: int, observer: Observer) -> PartDocument:
    """The same, of a job that is open.

    Raises:
        ShardError: other bytes are there.
        TableError: the manifest cannot be used.
    """
    existing = job.part(shard)
    if existing is not None:
        return existing
    good, bad = job.file(shard, "predictions.parquet"), job.file(shard, "errors.parquet")
    with temporary_path(good) as part, temporary_path(bad) as wrong:
        first, stop = rows_of(shard, job.n_shards, listed.rows)
        n_predictions, n_errors = write_rows(scorer, listed, first, stop, (part, wrong), observer)
        create_file(part, good)
        create_file(wrong, bad)
    document: PartDocument = {
        "job_sha256": job.sha256,
        "shard": shard,
        "n_predictions": n_predictions,
        "n_errors": n_errors,
        "predictions_sha256": file_sha256(good),
        "errors_sha256": file_sha256(bad),
    }
    create_json(job.file(shard, "json"), document)
    return document
