"""What shift costs a release, and which detector notices it: kinds left out, strengths at random.

``python -m experiments.shift RUN [--save] [--images 304] [--source originals enlarged simulated]``: RUN is a finished
and calibrated run on the data set pbc or, for ``simulated``, on cells. Checks are fitted on its validation cells and
put on a scale by its test cells without those that are tried out, so that false alarms are those of new cells.
``originals``: the 304 photographs of about 360 px at hand, shifted and then cropped and averaged as an upload is.
``enlarged``: other test cells, of which only averages of 48 px are there, enlarged to 240 px before they are shifted.
``simulated``: new simulated cells, whose true class probabilities say how well φ is calibrated. Each image meets each
kind of shift once, with a strength drawn from 0 to 1.5 of the standard one; a row is a kind and a third of that range.

A detector is the set of checks whose strangest decides; the one that flags most of the harmful rows (agreement lower
by more than .10) of two thirds of the kinds is reported on the third that was left out, three times. The simplest
thing that could do the job is the distance of the features alone, which releases had before.
"""

import argparse
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict, cast

import numpy as np
from PIL import Image, ImageFilter

from experiments import RESULTS
from ml.datasets.base import datasets_folder
from ml.datasets.cells import simulate_cells
from ml.datasets.pbc import load_pbc
from ml.distributions.families import PredictiveDistribution
from ml.images.image_quality_features import CHECKS, compute_quality_features, feature_columns
from ml.images.standard_shifts import STANDARD_SHIFTS, StandardShift, turned_hue
from ml.metrics.cases import agreement_terms
from ml.metrics.losses import exact_metrics
from ml.release.ood_detector import FEATURES, DetectorInputs, OodDetector, fit_feature_distance, fit_ood_detector
from ml.release.predictor import Predictor
from ml.training.export import export_run
from ml.training.run_folder import RunFolder
from ml.util.arrays import FloatArray
from ml.util.files import read_json

COMMAND = "python -m experiments.shift RUN --save"
HARMFUL, HARMLESS, LARGEST, BINS = 0.10, 0.03, 1.5, 3
BEFORE, NOW = "features, one distance (before)", "all checks"
DETECTORS: dict[str, tuple[str, ...]] = {
    "features by class": (FEATURES,),
    "pixels": tuple(CHECKS),
    NOW: (*CHECKS, FEATURES),
    "focus and stain": ("focus", "stain"),
}
#: Mild shifts that may cost at most .03 of agreement, of pictures of about 360 px.
STATED: dict[str, Callable[[Image.Image], Image.Image]] = {
    "hue turned by .08": lambda image: Image.fromarray(turned_hue(np.asarray(image), 0.08)),
    "hue turned by −.08": lambda image: Image.fromarray(turned_hue(np.asarray(image), -0.08)),
    "blurred with a radius of 2": lambda image: image.filter(ImageFilter.GaussianBlur(2)),
}
_FIELD = 240  # px of a photograph that the network sees
_NEW_CELLS = 4242  # seed of simulated cells that no run has


class Row(TypedDict):
    """Images under one kind of shift, with strengths in one third of the range; flagged by each detector.

    ``cl_phi``: squared calibration error of φ by the true class probabilities (signed, its bias removed), where known.
    """

    kind: str
    strength: list[float]
    n: int
    agreement: float
    change: float
    change_se: float
    flagged: dict[str, float]
    cl_phi: float | None
    cl_phi_se: float | None


class LeftOut(TypedDict):
    """A detector that was chosen on other kinds, on these."""

    kinds: list[str]
    chosen: str
    mean_flagged: float | None
    rows_of_80: int
    harmful_rows: int


class Source(TypedDict):
    """What was found on one source of images; ``stated``: by how much the stated mild shifts change agreement."""

    n: int
    agreement: float
    stated: dict[str, float]
    cl_phi: float | None
    cl_phi_se: float | None
    false_alarms: dict[str, float]
    rows: list[Row]
    left_out: list[LeftOut]


class Results(TypedDict):
    """What is known of all runs, by how they were trained and then by the source of the images."""

    command: str
    runs: dict[str, dict[str, Source]]


