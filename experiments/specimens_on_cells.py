"""Shares of specimens assembled from real blood cells, whose classes are one label each.

Networks of two strengths, trained without the test cells. A specimen has 100 test cells, a given share of them immature
granulocytes and the others as they come. Beside the specimen's own mix: the mean of the cells' posteriors, the count of
leading classes, and expectation–maximisation with the mix plugged in; then a few reads, chosen in several ways.
"""

from collections.abc import Callable, Mapping

import numpy as np

from experiments import reproduce_from_arguments
from ml.calibration.calibrators import calibration_mix
from ml.calibration.scaling import choose_scaling
from ml.datasets.pbc import CELL_TYPES, load_pbc
from ml.distributions.families import PointCpe, gini, softmax_probs
from ml.reproduce.report import Reproduction, Setting
from ml.specimens.cells import Group, Specimen, Threshold
from ml.specimens.reads import choose_reads
from ml.specimens.shares import SpecimenShares, measure_specimen
from ml.training.run_folder import CachedOutputs, RunFolder, TrainConfig
from ml.training.train import choose_device, choose_precision, train
from ml.util.arrays import FloatArray, IntArray

N_CELLS, N_SPECIMENS = 100, 150
SHARES = (0.0, 0.02, 0.05, 0.2, 0.6)
THRESHOLD = 0.05
#: Epochs of each network.
EPOCHS = (2, 4)
IMMATURE = 3
GROUP = Group("immature granulocytes", ("ig",), (Threshold(THRESHOLD),))
READS = {
    "none": (0, "none"),
    "ten at random": (10, "random"),
    "ten by disagreement": (10, "gini"),
    "six by value": (6, "value"),
    "ten by value": (10, "value"),
}


def outputs(setting: Setting, epochs: int) -> CachedOutputs:
    """Train a network, or read the outputs of one."""
    device = choose_device(setting.device)
    folder = RunFolder(setting.out / f"epochs-{epochs}")
    dataset = load_pbc().thinned(800) if setting.quick else load_pbc()
    config = TrainConfig(
        data="pbc",
        data_options={},
        network="compact",
        epochs=epochs,
        batch_size=128,
        learning_rate=2e-3,
        warmup_epochs=1,
        decay_epochs=(epochs - 1, epochs),
        patience=10,
        seed=setting.seeds[0],
        precision=choose_precision("auto", device),
        compiled=False,
        backbone_weights=None,
    )
    train(dataset, config, folder, device=device)
    return folder.read_outputs()


class Cells:
    """Calibrated predictions of test cells with their labels, and the mix of the calibration cells."""

    def __init__(self, cached: CachedOutputs) -> None:
        valid, test = (cached.take(cached.partition == part) for part in ("valid", "test"))
        cv = np.random.default_rng(0).random(len(valid.logits)) < 0.5
        logits, methods = valid.logits.astype(np.float64), ("temperature", "vector")
        choices = [choose_scaling(logits, valid.label_counts, ~cv, cv, method) for method in methods]
        # a bias of classes only where the held-out likelihood gains
        _, scaling, choice = min(choices, key=lambda found: found[2]["cv_after"])
        self.calibration = choice["chosen"]
        self.probs = softmax_probs(scaling(test.logits.astype(np.float64)))
        self.label = test.label_counts.argmax(axis=1)
        self.mix = calibration_mix(softmax_probs(scaling(valid.logits.astype(np.float64))), valid.label_counts)
        self.classes = tuple(kind.code for kind in CELL_TYPES)

    def draw(self, rng: np.random.Generator, inside: int) -> IntArray:
        """Rows of a specimen with so many immature granulocytes."""
        immature, others = np.flatnonzero(self.label == IMMATURE), np.flatnonzero(self.label != IMMATURE)
        few = len(immature) < inside or len(others) < N_CELLS - inside  # of a quick run alone
        parts = rng.choice(immature, inside, replace=few), rng.choice(others, N_CELLS - inside, replace=few)
        return np.concatenate(parts)

    def specimen(self, key: str, probs: FloatArray, counts: IntArray | None = None) -> Specimen:
        cells = tuple(f"{row:03d}" for row in range(N_CELLS))
        return Specimen(key, cells, self.classes, PointCpe(probs), self.mix, counts, target="label")

    def by_em(self, probs: FloatArray) -> FloatArray:
        """Posteriors (n, K) under the mix that expectation–maximisation finds."""
        pi = self.mix
        for _ in range(200):
            weights = probs * pi / self.mix
            weights /= weights.sum(axis=1, keepdims=True)
            pi = weights.mean(axis=0)
        return weights


def measure(one: Specimen) -> SpecimenShares:
    return measure_specimen(one, [GROUP])


def by_method(cells: Cells, rows: IntArray, key: str) -> Mapping[str, tuple[float, float, float]]:
    """Share and limits by every method."""
    probs = cells.probs[rows]
    count = float((probs.argmax(axis=1) == IMMATURE).mean())
    found = {"count of leading classes": (count, count, count)}
    for name, values in (("mean posterior", probs), ("EM", cells.by_em(probs))):
        drawn = (np.random.default_rng(0).random((4000, N_CELLS)) < values[:, IMMATURE]).mean(axis=1)
        found[name] = (float(values[:, IMMATURE].mean()), *(float(q) for q in np.quantile(drawn, (0.025, 0.975))))
    slide = measure(cells.specimen(key, probs)).groups[0].slide
    found["own mix"] = (slide.share, slide.low, slide.high)
    return found


