"""Synthetic experiment of the paper: Tables 1 and 2, with ensembles.

MCDO and TTA rows use calibrators fitted on the ensemble's likelihood; ``per
member`` rows the deterministic network's, as the paper does. ``moment-matched``
is the Dirichlet with the mixture's mean and DPE, ``+φ`` maps DPEs once more,
``served`` is what a release has.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from altair.typing import ChartType
from torch import Tensor, nn

from ml.calibration.calibrators import Calibration, calibrate
from ml.calibration.disagreement_map import fit_disagreement_map
from ml.calibration.scaling import Scaling
from ml.charts.reliability import reliability_diagram
from ml.charts.results import calibration_dispersion_map, temperature_chart, triage_chart
from ml.charts.rows import MethodLosses, TemperaturePoint
from ml.datasets.base import ImageDataset
from ml.datasets.blends import BLENDS, load_blend, read_blend_table
from ml.distributions.families import EnsembleCpe, PredictiveDistribution, moment_matched, softmax_probs
from ml.metrics import evaluate
from ml.metrics.losses import exact_metrics
from ml.metrics.posterior_gain import exact_posterior_epistemic_loss, posterior_epistemic_loss
from ml.metrics.sums import Debias
from ml.reproduce.kept_outputs import (
    QUICK_REDRAWS,
    REDRAWS,
    Outputs,
    keep_outputs,
    read_kept_outputs,
    redrawn_calibrations,
)
from ml.reproduce.report import Reproduction, Setting, Truth
from ml.reproduce.scoring import markdown_table, triage_rows
from ml.training.augmentation import augment_for_training
from ml.training.evaluation import full_precision_convolutions
from ml.training.networks import Network
from ml.training.run_folder import RunFolder, TrainConfig
from ml.training.train import choose_device, choose_precision, load_trained, train
from ml.util.arrays import FloatArray, IntArray
from ml.util.files import file_sha256, read_json, write_json

_BATCH = 500
LABELS = (2, 5)
SAMPLES, QUICK_SAMPLES = 20, 2
QUICK_CASES = 250
#: What was done to the paper's network.
_TRAINING = {
    "mix-mnist": "The paper's network with the paper's optimiser. Unlike the paper's, it saw training images shifted "
    "by up to two whole pixels, and the moving average of its weights was kept.",
    "mix-cifar10": "The paper's network, optimiser, rates and choice of weights; augmentation by mirrors, small turns, "
    "shifts, zooms and colours.",
    "vgg16-bn": "Unlike the paper's, the network has batch normalisation, and was trained in one cycle of stochastic "
    "gradient descent; augmentation by mirrors and shifts by up to four whole pixels.",
}
#: The network that a CPU can train: batch normalisation and one cycle.
CYCLED = "vgg16-bn"
#: Seeds on which the training was chosen, with their test curves in view.
CHOSEN_ON: dict[str, tuple[int, ...]] = {"mix-mnist": (0,)}
#: Calibrations: none, concentration head, temperature, both, and both refined
#: as in a release.
STEPS = ("", "+α", "+ts", "+ts+α", "+ts+α served")
METRICS = ("agreement", "accuracy", "L", "skill", "EL", "CE", "L_D", "skill_D", "CE_D")
#: The paper's form, to compare with its tables, and the unbiased one.
_FORMS: tuple[tuple[Debias, str], ...] = (("paper", ""), ("pair", "_pair"))


@dataclass(frozen=True)
class Row:
    """One method on one seed; ``_pair`` marks the unbiased form."""

    method: str
    labels: int
    seed: int
    metrics: dict[str, float]


class ComparedNumber(TypedDict):
    """A number of the paper's next to ours (mean over seeds)."""

    method: str
    labels: int
    metric: str
    ours: float
    paper: float
    worse: bool


#: Values over seeds by method, labels per validation image and metric.
Cells = dict[tuple[str, int, str], list[float]]