@dataclass(frozen=True)
class Tried:
    """Images that are tried out.

    Attributes:
        cases: of the run's data set that they are, none of new ones.
        pictures: N of them.
        truth: (N, K) class probabilities, or the one label of each.
        field: side in px of what the network sees of a picture; None: all of it.
        exact: whether the truth is known.
    """

    cases: list[str]
    pictures: list[Image.Image]
    truth: FloatArray
    field: int | None
    exact: bool


def originals() -> dict[str, Image.Image]:
    path = datasets_folder("pbc_wbcatt", "its README") / "originals_test_304.zip"
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")]
        return {Path(name).name: Image.open(BytesIO(archive.read(name))).convert("RGB") for name in names}


def photographs(n: int, seed: int) -> dict[str, Tried]:
    """The originals at hand, and enlarged averages of other test cells."""
    data, at_hand = load_pbc(0), originals()
    order = {case: row for row, case in enumerate(data.case_ids)}
    truth = data.label_counts / data.label_counts.sum(axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    first = rng.permutation(sorted(at_hand)).tolist()[:n]
    others = [data.case_ids[row] for row in data.rows("test") if data.case_ids[row] not in at_hand]
    second = rng.permutation(others).tolist()[:n]
    large = [
        Image.fromarray(data.pixels[order[case]]).resize((_FIELD,) * 2, Image.Resampling.BICUBIC) for case in second
    ]
    pictures = {"originals": (first, [at_hand[case] for case in first]), "enlarged": (second, large)}
    return {
        name: Tried(cases, images, truth[[order[case] for case in cases]], _FIELD, exact=False)
        for name, (cases, images) in pictures.items()
    }


def simulated(n: int, seed: int) -> dict[str, Tried]:
    """Simulated cells that no run has seen."""
    cells = simulate_cells(n, seed=_NEW_CELLS + seed)
    truth = np.stack([cell.true_probs for cell in cells])
    return {"simulated": Tried([], [Image.fromarray(cell.pixels) for cell in cells], truth, None, exact=True)}


def shifted_image(
    image: Image.Image, shift: StandardShift, strength: float, field: int | None, seed: tuple[int, ...]
) -> Image.Image:
    """A picture shifted by a strength that is meant for the field that the network sees."""
    pixels = np.asarray(image)
    by_side = field is not None and shift.name in {"off centre", "defocus"}
    own = strength * field / min(pixels.shape[:2]) if by_side and field else strength
    return Image.fromarray(shift(pixels, own, seed))


class Judge:
    """Detectors fitted on a run, without the cells that are tried out."""

    def __init__(self, folder: RunFolder, predictor: Predictor, tried: set[str]) -> None:
        outputs, images = folder.read_outputs(), folder.read_held_out()
        assert images is not None
        self.predictor = predictor
        self.columns = feature_columns(predictor.release.preprocessing.size, 3)
        known = outputs.partition != "test"
        kept = ~known & ~np.isin(outputs.case_ids, list(tried))
        first, second = (
            DetectorInputs(outputs.features[rows], outputs.logits[rows], images.appearance[rows])
            for rows in (known, kept)
        )
        found = fit_ood_detector(first, second, self.columns)
        distance = fit_feature_distance(first.features, second.features)
        assert found is not None
        assert distance is not None
        self.found: OodDetector = found
        self.distance, self.second = distance, second
        self.before = float(np.quantile(distance(second.features), 0.99))
        own = self._scores(second)
        self.limits = {name: float(np.quantile(self._worst(own, parts), 0.99)) for name, parts in DETECTORS.items()}

    def _scores(self, seen: DetectorInputs) -> Mapping[str, FloatArray]:
        return self.found.strangeness(seen.features, seen.named, seen.appearance, self.columns)

    @staticmethod
    def _worst(scores: Mapping[str, FloatArray], parts: tuple[str, ...]) -> FloatArray:
        return np.asarray(np.max([scores[part] for part in parts], axis=0))

    def answers(self, pictures: list[Image.Image]) -> tuple[PredictiveDistribution, dict[str, FloatArray]]:
        """Predictions of N pictures, and for each detector whether it flags (N,)."""
        pixels = self.predictor.pixels(pictures)
        logits, features = self.predictor.outputs(pixels)
        scores = self._scores(DetectorInputs(features, logits, compute_quality_features(np.stack(pixels))))
        flags = {name: self._worst(scores, parts) > self.limits[name] for name, parts in DETECTORS.items()}
        flags[BEFORE] = self.distance(features) > self.before
        found = self.predictor.release.calibration.apply(logits, features)
        return found, {name: np.asarray(flag, dtype=float) for name, flag in flags.items()}


def calibration_of(tried: Tried, found: PredictiveDistribution, rows: FloatArray) -> tuple[float | None, float | None]:
    """Squared calibration error of φ on some images, and its standard error; None where the truth is not known."""
    if not tried.exact:
        return None, None
    error = exact_metrics(tried.truth[rows], found.class_probs[rows], found.disagreement_probs[rows])["CL_D"]
    return error.value, error.se


def agreement_of(judge: Judge, tried: Tried, pictures: list[Image.Image]) -> FloatArray:
    """Agreement (N,) of what is said of pictures with the truth."""
    return agreement_terms(tried.truth, judge.answers(pictures)[0].class_probs)


def measured(judge: Judge, tried: Tried, seed: int) -> Source:
    """Rows by kind and third of the range of strengths, with the false alarms of each detector."""
    plain, alarms = judge.answers(tried.pictures)
    before = agreement_terms(tried.truth, plain.class_probs)
    rows: list[Row] = []
    for number, shift in enumerate(STANDARD_SHIFTS):
        strengths = np.random.default_rng((seed, number)).uniform(0, LARGEST, len(tried.pictures))
        images = [
            shifted_image(picture, shift, float(strength), tried.field, (seed, number, k))
            for k, (picture, strength) in enumerate(zip(tried.pictures, strengths, strict=True))
        ]
        found, flags = judge.answers(images)
        now = agreement_terms(tried.truth, found.class_probs)
        place = np.minimum((strengths / LARGEST * BINS).astype(int), BINS - 1)
        for third in range(BINS):
            inside = place == third
            change, (error, se) = now[inside] - before[inside], calibration_of(tried, found, inside)
            rows.append(
                {
                    "kind": shift.name,
                    "strength": [third * LARGEST / BINS, (third + 1) * LARGEST / BINS],
                    "n": int(inside.sum()),
                    "agreement": float(now[inside].mean()),
                    "change": float(change.mean()),
                    "change_se": float(change.std(ddof=1) / np.sqrt(len(change))),
                    "flagged": {name: float(flag[inside].mean()) for name, flag in flags.items()},
                    "cl_phi": error,
                    "cl_phi_se": se,
                }
            )
        print(f"{shift.name}: " + "; ".join(f"{row['change']:+.3f}" for row in rows[-BINS:]), flush=True)
    error, se = calibration_of(tried, plain, np.ones(len(before), dtype=bool))
    return {
        "n": len(tried.pictures),
        "agreement": float(before.mean()),
        "stated": {
            name: float((agreement_of(judge, tried, [mild(p) for p in tried.pictures]) - before).mean())
            for name, mild in STATED.items()
        },
        "cl_phi": error,
        "cl_phi_se": se,
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


def told(name: str, found: Source) -> None:
    """Print what each detector flags, and how well φ stays calibrated where agreement hardly changes."""
    for detector in (BEFORE, *DETECTORS):
        share, enough, harmful = caught(found["rows"], detector)
        alarms = found["false_alarms"][detector]
        print(f"{name}, {detector}: {share} flagged, {enough} of {harmful} rows at 80 %, {alarms:.4f} false alarms")
    print(json.dumps(found["left_out"]))
    if found["cl_phi"] is not None:
        mild = [row for row in found["rows"] if row["change"] > -HARMLESS and row["cl_phi"] is not None]
        worst = max((row["cl_phi"] or 0.0 for row in mild), default=0.0)
        print(f"CL_φ unshifted {found['cl_phi']:.5f}; of {len(mild)} rows with little change the worst {worst:.5f}")


def trained_as(folder: RunFolder) -> str:
    """How a run was trained, in a few words that name it in the results."""
    train = read_json(folder.config)["train"]
    return f"{train['data']}, {train['augmentation']} augmentation, {train['epochs'] * train['passes']} passes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=304)
    parser.add_argument("--source", nargs="*", default=["originals", "enlarged"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results, after each source")
    asked = parser.parse_args()
    folder = RunFolder(asked.run)
    known = simulated if "simulated" in asked.source else photographs
    tried = {name: found for name, found in known(asked.images, asked.seed).items() if name in asked.source}
    path = RESULTS / f"{date.today()}_shift.json"
    with TemporaryDirectory() as temporary:
        predictor = Predictor(export_run(folder, Path(temporary) / "release"), threads=1, device="cpu")
        judge = Judge(folder, predictor, {case for images in tried.values() for case in images.cases})
        for name, images in tried.items():
            found = measured(judge, images, asked.seed)
            told(name, found)
            if asked.save:
                keep(path, trained_as(folder), name, found)


def keep(path: Path, run: str, name: str, found: Source) -> None:
    """Write what is known so far; other runs and sources in the file stay. Beside it, the same as tables."""
    empty: Results = {"command": COMMAND, "runs": {}}
    document = cast(Results, read_json(path)) if path.is_file() else empty
    document["runs"].setdefault(run, {})[name] = found
    path.write_text(json.dumps(document, indent=2) + "\n")
    path.with_suffix(".md").write_text(tables(document["runs"]))


def tables(runs: Mapping[str, Mapping[str, Source]]) -> str:
    """Markdown: what became of the goals, then a table for each source of images, the runs side by side."""
    lines = ["# What shift costs, and how much of it is flagged", f"`{COMMAND}`. Strength 1 is the standard shift."]
    lines.append(_as_table(_goals(runs)))
    for name in dict.fromkeys(source for found in runs.values() for source in found):
        beside = {run: found[name] for run, found in runs.items() if name in found}
        lines += [f"## {name.capitalize()}", _as_table(_rows(beside))]
    return "\n\n".join(lines) + "\n"


def _as_table(rows: list[list[str]]) -> str:
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows).replace("-0.", "−0.")


def _goals(runs: Mapping[str, Mapping[str, Source]]) -> list[list[str]]:
    harmed = f"rows that lower agreement by more than {HARMFUL:.2f}"
    head = ["trained on", "images", "n", "agreement", *STATED, "flagged unshifted", harmed]
    rows = [[*head, "of these at least 80 % flagged", "flagged of these", "by one distance of the features"]]
    for run, name, found in ((run, name, found) for run, sources in runs.items() for name, found in sources.items()):
        (share, enough, harmful), simple = (caught(found["rows"], detector) for detector in (NOW, BEFORE))
        alarms, stated = found["false_alarms"][NOW], [f"{change:+.3f}" for change in found["stated"].values()]
        row = [run, name, str(found["n"]), f"{found['agreement']:.3f}", *stated, f"{100 * alarms:.1f} %", str(harmful)]
        means = ["–" if value is None else f"{100 * value:.0f} %" for value in (share, simple[0])]
        rows.append([*row, str(enough), means[0], f"{means[1]}, {simple[1]} of {harmful}"])
    return rows


def _rows(beside: Mapping[str, Source]) -> list[list[str]]:
    head = ["shift", "strength"]
    for run, found in beside.items():
        head += [f"{run}: change of agreement", "flagged"]
        if found["cl_phi"] is not None:
            head.append(f"CL_φ ({found['cl_phi']:.4f} ± {found['cl_phi_se']:.4f} unshifted)")
    rows = [head]
    for together in zip(*(found["rows"] for found in beside.values()), strict=True):
        low, high = together[0]["strength"]
        rows.append([together[0]["kind"], f"{low:g} to {high:g}", *(cell for row in together for cell in _cells(row))])
    return rows


def _cells(row: Row) -> list[str]:
    cells = [f"{row['change']:+.3f} ± {row['change_se']:.3f}", f"{100 * row['flagged'][NOW]:.0f} %"]
    return cells if row["cl_phi"] is None else [*cells, f"{row['cl_phi']:.4f} ± {row['cl_phi_se']:.4f}"]


if __name__ == "__main__":
    main()
