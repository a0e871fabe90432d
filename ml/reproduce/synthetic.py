"""Synthetic experiment of the paper, with ensemble members.

Serving draws dropout in the head only (``ml.release.dropout_head``); the paper's numbers come from whole
stochastic passes.

One network a seed; its calibrators are fitted on validation images with two or five labels each. Rows named MCDO
and TTA use calibrators fitted on the ensemble's own likelihood; ``per member`` rows feed each member through the
deterministic network's calibrators, as the paper does. ``moment-matched`` rows are the single Dirichlet with the
mixture's mean and DPE, ``on the mean`` rows one whose head was fitted on the ensemble's mean outputs. Rows ending in
``+φ`` map the DPEs once more by themselves (``ml.calibration.disagreement_map``), which the paper does not do. Rows
ending in ``served`` are what a release has: one distribution, refined by ``ml.calibration.refining``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ml.calibration.calibrators import Calibration, calibrate
from ml.calibration.disagreement_map import fit_disagreement_map
from ml.calibration.scaling import Scaling
from ml.datasets.base import ImageDataset
from ml.datasets.blends import BLENDS, load_blend, read_blend_table
from ml.distributions.families import EnsembleCpe, PredictiveDistribution, moment_matched, softmax_probs
from ml.metrics import evaluate
from ml.metrics.losses import exact_metrics
from ml.metrics.posterior_gain import exact_posterior_epistemic_loss, posterior_epistemic_loss
from ml.metrics.sums import Debias
from ml.reproduce.setting import Setting, Truth
from ml.training.augmentation import augment
from ml.training.evaluation import full_precision_convolutions
from ml.training.networks import Network
from ml.training.run_folder import RunFolder, TrainConfig
from ml.training.train import choose_device, choose_precision, load_trained, train
from ml.util.arrays import FloatArray, IntArray
from ml.util.files import read_json, write_json

Floats32 = npt.NDArray[np.float32]
_BATCH = 500


@dataclass(frozen=True)
class Outputs:
    """Logits (N, K) and features (N, D) of a network, or (S, N, K) and (S, N, D) of its members."""

    logits: Floats32
    features: Floats32

    def rows(self, rows: npt.NDArray[np.intp]) -> "Outputs":
        """Pick cases."""
        return Outputs(self.logits[..., rows, :], self.features[..., rows, :])


def network_outputs(
    network: Network,
    dataset: ImageDataset,
    rows: npt.NDArray[np.intp],
    *,
    kind: str,
    samples: int,
    seed: int,
    device: torch.device,
    observer: Callable[[int, int], None],
) -> Outputs:
    """Run the network over cases, once or once a member, in float32.

    Args:
        network: trained.
        dataset: images.
        rows: cases.
        kind: ``Raw`` (one pass), ``MCDO`` (dropout on) or ``TTA`` (augmented images).
        samples: S, for the latter two.
        seed: of dropout and augmentation; each member and batch has its own stream.
        device: where to run.
        observer: called with batches done and in all.
    """
    network.eval()
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.train(kind == "MCDO")
    network.to(device)
    batches = np.split(rows, range(_BATCH, len(rows), _BATCH))
    members = 1 if kind == "Raw" else samples
    logits, features = [], []
    for done, batch in enumerate(batches):
        inputs = torch.from_numpy(dataset.preprocessing.normalise(dataset.pixels[batch])).to(device)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        parts = []
        for member in range(members):
            stream = (seed * 1_000 + member) * 100_003 + done
            torch.manual_seed(stream)
            generator = torch.Generator().manual_seed(stream)
            images = augment(inputs, dataset.orientation, generator) if kind == "TTA" else inputs
            with torch.inference_mode(), full_precision_convolutions(device):
                parts.append([tensor.float().cpu().numpy() for tensor in network(images)])
        logits.append(np.stack([part[0] for part in parts]))
        features.append(np.stack([part[1] for part in parts]))
        observer(done + 1, len(batches))
    network.eval()
    whole = Outputs(np.concatenate(logits, axis=1), np.concatenate(features, axis=1))
    return Outputs(whole.logits[0], whole.features[0]) if kind == "Raw" else whole


def cached(path: Path, compute: Callable[[], Outputs]) -> Outputs:
    """Outputs kept in a file, computed where it is not there yet."""
    if path.is_file():
        with np.load(path, allow_pickle=False) as data:
            return Outputs(data["logits"], data["features"])
    outputs = compute()
    temporary = path.with_name(path.stem + ".tmp.npz")
    np.savez(temporary, allow_pickle=False, logits=outputs.logits, features=outputs.features)
    temporary.replace(path)
    return outputs


LABELS = (2, 5)
SAMPLES, QUICK_SAMPLES = 20, 2
QUICK_CASES = 250
#: What is done to a network's outputs: nothing, the concentration head, temperature scaling, both, and both refined
#: by summaries of the logits and by a map of φ where these help out of fold, which is what a release has.
STEPS = ("", "+α", "+ts", "+ts+α", "+ts+α served")
METRICS = ("agreement", "accuracy", "L", "skill", "EL", "CE", "L_D", "skill_D", "CE_D", "EL_posterior")


@dataclass(frozen=True)
class Row:
    """One method on one seed.

    Attributes:
        method: name as in the paper, with additions in brackets.
        labels: labels per validation image.
        seed: of the network.
        metrics: by name; CE and CE_D in the paper's form, and with ``_pair`` in the unbiased one.
    """

    method: str
    labels: int
    seed: int
    metrics: dict[str, float]


def config(name: str, seed: int, quick: bool, precision: str) -> TrainConfig:
    """Training of the paper's network for ``mix-mnist`` or ``mix-cifar10``."""
    mnist = name == "mix-mnist"
    epochs = 2 if quick else (50 if mnist else 250)
    return TrainConfig(
        data=name.replace("-", "_"),
        data_options={"valid_labels": 2} | ({"cases": QUICK_CASES} if quick else {}),
        network="cnn3" if mnist else ("compact" if quick else "vgg16"),
        epochs=epochs,
        batch_size=128,
        learning_rate=1e-3,
        warmup_epochs=0 if mnist else min(5, epochs - 1),
        decay_epochs=() if mnist else (100, 150),
        patience=10 if mnist else epochs,
        seed=seed,
        precision=precision,
        compiled=False,
        backbone_weights=None,
        weight_averaging=0.999 if mnist else 0.0,
        shift=2 if mnist else 0,
    )


