"""Picklable work order for one shard."""

import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ml.release.device import Device
from ml.scoring.image_list import ImageList, open_list
from ml.scoring.predicting import Scorer
from ml.scoring.shard_store import JOB_FILE, PartDocument, read_job
from ml.scoring.shards import open_job, write_shard
from ml.scoring.writing import ShardError


@dataclass(frozen=True)
class ShardWork:
    """Work order of a shard; called with a shard's number, it makes that shard.

    Attributes:
        release: release folder, like the other paths absolute.
        images: folder or manifest.
        folder: where the parts lie.
        job_sha256: digest of the job that was begun there.
        tta: augmented views an image, None for the image itself.
        seed: of the views.
        device: where the network runs.
    """

    release: Path
    images: Path
    folder: Path
    job_sha256: str
    tta: int | None
    seed: int
    device: Device

    def __call__(self, shard: int) -> PartDocument:
        """Predict a shard, unless it is there.

        Raises:
            ShardError: the folder is another one here, or has other bytes.
            TableError: the manifest cannot be used.
            ValueError: the release cannot be read.
        """
        if not (self.folder / JOB_FILE).exists() or read_job(self.folder).sha256 != self.job_sha256:
            raise ShardError(
                f"{self.folder}: is not the folder of this job on the machine {platform.node()}: every machine has to "
                "see the same one"
            )
        scorer, listed = _open_release_and_list(self.release, self.images, self.tta, self.seed, self.device)
        job = open_job(scorer, listed, self.folder, read_job(self.folder).n_shards)
        return write_shard(scorer, listed, job, shard, lambda done, total: None)


@lru_cache(maxsize=1)
def _open_release_and_list(
    release: Path, images: Path, tta: int | None, seed: int, device: Device
) -> tuple[Scorer, ImageList]:
    """Release and list, which a process keeps from one shard to the next: it is there for one run only."""
    # the other cores have shards of their own
    return Scorer(release, tta=tta, seed=seed, threads=1, device=device), open_list(images)
