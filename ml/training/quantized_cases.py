"""Cases for quantisation: those that calibrate, those that judge, and network outputs for both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ml.datasets.base import ImageDataset
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import Pixels
from ml.release.artifact import Release
from ml.release.predictor import BATCH, Predictor
from ml.training.run_folder import CachedOutputs
from ml.util.arrays import IntArray


class LeftOutDocument(TypedDict):
    """Cases that were left out because of what the release was made with: of those that calibrate, and that judge."""

    calibration: int
    test: int


@dataclass(frozen=True)
class Cases:
    """Cases that no network was fitted to.

    Attributes:
        pixels: (N, H, W, C) uint8, as the network sees them.
        counts: (N, K) labels, in the order of the release's classes.
        partition: (N,) ``valid``, ``calibration`` or ``test``.
        calibrates: name of the partition that calibrates.
        case_ids: (N,).
        groups: (N,) patient, or the case itself where there is none.
        digests: N of the decoded pictures.
        hmacs: N digests of patients by the service that exported them, None where none did.
        uses: (N,) what the release used each case for, the empty text for nothing.
        left_out: what was left out.
    """

    pixels: Pixels
    counts: IntArray
    partition: npt.NDArray[np.str_]
    calibrates: str
    case_ids: npt.NDArray[np.str_]
    groups: npt.NDArray[np.str_]
    digests: list[bytes]
    hmacs: list[str] | None
    uses: npt.NDArray[np.str_]
    left_out: LeftOutDocument

    def rows(self, *partitions: str) -> npt.NDArray[np.intp]:
        """Rows of partitions."""
        return np.flatnonzero(np.isin(self.partition, partitions))

    def outputs(
        self, predictor: Predictor, rows: npt.NDArray[np.intp], done: Callable[[int], None] = lambda n: None
    ) -> CachedOutputs:
        """Network outputs of the cases.

        Args:
            predictor: of the network.
            rows: M of the cases.
            done: called with the number of cases that were predicted.
        """
        parts = []
        for start in range(0, len(rows), BATCH):
            parts.append(predictor.outputs(list(self.pixels[rows[start : start + BATCH]])))
            done(len(parts[-1][0]))
        logits, features = (np.concatenate(column) for column in zip(*parts, strict=True))
        return CachedOutputs(
            logits=logits,
            features=features,
            pooled=features,  # which they are in a release with a dropout head
            label_counts=self.counts[rows],
            partition=self.partition[rows],
            case_ids=self.case_ids[rows],
            groups=self.groups[rows],
        )


def cases_for(release: Release, dataset: ImageDataset) -> Cases:
    """The cases of a data set that may calibrate and judge a release.

    Cases of ``test`` that the release was made with are left out, those whose picture or patient calibrates here, and
    those of ``calibration`` that its network was fitted to, unless they calibrated it as well (pictures that its source
    has twice); where it carries no digests of them, nothing is known of what it was made with.

    Args:
        release: that is quantised.
        dataset: images with labels.

    Raises:
        ValueError: other classes, images of another size, or no case that calibrates or judges.
    """
    _require_same_images(release, dataset)
    rows = dataset.rows("valid", "calibration", "test")
    counts, partition = _counts(release, dataset)[rows], dataset.partition[rows]
    digests = dataset.pixel_digests
    own = [pixel_digest(dataset.pixels[row]) if digests is None else digests[row] for row in rows]
    hmacs = None if dataset.patient_hmacs is None else [dataset.patient_hmacs[row] for row in rows]
    uses = calibrated = np.full(len(rows), "", dtype="U11")
    if release.training is not None:
        uses = release.training.uses_of(own, hmacs)
        calibrated = release.training.without_network().uses_of(own, hmacs)
    judged_before = (partition == "test") & (uses != "")
    fitted_before = (partition == "calibration") & (uses == "network") & (calibrated == "")
    cases = np.array(dataset.case_ids)[rows]
    groups = cases if dataset.patients is None else np.array(dataset.patients)[rows]
    calibrates = (partition == dataset.calibration_partition) & ~fitted_before
    # whatever a table says of its partitions: no picture and no patient may both calibrate and judge
    known_digests, known_groups = {own[row] for row in np.flatnonzero(calibrates)}, set(groups[calibrates])
    alike = np.array([own[row] in known_digests or groups[row] in known_groups for row in range(len(rows))], dtype=bool)
    judged_before |= (partition == "test") & alike
    kept = np.flatnonzero(~judged_before & ~fitted_before)
    chosen_cases = Cases(
        pixels=dataset.pixels[rows[kept]],
        counts=counts[kept],
        partition=partition[kept],
        calibrates=dataset.calibration_partition,
        case_ids=cases[kept],
        groups=groups[kept],
        digests=[own[row] for row in kept],
        hmacs=None if hmacs is None else [hmacs[row] for row in kept],
        uses=uses[kept],
        left_out={"calibration": int(fitted_before.sum()), "test": int(judged_before.sum())},
    )
    for name in (chosen_cases.calibrates, "test"):
        if not chosen_cases.rows(name).size:
            made_with = chosen_cases.left_out["calibration"] + chosen_cases.left_out["test"]
            raise ValueError(
                f"data set {dataset.name!r} has no case in partition {name!r} that the release was not made with"
                + (f" ({made_with:,} are left out): give the --seed of its split" if made_with else "")
            )
    return chosen_cases


def _require_same_images(release: Release, dataset: ImageDataset) -> None:
    """Refuse images that are not what the release's network sees."""
    seen, given = release.preprocessing, dataset.preprocessing
    for what in ("channels", "size", "crop"):
        given_value, expected = getattr(given, what), getattr(seen, what)
        if given_value != expected:
            raise ValueError(
                f"data set {dataset.name!r} has the {what} {given_value or 'none'}, the release's network reads "
                f"{expected or 'none'}"
            )


def _counts(release: Release, dataset: ImageDataset) -> IntArray:
    """Labels (N, K) in the order of the release's classes."""
    unknown = [info.code for info in dataset.classes if info.code not in release.classes]
    if unknown:
        raise ValueError(
            f"data set {dataset.name!r} has the class {unknown[0]!r}, which the release does not have "
            f"({', '.join(release.classes)})"
        )
    counts = np.zeros((len(dataset.label_counts), len(release.classes)), dtype=np.int64)
    counts[:, [release.classes.index(info.code) for info in dataset.classes]] = dataset.label_counts
    return counts