def seed_outputs(setting: Setting, seed: int) -> "SeedOutputs":
    """Train one seed (or resume), and run the network once, with dropout and, for photographs, augmented."""
    device = choose_device(setting.device)
    dataset = load_blend(BLENDS[setting.name], cases=QUICK_CASES if setting.quick else None)
    chosen = config(setting.name, seed, setting.quick, choose_precision("auto", device))
    folder = RunFolder(setting.out / f"seed-{seed}")

    def training(report: Any) -> None:
        done = report.epoch * report.steps + report.step
        setting.observer(f"seed {seed}: training, at most {chosen.epochs} epochs", done, chosen.epochs * report.steps)

    train(dataset, chosen, folder, device=device, observer=training)
    network = load_trained(folder)
    rows = dataset.rows("valid", "test")
    kinds = ("Raw", "MCDO") if setting.name == "mix-mnist" else ("Raw", "MCDO", "TTA")
    samples = QUICK_SAMPLES if setting.quick else SAMPLES

    def run(kind: str) -> Outputs:
        def passing(done: int, total: int) -> None:
            setting.observer(f"seed {seed}: {kind}", done, total)

        return network_outputs(
            network, dataset, rows, kind=kind, samples=samples, seed=seed, device=device, observer=passing
        )

    outputs = {kind: cached(folder.path / f"{kind.lower()}.npz", partial(run, kind)) for kind in kinds}
    return SeedOutputs(setting.name, dataset, rows, outputs, seed, folder.path)