def config(name: str, seed: int, quick: bool, precision: str, network: str | None = None) -> TrainConfig:
    """Training of the paper's network for ``mix-mnist`` or ``mix-cifar10``, or of ``vgg16-bn`` for the latter."""
    mnist = name == "mix-mnist"
    if network is not None and (mnist or network != CYCLED):
        raise ValueError(f"{name} is not reproduced with network {network!r}; mix-cifar10 is with {CYCLED}")
    cycled = network is not None
    epochs = 2 if quick else (50 if mnist else 24 if cycled else 250)
    return TrainConfig(
        data=name.replace("-", "_"),
        data_options={"valid_labels": 2} | ({"cases": QUICK_CASES} if quick else {}),
        network=network or ("cnn3" if mnist else ("compact" if quick else "vgg16")),
        epochs=epochs,
        batch_size=128,
        learning_rate=0.1 if cycled else 1e-3,
        warmup_epochs=0 if mnist or cycled else min(5, epochs - 1),
        decay_epochs=() if mnist or cycled else (100, 150),
        patience=10 if mnist else epochs,
        seed=seed,
        precision=precision,
        compiled=False,
        backbone_weights=None,
        weight_averaging=0.999 if mnist else 0.0,
        shift=2 if mnist else 4 if cycled else 0,
        augmentation="flips" if cycled else "light",
        schedule="one-cycle" if cycled else "steps",
    )


def network_outputs(
    network: Network,
    dataset: ImageDataset,
    rows: npt.NDArray[np.intp],
    kind: str,
    *,
    members: int,
    chosen: TrainConfig,
    device: torch.device,
    observer: Callable[[int, int], None],
) -> Outputs:
    """Run the network once (``Raw``), or by dropout or augmented images."""
    network.eval()
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.train(kind == "MCDO")
    network.to(device)
    varying = kind == "TTA" or any(isinstance(layer, nn.Dropout) for layer in network.backbone.modules())
    batches = np.split(rows, range(_BATCH, len(rows), _BATCH))
    logits, features = [], []
    for done, batch in enumerate(batches):
        inputs = torch.from_numpy(dataset.preprocessing.normalise(dataset.pixels[batch])).to(device)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        parts = []
        for member in range(members):
            # each member and batch has its own stream
            stream = (chosen.seed * 1_000 + member) * 100_003 + done
            torch.manual_seed(stream)
            generator = torch.Generator().manual_seed(stream)
            images = _view(inputs, dataset, chosen, generator) if kind == "TTA" else inputs
            with torch.inference_mode(), full_precision_convolutions(device):
                if varying or member == 0:
                    pooled = network.pooled(images)
                parts.append([tensor.float().cpu().numpy() for tensor in network.apply_head(pooled)])
        logits.append(np.stack([part[0] for part in parts]))
        features.append(np.stack([part[1] for part in parts]))
        observer(done + 1, len(batches))
    network.eval()
    whole = Outputs(np.concatenate(logits, axis=1), np.concatenate(features, axis=1))
    return Outputs(whole.logits[0], whole.features[0]) if kind == "Raw" else whole


def _view(images: Tensor, dataset: ImageDataset, chosen: TrainConfig, generator: torch.Generator) -> Tensor:
    """Images augmented as in the training."""
    kind, pixels = chosen.augmentation, chosen.shift
    return augment_for_training(images, dataset.preprocessing, dataset.orientation, kind, pixels, generator)


