"""Adaptation of a release to a laboratory's annotators and images, without a service."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ml.annotations import Annotations
from ml.calibration.calibration import Calibration
from ml.calibration.calibrators import calibration_mix
from ml.calibration.domain_adaptation import Adaptation, AdaptationDocument, recalibrate_for_annotators, require_head
from ml.images.image_quality_features import compute_quality_features, feature_columns
from ml.images.preprocess import pixel_digest
from ml.metrics import evaluate
from ml.metrics.jackknife import EstimateDocument
from ml.metrics.paired_difference import paired_change
from ml.release.artifact import (
    FAMILIARITY_FILE,
    Release,
    ReleaseError,
    read_release,
    require_empty,
    write_recalibrated,
    write_release,
)
from ml.release.card import CARD_METRICS, CardContents
from ml.release.ood_detector import MIN_IMAGES, DetectorInputs, fit_ood_detector
from ml.release.predictor import BATCH, Prediction, Predictor
from ml.release.score import decode_file, listed_images
from ml.release.training_index import INDEX_FILE
from ml.tables.files import case_column, read_labels
from ml.tables.reading import TableError, fail_at, place_of
from ml.util.arrays import FloatArray, IntArray

#: Steps of the figures: both on the same cells.
BEFORE, AFTER = "as released", "adapted, by fits without the cell"


class AdaptReport(TypedDict):
    """Result of an adaptation, as ``secondread adapt --json`` prints it."""

    release: str
    card_sha256: str
    adaptation: AdaptationDocument
    # metrics by name of both releases on the same cells
    figures: dict[str, dict[str, EstimateDocument]]
    # of L and L_D, paired, negative where it became better
    changes: dict[str, EstimateDocument]
    n_left_out: int
    # known, or unknown if the release carries no digests of its images
    trained_on: str
    n_without_labels: int
    # None if the release has no check
    n_unlike: int | None


@dataclass(frozen=True)
class _Cases:
    # (N, K) float32, of the network
    logits: npt.NDArray[np.float32]
    features: npt.NDArray[np.float32]
    counts: IntArray
    # patient of each, or its picture
    groups: list[str]
    digests: list[bytes]
    # of the patients, None if there are none
    hmacs: list[str] | None
    # (N,) whether the release flags the image
    unlike: npt.NDArray[np.bool_]

    def take(self, rows: npt.NDArray[np.intp]) -> "_Cases":
        groups, digests = [self.groups[row] for row in rows], [self.digests[row] for row in rows]
        hmacs = None if self.hmacs is None else [self.hmacs[row] for row in rows]
        arrays = self.logits[rows], self.features[rows], self.counts[rows]
        return _Cases(*arrays, groups, digests, hmacs, self.unlike[rows])

    @property
    def cluster(self) -> npt.NDArray[np.str_] | None:
        """Groups if there are several cells of one."""
        return np.array(self.groups) if len(set(self.groups)) < len(self.groups) else None


def adapt_release(
    source: Path,
    images: Path,
    labels: Path,
    out: Path,
    *,
    cluster: str | None = None,
    name: str | None = None,
    fuse: Callable[[Release, Calibration], bytes] | None = None,
    observer: Callable[[int, int], None] = lambda done, total: None,
) -> AdaptReport:
    """Write a release for the annotators of a LABELS table."""
    release = read_release(source)
    require_empty(out)
    require_head(release.calibration)
    cases, n_without = _read(release, images, labels, cluster, observer)
    uses = np.full(len(cases.digests), "")
    if release.training is not None:
        uses = release.training.uses_of(cases.digests, cases.hmacs)
    kept = cases.take(np.flatnonzero(uses == ""))
    if len(kept.digests) == 0:
        raise TableError(f"{labels}: the release was made with all {len(cases.digests):,} of these images")
    logits, features = release.by_members(kept.logits, kept.features)
    adaptation = recalibrate_for_annotators(release.calibration, logits, features, kept.counts, kept.groups)
    mix = calibration_mix(adaptation.calibration.apply(logits, features).class_probs, kept.counts)
    predicted = release.calibration.apply(logits, features)
    before = predicted.class_probs, predicted.disagreement_probs
    after = adaptation.unseen.class_probs, adaptation.unseen.disagreement_probs
    figures = {BEFORE: _figures(kept, *before), AFTER: _figures(kept, *after)}
    change = paired_change(kept.counts, before, after, cluster=kept.cluster)
    adapted = _write(release, kept, adaptation, mix, figures, out, name or f"{release.card['name']} adapted", fuse)
    return {
        "release": str(out),
        "card_sha256": adapted.card_sha256,
        "adaptation": adaptation.figures,
        "figures": figures,
        "changes": {"L": change.loss.to_dict(), "L_D": change.disagreement_loss.to_dict()},
        "n_left_out": int((uses != "").sum()),
        "trained_on": "unknown" if release.training is None else "known",
        "n_without_labels": n_without,
        "n_unlike": None if release.detector is None else int(kept.unlike.sum()),
    }


def _read(
    release: Release, images: Path, labels: Path, cluster: str | None, observer: Callable[[int, int], None]
) -> tuple[_Cases, int]:
    """Read labelled images, and count those without a label."""
    predictor = Predictor(release)
    names, paths, hmacs = listed_images(images)
    table = read_labels(labels, release.classes)
    if not table.case_ids:
        raise TableError(f"{labels}: contains no label")
    position = {case: row for row, case in enumerate(names)}
    labelled = [table.case_ids[row] for row in table.case]
    missing = [case not in position for case in labelled]
    fail_at(place_of(labels, "LABELS"), missing, "case_id", f"no image in {images} of", labelled)
    patients = _patients(table, cluster, labels)
    rows = [position[case] for case in table.case_ids]
    seen: list[Prediction] = []
    digests: list[bytes] = []
    for start in range(0, len(rows), BATCH):
        pictures = [decode_file(paths[row]) for row in rows[start : start + BATCH]]
        seen.append(predictor.predict(pictures))
        digests += [pixel_digest(picture) for picture in pictures]
        observer(start + len(pictures), len(rows))
    cases = _Cases(
        np.concatenate([batch.logits for batch in seen]),
        np.concatenate([batch.features for batch in seen]),
        table.counts(),
        [digest.hex() for digest in digests] if patients is None else patients,
        digests,
        None if hmacs is None else [hmacs[row] for row in rows],
        np.concatenate([batch.out_of_distribution for batch in seen]),
    )
    return cases, len(names) - len(rows)


def _patients(labels: Annotations, column: str | None, path: Path) -> list[str] | None:
    if column is None and "patient" not in labels.columns:
        return None
    named = column or "patient"
    if named not in labels.columns:
        raise TableError(f"{path}: there is no column {named!r} that names the patient")
    return [str(value) for value in case_column(labels, named, path)]


def _figures(cases: _Cases, class_probs: FloatArray, disagreement_probs: FloatArray) -> dict[str, EstimateDocument]:
    evaluation = evaluate(cases.counts, class_probs, disagreement_probs, cluster=cases.cluster)
    return {name: evaluation.metrics[name].to_dict() for name in CARD_METRICS}


def _write(
    release: Release,
    cases: _Cases,
    adaptation: Adaptation,
    mix: FloatArray,
    figures: dict[str, dict[str, EstimateDocument]],
    out: Path,
    name: str,
    fuse: Callable[[Release, Calibration], bytes] | None,
) -> Release:
    parent: CardContents = release.card
    card: CardContents = {
        **parent,
        "name": name,
        "parent": None,  # which only a service knows by its own identifier
        "adapted_from": {"name": release.card["name"], "card_sha256": release.card_sha256},
        "calibration": {**parent["calibration"], "adaptation": adaptation.figures, "class_mix": mix.tolist()},
        "disagreement": {"verdict": adaptation.figures["verdict"], "constant": adaptation.figures["constant"]},
        "held_out": figures,
        "n_held_out": len(cases.digests),
    }
    card.pop("recalibration", None)  # of another calibration
    files = {}
    if release.training is not None:
        index = release.training.with_calibration(cases.digests, cases.hmacs)
        files[INDEX_FILE], card["training"] = index.to_bytes(), index.document()
    if fuse is not None:
        files["fused.onnx"] = fuse(release, adaptation.calibration)
    return write_recalibrated(out, release, adaptation.calibration, card, files)


_CHECKED = "Its out-of-distribution check was fitted when it was added, to {n:,} images that did not train it."


def add_ood_check(release: Release, images: Path, out: Path) -> Release:
    """Write a release again with a check that is fitted to images like those that it will predict."""
    if release.detector is not None:
        raise ReleaseError(f"{release.path}: already has an out-of-distribution check; omit --fit-ood-check")
    predictor, paths, detector = Predictor(release), listed_images(images)[1], None
    if len(paths) >= 2 * MIN_IMAGES:
        first, second = (_detector_inputs(predictor, paths[start::2]) for start in (0, 1))
        columns = feature_columns(release.preprocessing.size, release.preprocessing.channels)
        detector = fit_ood_detector(first, second, columns)
    if detector is None:
        raise ValueError(f"{images}: contains {len(paths):,} images; a check needs at least {2 * MIN_IMAGES}")
    kept = set(release.card["files"]) - {"calibration.json", "README.md"}
    files = {name: (release.path / name).read_bytes() for name in sorted(kept)}
    files[FAMILIARITY_FILE] = detector.to_bytes()
    card: CardContents = release.card.copy()
    card["limits_of_use"] = [*card["limits_of_use"], _CHECKED.format(n=len(paths))]
    if "reference" in card:
        card["reference"] = {**card["reference"], "false_alarm_rate": detector.false_alarm_rate}
    return write_release(out, files, release.calibration, card, (release.path / "README.md").read_text())


def _detector_inputs(predictor: Predictor, paths: list[Path]) -> DetectorInputs:
    pixels = [predictor.pixels([decode_file(path)])[0] for path in paths]
    logits, features = predictor.outputs(pixels)
    return DetectorInputs(features, logits, compute_quality_features(np.stack(pixels)))
