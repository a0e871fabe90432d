"""What shift costs a release, and which detector notices it: kinds left out, strengths at random.

``python -m benchmarks.shift RUN [--save] [--images 304] [--source originals enlarged]``: RUN is a finished and
calibrated run on the data set pbc. Checks are fitted on its validation cells and put on a scale by its test cells
without those that are tried out, so that false alarms are those of new cells. ``originals``: the 304 photographs of
about 360 px at hand, shifted and then cropped and averaged as an upload is. ``enlarged``: other test cells, of which
only averages of 48 px are there, enlarged to 240 px before they are shifted. Each image meets each kind of shift once,
with a strength drawn from 0 to 1.5 of the standard one; a row is a kind and a third of that range.

A detector is the set of checks whose strangest decides; the one that flags most of the harmful rows (agreement lower
by more than .10) of two thirds of the kinds is reported on the third that was left out, three times. The simplest
thing that could do the job is the distance of the features alone, which releases had before.
"""

import argparse
import json
import zipfile
from collections.abc import Mapping
from datetime import date
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

import numpy as np
from PIL import Image

from ml.arrays import FloatArray
from ml.datasets.base import datasets_folder
from ml.datasets.pbc import load_pbc
from ml.images.appearance import CHECKS, appearance, columns_of
from ml.images.standard_shifts import STANDARD_SHIFTS, StandardShift
from ml.release.familiarity import FEATURES, Familiarity, Seen, fit_familiarity
from ml.release.feature_distance import fit_feature_distance
from ml.release.predictor import Predictor
from ml.training.export import export_run
from ml.training.run_folder import RunFolder

COMMAND = "python -m benchmarks.shift RUN --save"
HARMFUL, LARGEST, BINS = 0.10, 1.5, 3
BEFORE = "features, one distance (before)"
DETECTORS: dict[str, tuple[str, ...]] = {
    "features by class": (FEATURES,),
    "pixels": tuple(CHECKS),
    "pixels and features": (*CHECKS, FEATURES),
    "focus and stain": ("focus", "stain"),
}
_FIELD = 240  # px of a photograph that the network sees


class Row(TypedDict):
    """Images under one kind of shift, with strengths in one third of the range; flagged by each detector."""

    kind: str
    strength: list[float]
    n: int
    agreement: float
    change: float
    change_se: float
    flagged: dict[str, float]


class LeftOut(TypedDict):
    """A detector that was chosen on other kinds, on these."""

    kinds: list[str]
    chosen: str
    mean_flagged: float | None
    rows_of_80: int
    harmful_rows: int


class Source(TypedDict):
    """What was found on one source of images."""

    n: int
    agreement: float
    false_alarms: dict[str, float]
    rows: list[Row]
    left_out: list[LeftOut]


def originals() -> dict[str, Image.Image]:
    path = datasets_folder("pbc_wbcatt", "its README") / "originals_test_304.zip"
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")]
        return {Path(name).name: Image.open(BytesIO(archive.read(name))).convert("RGB") for name in names}


def shifted_image(image: Image.Image, shift: StandardShift, strength: float, seed: tuple[int, ...]) -> Image.Image:
    """A photograph shifted by a strength that is meant for the field that the network sees."""
    pixels = np.asarray(image)
    by_side = shift.name in {"off centre", "defocus"}
    own = strength * _FIELD / min(pixels.shape[:2]) if by_side else strength
    return Image.fromarray(shift(pixels, own, seed))