def seed_outputs(setting: Setting, seed: int) -> "SeedOutputs":
    """Train one seed (or resume) and compute its outputs."""
    device = choose_device(setting.device)
    dataset = load_blend(setting.name.replace("-", "_"), cases=QUICK_CASES if setting.quick else None)
    rows = dataset.rows("valid", "test")
    if setting.from_outputs is not None:
        path = setting.from_outputs / f"outputs-seed-{seed}.npz"
        kept, name = read_kept_outputs(path, len(rows), len(dataset.classes))
        fitted = setting.out / f"fitted-{file_sha256(path)[:12]}"
        fitted.mkdir(exist_ok=True)
        return SeedOutputs(dataset, rows, kept, seed, fitted, name)
    chosen = config(setting.name, seed, setting.quick, choose_precision("auto", device), setting.network)
    folder = RunFolder(setting.out / f"seed-{seed}")

    def training(report: Any) -> None:
        done = report.epoch * report.steps + report.step
        setting.observer(f"seed {seed}: training, at most {chosen.epochs} epochs", done, chosen.epochs * report.steps)

    train(dataset, chosen, folder, device=device, observer=training)
    network = load_trained(folder)
    samples = QUICK_SAMPLES if setting.quick else SAMPLES

    def outputs_of(kind: str) -> Outputs:
        path = folder.path / f"{kind.lower()}.npz"
        if path.is_file():
            with np.load(path, allow_pickle=False) as data:
                return Outputs(data["logits"], data["features"])
        outputs = network_outputs(
            network,
            dataset,
            rows,
            kind,
            members=1 if kind == "Raw" else samples,
            chosen=chosen,
            device=device,
            observer=partial(setting.observer, f"seed {seed}: {kind}"),
        )
        temporary = path.with_name(path.stem + ".tmp.npz")
        np.savez(temporary, allow_pickle=False, logits=outputs.logits, features=outputs.features)
        temporary.replace(path)
        return outputs

    kinds = ("Raw", "MCDO") if setting.name == "mix-mnist" else ("Raw", "MCDO", "TTA")
    outputs = {kind: outputs_of(kind) for kind in kinds}
    path = setting.out / f"outputs-seed-{seed}.npz"
    keep_outputs(path, outputs, chosen.network)
    return SeedOutputs(dataset, rows, outputs, seed, folder.path, chosen.network)


