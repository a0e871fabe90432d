"""Fifty double reads of another crowd: CIFAR-10N (three quick labels) to CIFAR-10H (about 51 careful ones).

``python -m experiments.new_crowd [--draws 200] [--reads 50] [--save]``. A small network stands for VGG16, to run
on a processor in minutes: rectified responses to random whitened patches, pooled over quarters (Coates, Lee and Ng
2011), and a multinomial regression, trained on 10,000 photographs with CIFAR-10N's labels, calibrated on 7,500 others
with the same crowd's. Then each draw takes photographs with two CIFAR-10H labels each; what is learned from them is
judged on 4,000 other photographs with all labels, beside the constant learned from the same reads and what was shipped.
"""

import argparse
import json
from datetime import date

import numpy as np
import numpy.typing as npt

from experiments import RESULTS
from experiments.nodules import fit_regression
from ml.calibration.calibration import Calibration
from ml.calibration.calibrators import calibrate
from ml.calibration.domain_adaptation import fit_adaptation
from ml.calibration.joint_fit import LabelledOutputs
from ml.datasets.cifar import load_cifar10h
from ml.distributions.families import softmax_probs
from ml.metrics import evaluate
from ml.metrics.cases import observed_disagreement
from ml.reproduce.human_labels import thin
from ml.reproduce.report import versions
from ml.util.arrays import FloatArray, IntArray

SIDE, FILTERS, STRIDE = 6, 256, 2
TRAINED, JUDGED = 10_000, 4_000
BATCH = 250


def windows(pixels: npt.NDArray[np.uint8]) -> FloatArray:
    """Contrast-normalised patches (N, rows, columns, 108) of photographs (N, 32, 32, 3)."""
    view = np.lib.stride_tricks.sliding_window_view(pixels.astype(np.float32) / 255, (SIDE, SIDE), axis=(1, 2))
    patches = view[:, ::STRIDE, ::STRIDE].reshape(*view[:, ::STRIDE, ::STRIDE].shape[:3], -1)
    centred = patches - patches.mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(centred.var(axis=-1, keepdims=True) + 0.01))


class Patches:
    """Rectified responses to random whitened patches, pooled over quarters."""

    def __init__(self, pixels: npt.NDArray[np.uint8], rng: np.random.Generator) -> None:
        sample = windows(pixels[rng.choice(len(pixels), 400, replace=False)]).reshape(-1, 3 * SIDE * SIDE)
        self.mean = sample.mean(axis=0)
        values, vectors = np.linalg.eigh(np.cov((sample - self.mean).T))
        self.whiten = (vectors / np.sqrt(values + 0.1)) @ vectors.T
        picked = (sample[rng.choice(len(sample), FILTERS, replace=False)] - self.mean) @ self.whiten
        self.filters = (self.whiten @ (picked / np.linalg.norm(picked, axis=1, keepdims=True)).T).astype(np.float32)

    def __call__(self, pixels: npt.NDArray[np.uint8]) -> FloatArray:
        """Features (N, 1024)."""
        parts = []
        for start in range(0, len(pixels), BATCH):
            found = np.maximum((windows(pixels[start : start + BATCH]) - self.mean) @ self.filters - 0.5, 0)
            half = found.shape[1] // 2
            quarters = [
                found[:, rows, columns].mean(axis=(1, 2)) for rows in _halves(half) for columns in _halves(half)
            ]
            parts.append(np.concatenate(quarters, axis=1))
        return np.concatenate(parts).astype(np.float64)


def _halves(half: int) -> tuple[slice, slice]:
    return slice(None, half), slice(half, None)


def shipped() -> tuple[Calibration, dict[str, FloatArray], IntArray]:
    """Calibration by CIFAR-10N, and logits, features and CIFAR-10H's labels of the test photographs."""
    rng = np.random.default_rng(0)
    data = load_cifar10h(3, 0)
    train = rng.permutation(data.rows("train"))[:TRAINED]
    valid, test = data.rows("valid"), data.rows("test")
    patches = Patches(data.pixels[train], rng)
    inputs = {name: patches(data.pixels[rows]) for name, rows in (("train", train), ("valid", valid), ("test", test))}
    centre, spread = inputs["train"].mean(axis=0), inputs["train"].std(axis=0) + 1e-9
    weight = fit_regression((inputs["train"] - centre) / spread, data.label_counts[train])
    logits = {name: (x - centre) / spread @ weight[:-1] + weight[-1] for name, x in inputs.items()}
    names = [data.case_ids[row] for row in valid]
    fit = calibrate(logits["valid"], softmax_probs(logits["valid"]), data.label_counts[valid], names)
    print("calibrated on CIFAR-10N:", fit.report.get("refinement"))
    outputs = {"logits": logits["test"], "features": softmax_probs(logits["test"])}
    return fit.calibration, outputs, data.label_counts[test]


def one_draw(
    calibration: Calibration, outputs: dict[str, FloatArray], counts: IntArray, n_reads: int, seed: int
) -> dict[str, float]:
    """L_φ, CE_φ and L of what was shipped, of what the reads taught, and of their constant, on other photographs."""
    rows = np.random.default_rng([seed, 1]).permutation(len(counts))
    some, judged = rows[:n_reads], rows[n_reads : n_reads + JUDGED]
    reads = thin(counts[some], 2, seed)
    double_reads = LabelledOutputs.of(outputs["logits"][some], outputs["features"][some], reads)
    adapted = fit_adaptation(calibration, double_reads).calibration
    result = {}
    for name, made in (("shipped", calibration), ("adapted", adapted)):
        said = made.apply(outputs["logits"][judged], outputs["features"][judged])
        metrics = evaluate(counts[judged], said.class_probs, said.disagreement_probs).metrics
        result |= {f"{name} {metric}": metrics[metric].value for metric in ("L_D", "CE_D", "skill_D", "L", "EL")}
    constant = np.full(len(judged), observed_disagreement(reads).mean())
    result["constant L_D"] = evaluate(counts[judged], said.class_probs, constant).metrics["L_D"].value
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--reads", type=int, default=50, help="photographs with two labels each")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    options = parser.parse_args()
    calibration, outputs, counts = shipped()
    rows = [one_draw(calibration, outputs, counts, options.reads, seed) for seed in range(options.draws)]
    ratio = np.array([row["adapted L_D"] / row["constant L_D"] for row in rows])
    summary = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    summary |= {
        "draws": len(rows),
        "reads": options.reads,
        "better than the constant": float((ratio < 1).mean()),
        "worst ratio to the constant": float(ratio.max()),
        "worse than the constant by more than 5 %": float((ratio > 1.05).mean()),
        "agreement": float(evaluate(counts, softmax_probs(outputs["logits"])).metrics["agreement"].value),
    }
    for name, value in summary.items():
        print(f"{name:42s} {value:.4f}")
    if options.save:
        path = RESULTS / f"{date.today()}_new_crowd.json"
        document = {"what": __doc__.splitlines()[0], "versions": versions(), "summary": summary, "rows": rows}
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