@dataclass(frozen=True)
class SeedOutputs:
    """One seed's network on validation and test images.

    Attributes:
        name: of the reproduction.
        dataset: images.
        cases: rows of the data set that the outputs are of.
        outputs: by kind, ``Raw``, ``MCDO`` and ``TTA``.
        seed: of the network.
        folder: where fitted calibrators are kept, to resume from.
    """

    name: str
    dataset: ImageDataset
    cases: npt.NDArray[np.intp]
    outputs: dict[str, Outputs]
    seed: int
    folder: Path

    def part(self, name: str) -> npt.NDArray[np.intp]:
        """Positions of a partition among the cases."""
        return np.flatnonzero(self.dataset.partition[self.cases] == name)

    @property
    def test_counts(self) -> IntArray:
        """Label histograms (N, K) of the test images."""
        return self.dataset.label_counts[self.cases][self.part("test")]

    @property
    def true_probs(self) -> FloatArray:
        """True class probabilities (N, K) of the test images.

        Raises:
            ValueError: the data set has none.
        """
        probs = self.dataset.true_probs
        if probs is None:
            raise ValueError(f"data set {self.dataset.name!r} has no true probabilities")
        return probs[self.cases[self.part("test")]]

    def rows(self, labels: int, truth: Truth) -> Iterator[Row]:
        """Every method with that many labels per validation image."""
        score = partial(self._row, labels, truth)
        single = self.calibrations("Raw", labels)
        for kind, outputs in self.outputs.items():
            for step, calibration in (single if kind == "Raw" else self.calibrations(kind, labels)).items():
                held_out = outputs.rows(self.part("test"))
                distribution = calibration.apply(held_out.logits, held_out.features)
                yield score(kind + step, distribution)
                if step.endswith("α"):
                    yield self._mapped(labels, truth, kind + step, outputs, calibration)
                if kind != "Raw":
                    if step:
                        per_member = single[step].apply(held_out.logits, held_out.features)
                        yield score(f"{kind}{step} [per member]", per_member)
                    yield self._other_posterior(labels, truth, kind + step, distribution)
            if kind != "Raw":
                yield from self._on_the_mean(labels, truth, kind)

    def _other_posterior(self, labels: int, truth: Truth, method: str, distribution: PredictiveDistribution) -> Row:
        """Beside an ensemble's exact posterior: the matching Dirichlet's, or the one of the authors' code."""
        if isinstance(distribution, EnsembleCpe):
            loss = authors_posterior_loss(self.test_counts, self.true_probs, distribution)
            return Row(f"{method} [authors' posterior]", labels, self.seed, {"EL_posterior": loss})
        return self._row(labels, truth, f"{method} [moment-matched]", moment_matched(distribution))

    def _on_the_mean(self, labels: int, truth: Truth, kind: str) -> Iterator[Row]:
        mean = self._of_kind(kind + _MEAN).rows(self.part("test"))
        for step, calibration in self.calibrations(kind + _MEAN, labels).items():
            if step.endswith("α"):
                distribution = calibration.apply(mean.logits, mean.features)
                yield self._row(labels, truth, f"{kind}{step} [on the mean]", distribution)

    def _of_kind(self, kind: str) -> Outputs:
        """Outputs of a kind, or one network's that says what the ensemble says on average."""
        if not kind.endswith(_MEAN):
            return self.outputs[kind]
        members = self.outputs[kind.removesuffix(_MEAN)]
        logits = np.log(softmax_probs(members.logits).mean(axis=0))
        return Outputs(logits.astype(np.float32), members.features.mean(axis=0))

    def calibrations(self, kind: str, labels: int) -> dict[str, Calibration]:
        """Calibrators fitted on the validation images with that many labels each, by step."""
        path = self.folder / f"calibrations_{kind.lower().replace(' ', '_')}_{labels}.json"
        if not path.is_file():
            fitted = self._fitted(kind, labels)
            write_json(path, {step: calibration.to_dict() for step, calibration in fitted.items()})
        # in the order of the tables, whatever the file's
        document = read_json(path)
        return {step: Calibration.from_dict(document[step]) for step in STEPS}

    def _valid_labels(self, labels: int) -> tuple[IntArray, list[str]]:
        """Label histograms of the validation images with that many labels each, and the images' names."""
        table = read_blend_table(BLENDS[self.name], labels)
        by_case = dict(zip(table.case_ids, table.label_counts, strict=True))
        names = [self.dataset.case_ids[row] for row in self.cases[self.part("valid")]]
        return np.array([by_case[name] for name in names]), names

    def _mapped(self, labels: int, truth: Truth, method: str, outputs: Outputs, calibration: Calibration) -> Row:
        """Disagreement after a map of its own, fitted on the validation images too."""
        counts, names = self._valid_labels(labels)
        valid, test = (
            calibration.apply(part.logits, part.features)
            for part in (outputs.rows(self.part("valid")), outputs.rows(self.part("test")))
        )
        fitted_map = fit_disagreement_map(valid.disagreement_probs, counts, names, seed=self.seed)
        values = self._metrics(truth, test.class_probs, fitted_map(test.disagreement_probs))
        kept = {name: value for name, value in values.items() if name.startswith(("L_D", "skill_D", "CE_D"))}
        return Row(f"{method}+φ", labels, self.seed, kept)

    def _fitted(self, kind: str, labels: int) -> dict[str, Calibration]:
        counts, names = self._valid_labels(labels)
        outputs = self._of_kind(kind).rows(self.part("valid"))
        args = (outputs.logits, outputs.features, counts, names)
        return {
            "": Calibration(Scaling(), None),
            "+α": calibrate(*args, method="none", seed=self.seed, refined=False).calibration,
            "+ts": calibrate(*args, method="temperature", alpha=False, seed=self.seed).calibration,
            "+ts+α": calibrate(*args, method="temperature", seed=self.seed, refined=False).calibration,
            "+ts+α served": calibrate(*args, method="temperature", seed=self.seed).calibration,
        }

    def _metrics(self, truth: Truth, probs: FloatArray, dpe: FloatArray) -> dict[str, float]:
        counts, values = self.test_counts, dict[str, float]()
        for debias, suffix in _FORMS:
            if truth == "exact":
                exact = exact_metrics(self.true_probs, probs, dpe, debias=debias)
                metrics = {name: estimate.value for name, estimate in exact.items()}
            else:
                evaluation = evaluate(counts, probs, dpe, debias=debias)
                metrics = {name: estimate.value for name, estimate in evaluation.metrics.items()}
            kept = METRICS[:-1] if not suffix else ("CE", "CE_D")
            values |= {name + suffix: metrics[name] for name in kept}
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


#: Marks the ensemble's mean as a kind of its own.
_MEAN = " mean"
#: The paper's form, to compare with its tables, and the unbiased one.
_FORMS: tuple[tuple[Debias, str], ...] = (("paper", ""), ("pair", "_pair"))


def authors_posterior_loss(counts: IntArray, true_probs: FloatArray, prior: EnsembleCpe) -> float:
    """Posterior EL by the weights of the authors' code, Σ_k f_k^{y_k}: after one label c they are f_c + K − 1.

    They must be the product Π_k f_k^{y_k} = f_c, and the sum hardly moves: an erratum, shown with numbers.

    Args:
        counts: (N, K) label histograms; each label in turn is the expert's.
        true_probs: (N, K).
        prior: ensemble of points.
    """
    members, totals = prior.member_class_probs, counts.sum(axis=1)
    loss = np.zeros(len(counts))
    for label in range(counts.shape[1]):
        weights = members[:, :, label] + members.shape[2] - 1
        after = np.einsum("sn,snk->nk", weights / weights.sum(axis=0), members)
        loss += counts[:, label] / totals * ((after - true_probs) ** 2).sum(axis=1)
    return float(loss.mean())