@dataclass(frozen=True)
class SeedOutputs:
    """One seed's network on validation and test images, by kind."""

    dataset: ImageDataset
    cases: npt.NDArray[np.intp]
    outputs: dict[str, Outputs]
    seed: int
    folder: Path
    network: str  # its name

    def part(self, kind: str, name: str) -> Outputs:
        """Outputs of a partition's cases."""
        return self.outputs[kind].rows(np.flatnonzero(self.dataset.partition[self.cases] == name))

    @property
    def test_counts(self) -> IntArray:
        """Label histograms (N, K) of the test images."""
        return self.dataset.label_counts[self.dataset.rows("test")]

    @property
    def true_probs(self) -> FloatArray:
        """True class probabilities (N, K) of the test images."""
        return self._true_probs("test")

    @property
    def valid_true_probs(self) -> FloatArray:
        """True class probabilities (N, K) of the validation images."""
        return self._true_probs("valid")

    def _true_probs(self, partition: str) -> FloatArray:
        probs = self.dataset.true_probs
        if probs is None:
            raise ValueError(f"data set {self.dataset.name!r} has no true probabilities")
        return probs[self.dataset.rows(partition)]

    def rows(self, labels: int, truth: Truth) -> Iterator[Row]:
        """Every method with that many labels per validation image."""
        single = self.calibrations("Raw", labels)
        for kind in self.outputs:
            test = self.part(kind, "test")
            for step, calibration in (single if kind == "Raw" else self.calibrations(kind, labels)).items():
                distribution = calibration.apply(test.logits, test.features)
                yield self._row(labels, truth, kind + step, distribution)
                if step.endswith("α"):
                    yield self._mapped(labels, truth, kind + step, kind, calibration)
                if kind == "Raw":
                    continue
                if step:
                    per_member = single[step].apply(test.logits, test.features)
                    yield self._row(labels, truth, f"{kind}{step} [per member]", per_member)
                if isinstance(distribution, EnsembleCpe):
                    loss = authors_posterior_loss(self.test_counts, self.true_probs, distribution)
                    name = f"{kind}{step} [authors' posterior]"
                    yield Row(name, labels, self.seed, {"EL_posterior": loss})
                else:
                    yield self._row(labels, truth, f"{kind}{step} [moment-matched]", moment_matched(distribution))

    def calibrations(self, kind: str, labels: int) -> dict[str, Calibration]:
        """Fit calibrators for each step, or resume them."""
        path = self.folder / f"calibrations_{kind.lower()}_{labels}.json"
        if not path.is_file():
            valid = self.part(kind, "valid")
            args = (valid.logits, valid.features, *self.valid_labels(labels))
            fitted = {
                "": Calibration(Scaling(), None),
                "+α": calibrate(*args, method="none", seed=self.seed, refined=False).calibration,
                "+ts": calibrate(*args, method="temperature", alpha=False, seed=self.seed).calibration,
                "+ts+α": calibrate(*args, method="temperature", seed=self.seed, refined=False).calibration,
                "+ts+α served": calibrate(*args, method="temperature", seed=self.seed).calibration,
            }
            write_json(path, {step: calibration.to_dict() for step, calibration in fitted.items()})
        document = read_json(path)
        return {step: Calibration.from_dict(document[step]) for step in STEPS}

    def redrawn(self, labels: int, draws: int) -> Iterator[Row]:
        """Losses of disagreement after calibrations on labels that are drawn again, a row each draw and method."""
        valid, test = self.part("Raw", "valid"), self.part("Raw", "test")
        _, names = self.valid_labels(labels)
        for fitted in redrawn_calibrations(valid, self.valid_true_probs, names, labels, draws=draws, seed=self.seed):
            for step, calibration in fitted.items():
                served = calibration.apply(test.logits, test.features)
                metrics = exact_metrics(self.true_probs, served.class_probs, served.disagreement_probs, debias="paper")
                yield Row(f"Raw{step}", labels, self.seed, {name: metrics[name].value for name in ("L_D", "CE_D")})

    def valid_labels(self, labels: int) -> tuple[IntArray, list[str]]:
        """Label histograms and names of validation images."""
        table = read_blend_table(self.dataset.name, labels)
        by_case = dict(zip(table.case_ids, table.label_counts, strict=True))
        names = [self.dataset.case_ids[row] for row in self.dataset.rows("valid")]
        return np.array([by_case[name] for name in names]), names

    def _mapped(self, labels: int, truth: Truth, method: str, kind: str, calibration: Calibration) -> Row:
        """Disagreement after its own map, fitted on validation images."""
        counts, names = self.valid_labels(labels)
        valid, test = (
            calibration.apply(part.logits, part.features)
            for part in (self.part(kind, "valid"), self.part(kind, "test"))
        )
        fitted_map = fit_disagreement_map(valid.disagreement_probs, counts, names, seed=self.seed)
        values = self._metrics(truth, test.class_probs, fitted_map(test.disagreement_probs))
        kept = {name: value for name, value in values.items() if name.startswith(("L_D", "skill_D", "CE_D"))}
        return Row(f"{method}+φ", labels, self.seed, kept)

    def _metrics(self, truth: Truth, probs: FloatArray, dpe: FloatArray) -> dict[str, float]:
        values = dict[str, float]()
        for debias, suffix in _FORMS:
            if truth == "exact":
                metrics = exact_metrics(self.true_probs, probs, dpe, debias=debias)
            else:
                metrics = evaluate(self.test_counts, probs, dpe, debias=debias).metrics
            values |= {name + suffix: metrics[name].value for name in (("CE", "CE_D") if suffix else METRICS)}
        return values

    def _row(self, labels: int, truth: Truth, method: str, distribution: PredictiveDistribution) -> Row:
        counts = self.test_counts
        values = self._metrics(truth, distribution.class_probs, distribution.disagreement_probs)
        if truth == "exact":
            values["EL_posterior"] = exact_posterior_epistemic_loss(counts, self.true_probs, distribution).value
        else:
            values["EL_posterior"] = posterior_epistemic_loss(counts, distribution).value
        values["log_likelihood"] = float(distribution.log_likelihood(counts).sum() / counts.sum())
        return Row(method, labels, self.seed, values)