def method_rows(cells: Cells, share: float, n_specimens: int, rng: np.random.Generator) -> list[dict[str, object]]:
    """Bias, coverage and wrong sides of the threshold by method at one true share."""
    estimates: dict[str, list[tuple[float, float, float]]] = {}
    patients = []
    for number in range(n_specimens):
        rows = cells.draw(rng, round(share * N_CELLS))
        for name, found in by_method(cells, rows, f"{share} {number}").items():
            estimates.setdefault(name, []).append(found)
        drawn = cells.draw(rng, int(rng.binomial(N_CELLS, share)))
        patient = measure(cells.specimen(f"{share} patient {number}", cells.probs[drawn])).groups[0].patient
        patients.append(patient.low - 1e-3 * (share == 0) <= share <= patient.high)
    result = []
    for name, found in estimates.items():
        point, low, high = np.array(found).T
        covered = (low - 1e-9 <= share) & (share <= high + 1e-9)
        result.append({
            "share": share,
            "method": name,
            "bias": float(point.mean() - share),
            "rmse": float(np.sqrt(((point - share) ** 2).mean())),
            "covered": float(covered.mean()),
            "wrong side": float(((point > THRESHOLD) != (share > THRESHOLD)).mean()),
            "patient covered": float(np.mean(patients)) if name == "own mix" else None,
        })  # fmt: skip
    return result


def read_rows(cells: Cells, share: float, n_specimens: int, rng: np.random.Generator) -> list[dict[str, object]]:
    """Error of the share after reads, which show a cell's label."""
    errors: dict[str, list[float]] = {name: [] for name in READS}
    for number in range(n_specimens):
        rows = cells.draw(rng, round(share * N_CELLS))
        one = cells.specimen(f"{share} reads {number}", cells.probs[rows])
        before = measure(one).groups[0]
        scores: dict[str, FloatArray] = {
            "random": rng.random(N_CELLS),
            "gini": gini(cells.probs[rows]),
            "value": before.read_values,
        }
        for name, (n_reads, by) in READS.items():
            counts = np.zeros((N_CELLS, len(cells.classes)), dtype=np.int64)
            for cell in choose_reads(scores[by], n_reads, one.cells) if n_reads else ():
                counts[int(cell), cells.label[rows[int(cell)]]] = 1
            after = measure(cells.specimen(one.key, cells.probs[rows], counts)).groups[0]
            errors[name].append(after.slide.share - share)
    rmse = {name: float(np.sqrt(np.mean(np.square(values)))) for name, values in errors.items()}
    return [{"share": share, "reads": name, "rmse": value} for name, value in rmse.items()]


def reproduce(setting: Setting) -> Reproduction:
    """Both tables, for each network."""
    n_specimens = 4 if setting.quick else N_SPECIMENS
    rows: list[dict[str, object]] = []
    text = f"{n_specimens} specimens of {N_CELLS} cells per row; wrong side: of {THRESHOLD:.0%}, by the point.\n"
    for epochs in (1,) if setting.quick else EPOCHS:
        cells = Cells(outputs(setting, epochs))
        right = float((cells.probs.argmax(axis=1) == cells.label).mean())
        rng = np.random.default_rng([setting.seeds[0], epochs])
        methods = [row for share in SHARES for row in method_rows(cells, share, n_specimens, rng)]
        reads = [row for share in (0.02, 0.1) for row in read_rows(cells, share, n_specimens, rng)]
        rows += [{"epochs": epochs, "right": right, **row} for row in (*methods, *reads)]
        text += f"\n## {epochs} epochs: {right:.1%} of the test cells right, calibrated by {cells.calibration}\n\n"
        text += _table(methods, "method", {"bias": _signed, "covered": _share, "wrong side": _share})
        own = [row["patient covered"] for row in methods if row["method"] == "own mix"]
        text += f"\nPatient's share covered, counts drawn: {', '.join(_share(value) for value in own)}.\n\n"
        text += _table(reads, "reads", {"rmse": lambda value: f"{1e4 * value:.0f}"}) + "\nErrors × 10⁻⁴.\n"
    return Reproduction(what="Shares of specimens of real blood cells", rows=rows, text=text, charts={})


def _signed(value: float) -> str:
    return f"{value:+.3f}"


def _share(value: float) -> str:
    return f"{value:.2f}"


def _table(rows: list[dict[str, object]], by: str, columns: Mapping[str, Callable[[float], str]]) -> str:
    """Markdown with a column per share."""
    shares = list(dict.fromkeys(row["share"] for row in rows))
    lines = [f"| {by} | | {' | '.join(f'{share:g}' for share in shares)} |", "|---|---|" + "---|" * len(shares)]
    for name in dict.fromkeys(row[by] for row in rows):
        for column, written in columns.items():
            values = [written(row[column]) for row in rows if row[by] == name]
            lines.append(f"| {name} | {column} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    reproduce_from_arguments("specimens-on-cells", __doc__, reproduce)


if __name__ == "__main__":
    main()