class Judge:
    """Detectors fitted on a run, without the cells that are tried out."""

    def __init__(self, folder: RunFolder, predictor: Predictor, tried: set[str]) -> None:
        outputs, images = folder.read_outputs(), folder.read_held_out()
        assert images is not None
        self.predictor = predictor
        self.columns = columns_of(predictor.release.preprocessing.size, 3)
        known = outputs.partition != "test"
        kept = ~known & ~np.isin(outputs.case_ids, list(tried))
        first, second = (
            Seen(outputs.features[rows], outputs.logits[rows], images.appearance[rows]) for rows in (known, kept)
        )
        found = fit_familiarity(first, second, self.columns)
        distance = fit_feature_distance(first.features, second.features)
        assert found is not None
        assert distance is not None
        self.found: Familiarity = found
        self.distance, self.second = distance, second
        self.before = float(np.quantile(distance(second.features), 0.99))
        own = self._scores(second)
        self.limits = {name: float(np.quantile(self._worst(own, parts), 0.99)) for name, parts in DETECTORS.items()}

    def _scores(self, seen: Seen) -> Mapping[str, FloatArray]:
        return self.found.strangeness(seen.features, seen.named, seen.appearance, self.columns)

    @staticmethod
    def _worst(scores: Mapping[str, FloatArray], parts: tuple[str, ...]) -> FloatArray:
        return np.asarray(np.max([scores[part] for part in parts], axis=0))

    def answers(self, pictures: list[Image.Image]) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Classes (N,) that are named, and for each detector whether it flags (N,)."""
        pixels = self.predictor.pixels(pictures)
        logits, features = self.predictor.outputs(pixels)
        scores = self._scores(Seen(features, logits, appearance(np.stack(pixels))))
        flags = {name: self._worst(scores, parts) > self.limits[name] for name, parts in DETECTORS.items()}
        flags[BEFORE] = self.distance(features) > self.before
        return logits.argmax(axis=1).astype(np.float64), {
            name: np.asarray(flag, dtype=float) for name, flag in flags.items()
        }


def measured(judge: Judge, pictures: list[Image.Image], truth: FloatArray, seed: int) -> Source:
    """Rows by kind and third of the range of strengths, with the false alarms of each detector."""
    named, alarms = judge.answers(pictures)
    right = named == truth
    rows: list[Row] = []
    for number, shift in enumerate(STANDARD_SHIFTS):
        strengths = np.random.default_rng((seed, number)).uniform(0, LARGEST, len(pictures))
        images = [
            shifted_image(p, shift, float(s), (seed, number, k))
            for k, (p, s) in enumerate(zip(pictures, strengths, strict=True))
        ]
        now, flags = judge.answers(images)
        place = np.minimum((strengths / LARGEST * BINS).astype(int), BINS - 1)
        for third in range(BINS):
            inside = place == third
            change = (now == truth)[inside].astype(float) - right[inside]
            rows.append(
                {
                    "kind": shift.name,
                    "strength": [third * LARGEST / BINS, (third + 1) * LARGEST / BINS],
                    "n": int(inside.sum()),
                    "agreement": float((now == truth)[inside].mean()),
                    "change": float(change.mean()),
                    "change_se": float(change.std(ddof=1) / np.sqrt(len(change))),
                    "flagged": {name: float(flag[inside].mean()) for name, flag in flags.items()},
                }
            )
        print(f"{shift.name}: " + "; ".join(f"{row['change']:+.3f}" for row in rows[-BINS:]), flush=True)
    return {
        "n": len(pictures),
        "agreement": float(right.mean()),
        "false_alarms": {name: float(flag.mean()) for name, flag in alarms.items()},
        "rows": rows,
        "left_out": left_out(rows),
    }


def left_out(rows: list[Row]) -> list[LeftOut]:
    """The detector chosen on two thirds of the kinds, on the third that was left out."""
    kinds = [shift.name for shift in STANDARD_SHIFTS]
    answers: list[LeftOut] = []
    for fold in range(3):
        out = set(kinds[fold::3])
        inner, outer = ([row for row in rows if (row["kind"] in out) == side] for side in (False, True))
        chosen = max(DETECTORS, key=lambda name: caught(inner, name)[0] or 0.0)
        share, enough, n = caught(outer, chosen)
        answers.append(
            {"kinds": sorted(out), "chosen": chosen, "mean_flagged": share, "rows_of_80": enough, "harmful_rows": n}
        )
    return answers


def caught(rows: list[Row], name: str) -> tuple[float | None, int, int]:
    """Mean share of flagged images over harmful rows, how many of these reach 80 %, and their number."""
    flags = [row["flagged"][name] for row in rows if row["change"] < -HARMFUL]
    return (float(np.mean(flags)) if flags else None), int(sum(flag >= 0.8 for flag in flags)), len(flags)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=304)
    parser.add_argument("--source", nargs="*", default=["originals", "enlarged"], choices=["originals", "enlarged"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="keep the figures in results/, after each source")
    asked = parser.parse_args()
    folder, data, photographs = RunFolder(asked.run), load_pbc(0), originals()
    order = {case: row for row, case in enumerate(data.case_ids)}
    truth = data.label_counts.argmax(axis=1)
    rng = np.random.default_rng(asked.seed)
    picked = {"originals": rng.permutation(sorted(photographs)).tolist()[: asked.images]}
    others = [data.case_ids[row] for row in data.rows("test") if data.case_ids[row] not in photographs]
    picked["enlarged"] = rng.permutation(others).tolist()[: asked.images]
    sources: dict[str, Source] = {}
    with TemporaryDirectory() as temporary:
        predictor = Predictor(export_run(folder, Path(temporary) / "release"), threads=1, gpu=False)
        judge = Judge(folder, predictor, {case for cases in picked.values() for case in cases})
        for name in asked.source:
            pictures = [
                photographs[case]
                if name == "originals"
                else Image.fromarray(data.pixels[order[case]]).resize((_FIELD,) * 2, Image.Resampling.BICUBIC)
                for case in picked[name]
            ]
            found = measured(judge, pictures, truth[[order[case] for case in picked[name]]], asked.seed)
            for detector in (BEFORE, *DETECTORS):
                print(
                    name,
                    detector,
                    "mean flagged, rows of 80 %, harmful rows:",
                    caught(found["rows"], detector),
                    found["false_alarms"][detector],
                )
            print(json.dumps(found["left_out"]))
            sources[name] = found
            if asked.save:
                path = Path(__file__).parent / "results" / f"{date.today()}_shift.json"
                path.write_text(json.dumps({"command": COMMAND, "sources": sources}, indent=2) + "\n")


if __name__ == "__main__":
    main()