def authors_posterior_loss(counts: IntArray, true_probs: FloatArray, prior: EnsembleCpe) -> float:
    """Posterior EL by the weights of the authors' code, Σ_k f_k^{y_k}."""
    # The product Π_k f_k^{y_k} = f_c would be right: an erratum of the code.
    members, totals = prior.member_class_probs, counts.sum(axis=1)
    loss = np.zeros(len(counts))
    for label in range(counts.shape[1]):
        weights = members[:, :, label] + members.shape[2] - 1
        after = np.einsum("sn,snk->nk", weights / weights.sum(axis=0), members)
        loss += counts[:, label] / totals * ((after - true_probs) ** 2).sum(axis=1)
    return float(loss.mean())


def reproduce(setting: Setting) -> Reproduction:
    """Train or resume, score every row, and compare them with the paper's."""
    first = seed_outputs(setting, setting.seeds[0])
    rows = _seed_rows(setting, first)
    for seed in setting.seeds[1:]:
        rows += _seed_rows(setting, seed_outputs(setting, seed))
    verdict, further = verdicts(setting.name, rows)
    redrawn = list(_redrawn_rows(setting, first))
    kind = "MCDO" if "MCDO" in first.outputs else "Raw"
    triage = triage_rows(first.test_counts, _distributions(first, kind)[f"{kind}+ts+α"], None)
    short = "A short version on few images: its numbers show only that everything runs."
    against = "exact probabilities" if setting.truth == "exact" else "labels"
    return Reproduction(
        what=f"{BLENDS[first.dataset.name].title}: Tables 1 and 2, against the {against}",
        rows=[asdict(row) for row in rows],
        text="\n\n".join(
            [
                short if setting.quick else _TRAINING.get(first.network, _TRAINING[setting.name]),
                verdict,
                tables(setting.name, gathered(rows)),
                _redraws_table(gathered(rows), gathered(redrawn)),
            ]
        ),
        charts={
            "calibration_dispersion": calibration_dispersion_map(_dispersion(first)),
            "temperature": _temperature(first),
            **_reliability(first),
            "triage": triage_chart(triage),
        },
        further={
            **further,
            "triage": triage,
            "network": first.network,
            "redrawn": [asdict(row) for row in redrawn],
        },
    )


def _seed_rows(setting: Setting, outputs: SeedOutputs) -> list[Row]:
    rows: list[Row] = []
    for done, labels in enumerate(LABELS):
        setting.observer(f"seed {outputs.seed}: calibrating with {labels} labels", done, len(LABELS))
        rows += outputs.rows(labels, setting.truth)
    return rows


def _redrawn_rows(setting: Setting, outputs: SeedOutputs) -> Iterator[Row]:
    draws = QUICK_REDRAWS if setting.quick else REDRAWS
    for done, labels in enumerate(LABELS):
        setting.observer(f"seed {outputs.seed}: {draws} redraws of {labels} labels", done, len(LABELS))
        yield from outputs.redrawn(labels, draws)


def _redraws_table(cells: Cells, redrawn: Cells) -> str:
    """CE_φ with the paper's labels of the validation images, and with labels that are drawn again."""
    rows = []
    for (method, labels, metric), values in redrawn.items():
        if metric == "CE_D":
            spread = f"{np.mean(values):.4f} | {min(values):.4f} to {max(values):.4f}"
            rows.append([f"{method}({labels})", f"{cells[method, labels, metric][0]:.4f}", spread])
    draws = max(map(len, redrawn.values()))
    head = f"method | CE_φ, the paper's labels | mean of {draws} redraws | range"
    return f"## Labels of the validation images drawn again\n\n{markdown_table(head, rows)}"


def paper_numbers(name: str) -> list[tuple[str, str, int, str, float]]:
    """Numbers of the paper (AISTATS 2021)."""
    with (Path(__file__).parent / "paper.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["data"] == name]
    return [(row["table"], row["method"], int(row["labels"]), row["metric"], float(row["value"])) for row in rows]


def gathered(rows: list[Row]) -> Cells:
    """Values over seeds by (method, labels, metric)."""
    cells: Cells = {}
    for row in rows:
        for name, value in row.metrics.items():
            cells.setdefault((row.method, row.labels, name), []).append(value)
    return cells


def verdicts(name: str, rows: list[Row]) -> tuple[str, dict[str, list[ComparedNumber]]]:
    """Comparison over all seeds, and over seeds unused in tuning."""
    text, compared = compare_with_paper(name, gathered(rows))
    further = {"compared_with_paper": compared}
    chosen_on = CHOSEN_ON.get(name, ())
    unseen = [row for row in rows if row.seed not in chosen_on]
    if unseen and len(unseen) < len(rows):
        others = sorted({row.seed for row in unseen})
        elsewhere, further["compared_on_unseen_seeds"] = compare_with_paper(name, gathered(unseen))
        text += f"\n\nThe training was chosen on seed {', '.join(map(str, chosen_on))}. "
        text += f"On the seeds that had no part in that ({', '.join(map(str, others))}): {elsewhere}"
    return text, further


def compare_with_paper(name: str, cells: Cells) -> tuple[str, list[ComparedNumber]]:
    """Compare with every number of the paper, in words and rows."""
    compared: list[ComparedNumber] = []
    worse_ones: list[str] = []
    for method, labels, metric, paper in dict.fromkeys(number[1:] for number in paper_numbers(name)):
        ours = cells.get((method, labels, metric))
        if ours is None:
            continue
        mean = float(np.mean(ours))
        # the paper prints four decimals
        worse = (mean < paper if metric == "accuracy" else mean > paper) and abs(mean - paper) >= 0.00005
        compared.append(
            {"method": method, "labels": labels, "metric": metric, "ours": mean, "paper": paper, "worse": worse}
        )
        if worse:
            text = f"{method}({labels}) {metric} {mean:.4f} for {paper:.4f}"
            per_member = cells.get((f"{method} [per member]", labels, metric))
            if per_member is not None:
                text += f" ({np.mean(per_member):.4f} in the paper's way, per member)"
            worse_ones.append(text)
    text = f"Of {len(compared)} numbers of the paper, ours (mean over seeds) are no worse in "
    text += f"{len(compared) - len(worse_ones)}."
    return text + (f" Worse: {'; '.join(worse_ones)}." if worse_ones else ""), compared


def tables(name: str, cells: Cells) -> str:
    """Table 1, the class probabilities and Table 2, in Markdown."""
    papers = {number[:4]: f"{number[4]:.4f}" for number in paper_numbers(name)}

    def ours(method: str, labels: int, metric: str) -> str:
        values = cells.get((method, labels, metric))
        if not values:
            return "–"
        return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")

    def both(table: str, method: str, labels: int, metric: str) -> list[str]:
        return [ours(method, labels, metric), papers.get((table, method, labels, metric), "–")]

    def posterior(method: str, labels: int) -> list[str]:
        key = method.removesuffix(" [authors' posterior]")
        paper = [papers.get(("2", key, labels, metric)) for metric in ("EL", "EL_posterior")]
        ends = [ours(method, labels, metric) for metric in ("EL", "EL_posterior")]
        return [*ends, f"{paper[0]} → {paper[1]}" if paper[0] else "–"]

    def methods(metric: str) -> list[str]:
        return list(dict.fromkeys(method for method, _, each in cells if each == metric))

    disagreement = [
        [m, *(text for n in LABELS for metric in ("L_D", "CE_D") for text in both("1", m, n, metric))]
        for m in methods("L_D")
    ]
    # the concentration does not change class probabilities, what is served does
    of_classes = [m for m in methods("L") if "α" not in m or m.endswith("served")]
    classes = {
        n: [[m, *(text for each in _CLASS_METRICS for text in both("CPE", m, n, each))] for m in of_classes]
        for n in LABELS
    }
    # labels do not move points
    after = [
        [m, *(text for n in LABELS for text in posterior(m, n))]
        for m in methods("EL_posterior")
        if m not in {"Raw", "Raw+ts"}
    ]
    heads = [f"{title}({n}) | paper" for n in LABELS for title in ("L_φ", "CE_φ")]
    return "\n\n".join(
        [
            "## Disagreement probabilities (Table 1)",
            markdown_table(f"method | {' | '.join(heads)}", disagreement),
            *(
                f"## Class probabilities, {n} labels per validation image\n\n"
                + markdown_table(f"method | {' | paper | '.join(_CLASS_METRICS)} | paper", rows)
                for n, rows in classes.items()
            ),
            "## Posterior after one expert label (Table 2)",
            _ERRATUM,
            markdown_table(
                "method | " + " | ".join(f"EL({n}) | EL′({n}) | paper EL → EL′" for n in LABELS),
                after,
            ),
        ]
    )


_CLASS_METRICS = ("accuracy", "L", "EL", "CE")
_ERRATUM = (
    "Rows `authors' posterior` weigh the members as the authors' code does, by Σ_k f_k^{y_k}; it must be the product "
    "Π_k f_k^{y_k}, which the rows without brackets use. The sum hardly moves an ensemble: the paper's finding that "
    "ensembles learn little from a label is an artefact. Posteriors of MCDO+α and MCDO+ts+α are exact Dirichlet "
    "mixtures, which the paper leaves out."
)


def _distributions(outputs: SeedOutputs, kind: str) -> dict[str, PredictiveDistribution]:
    test, steps = outputs.part(kind, "test"), outputs.calibrations(kind, LABELS[0])
    return {kind + step: calibration.apply(test.logits, test.features) for step, calibration in steps.items()}


def _dispersion(outputs: SeedOutputs) -> list[MethodLosses]:
    rows: list[MethodLosses] = []
    for kind in outputs.outputs:
        for method, distribution in _distributions(outputs, kind).items():
            if "α" not in method:
                exact = exact_metrics(outputs.true_probs, distribution.class_probs, distribution.disagreement_probs)
                gap = exact["EL"].value - exact["CL"].value
                rows.append({"method": method, "family": kind, "CL": exact["CL"].value, "DL": gap})
    return rows


def _temperature(outputs: SeedOutputs) -> ChartType:
    test, steps = outputs.part("Raw", "test"), outputs.calibrations("Raw", LABELS[0])
    rows: list[TemperaturePoint] = []
    for temperature in np.geomspace(0.4, 3.0, 27):
        scaling = Scaling("temperature", float(np.log(temperature)))
        for name, head in (("point", None), ("with head", steps["+ts+α"].concentration)):
            distribution = Calibration(scaling, head).apply(test.logits, test.features)
            exact = exact_metrics(
                outputs.true_probs, softmax_probs(scaling(test.logits)), distribution.disagreement_probs
            )
            measures = {"Disagreement: CE_φ": ("CE_D", name)}
            if head is None:
                measures |= {"Class probabilities": ("CE", "CE")}
            for panel, (metric, label) in measures.items():
                value = exact[metric].value
                rows.append({"panel": panel, "temperature": float(temperature), "measure": label, "value": value})
    return temperature_chart(rows, float(np.exp(steps["+ts"].scaling.log_temperature)))


def _reliability(outputs: SeedOutputs) -> dict[str, ChartType]:
    charts: dict[str, ChartType] = {}
    for method, distribution in _distributions(outputs, "Raw").items():
        evaluation = evaluate(outputs.test_counts, distribution.class_probs, distribution.disagreement_probs)
        safe = method.lower().replace("+", "_").replace("α", "alpha").replace(" ", "_")
        charts[f"reliability_disagreement_{safe}"] = reliability_diagram(
            evaluation.disagreement_bins, title=f"{method}: disagreement", what="disagreement"
        )
        if "α" not in method:
            charts[f"reliability_classes_{safe}"] = reliability_diagram(
                evaluation.class_bins, title=f"{method}: all classes", what="probability"
            )
    return charts
