"""Tables 1 and 2 on blended images whose true label distribution is known (paper §6.1, §6.3, §6.4).

One network a seed; its calibrators are fitted on validation images with two or five labels each. Rows named MCDO
and TTA use calibrators fitted on the ensemble's own likelihood; ``per member`` rows feed each member through the
deterministic network's calibrators, as the paper does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ml.arrays import FloatArray, IntArray
from ml.calibration import Calibration, calibrate
from ml.datasets.base import ImageDataset
from ml.datasets.blends import BLENDS, load_blend, read_blend_table
from ml.distributions import EnsembleCpe, PredictiveDistribution, moment_matched
from ml.exact import exact_metrics
from ml.metrics import evaluate
from ml.posteriors import exact_posterior_epistemic_loss, posterior_epistemic_loss
from ml.reproduce.members import Outputs, cached, network_outputs
from ml.run_folder import RunFolder, TrainConfig
from ml.scaling import Scaling
from ml.train import choose_device, choose_precision, load_trained, train

Truth = Literal["exact", "counts"]
Observer = Callable[[str, int, int], None]
LABELS = (2, 5)
SAMPLES, QUICK_SAMPLES = 20, 4
QUICK_CASES = 700
METRICS = ("accuracy", "L", "EL", "CE", "L_D", "CE_D", "EL_posterior")


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
    epochs = 2 if quick else (100 if mnist else 250)
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
        finish_epochs=10 if mnist and not quick else 0,
    )


def seed_rows(
    name: str, out: Path, seed: int, *, truth: Truth, quick: bool, device_name: str, observer: Observer
) -> list[Row]:
    """Train (or go on), run the members, calibrate, and score every row of one seed."""
    device = choose_device(device_name)
    dataset = load_blend(BLENDS[name])
    dataset = dataset.thinned(QUICK_CASES) if quick else dataset
    chosen = config(name, seed, quick, choose_precision("auto", device))
    folder = RunFolder(out / f"seed-{seed}")
    epochs = chosen.epochs + chosen.finish_epochs

    def training(report: Any) -> None:
        observer(f"seed {seed}: training", report.epoch * report.steps + report.step, epochs * report.steps)

    train(dataset, chosen, folder, device=device, observer=training)
    network = load_trained(folder)
    rows = dataset.rows("valid", "test")
    kinds = ("Raw", "MCDO") if name == "mix-mnist" else ("Raw", "MCDO", "TTA")
    samples = QUICK_SAMPLES if quick else SAMPLES

    def run(kind: str) -> Outputs:
        def passing(done: int, total: int) -> None:
            observer(f"seed {seed}: {kind}", done, total)

        return network_outputs(
            network, dataset, rows, kind=kind, samples=samples, seed=seed, device=device, observer=passing
        )

    outputs = {kind: cached(folder.path / f"{kind.lower()}.npz", partial(run, kind)) for kind in kinds}
    found = []
    for labels in LABELS:
        observer(f"seed {seed}: calibrating with {labels} labels", labels, 2 * LABELS[-1])
        scored = _Scored(name, dataset, rows, outputs, labels, seed, truth)
        found += list(scored.rows())
    return found


@dataclass(frozen=True)
class _Scored:
    """One seed's outputs with one number of labels per validation image."""

    name: str
    dataset: ImageDataset
    cases: npt.NDArray[np.intp]
    outputs: dict[str, Outputs]
    labels: int
    seed: int
    truth: Truth

    def rows(self) -> Iterator[Row]:
        single = self._calibrations(self.outputs["Raw"])
        test = np.flatnonzero(self.dataset.partition[self.cases] == "test")
        counts = self.dataset.label_counts[self.cases][test]
        for kind, outputs in self.outputs.items():
            own = single if kind == "Raw" else self._calibrations(outputs)
            held_out = outputs.rows(test)
            for step, calibration in own.items():
                distribution = calibration.apply(held_out.logits, held_out.features)
                yield self._row(kind + step, distribution, counts, test)
                if kind == "Raw":
                    continue
                if step:
                    fed = single[step].apply(held_out.logits, held_out.features)
                    yield self._row(f"{kind}{step} [per member]", fed, counts, test)
                if step.endswith("α"):
                    yield self._row(f"{kind}{step} [moment-matched]", moment_matched(distribution), counts, test)
                elif isinstance(distribution, EnsembleCpe):
                    yield self._erratum(f"{kind}{step} [authors' posterior]", distribution, counts, test)

    def _calibrations(self, outputs: Outputs) -> dict[str, Calibration]:
        valid = np.flatnonzero(self.dataset.partition[self.cases] == "valid")
        table = read_blend_table(BLENDS[self.name], self.labels)
        by_case = dict(zip(table.case_ids, table.label_counts, strict=True))
        names = [self.dataset.case_ids[row] for row in self.cases[valid]]
        counts = np.array([by_case[name] for name in names])
        fitted = outputs.rows(valid)
        args = (fitted.logits, fitted.features, counts, names)
        plain = calibrate(*args, method="none", seed=self.seed).calibration
        scaled = calibrate(*args, method="temperature", seed=self.seed).calibration
        return {
            "": Calibration(Scaling(), None),
            "+α": plain,
            "+ts": Calibration(scaled.scaling, None),
            "+ts+α": scaled,
        }

    def _row(
        self, method: str, distribution: PredictiveDistribution, counts: IntArray, test: npt.NDArray[np.intp]
    ) -> Row:
        probs, dpe = distribution.class_probs, distribution.disagreement_probs
        true_probs = self._true_probs(test)
        values: dict[str, float] = {}
        for debias, suffix in (("paper", ""), ("pair", "_pair")):
            if self.truth == "exact":
                exact = exact_metrics(true_probs, probs, dpe, debias=debias)  # type: ignore[arg-type]
                found = {name: one.value for name, one in exact.items()}
            else:
                document = evaluate(counts, probs, dpe, debias=debias)["metrics"]  # type: ignore[arg-type]
                found = {name: one["value"] for name, one in document.items()}
            kept = METRICS[:-1] if not suffix else ("CE", "CE_D")
            values |= {name + suffix: found[name] for name in kept}
        values["EL_posterior"] = self._posterior(distribution, counts, true_probs)
        values["log_likelihood"] = float(distribution.log_likelihood(counts).sum() / counts.sum())
        return Row(method, self.labels, self.seed, values)

    def _true_probs(self, test: npt.NDArray[np.intp]) -> FloatArray:
        known = self.dataset.true_probs
        if known is None:
            raise ValueError(f"data set {self.dataset.name!r} tells no true probabilities")
        return known[self.cases[test]]

    def _posterior(self, distribution: PredictiveDistribution, counts: IntArray, true_probs: FloatArray) -> float:
        if self.truth == "exact":
            return exact_posterior_epistemic_loss(counts, true_probs, distribution).value
        return posterior_epistemic_loss(counts, distribution).value

    def _erratum(self, method: str, prior: EnsembleCpe, counts: IntArray, test: npt.NDArray[np.intp]) -> Row:
        """Posterior by the authors' weights Σ_k f_k^{y_k}, which for one label are f_c + K − 1."""
        members, true_probs = prior.member_class_probs, self._true_probs(test)
        totals = counts.sum(axis=1)
        loss = np.zeros(len(counts))
        for label in range(counts.shape[1]):
            weights = members[:, :, label] + members.shape[2] - 1
            after = np.einsum("sn,snk->nk", weights / weights.sum(axis=0), members)
            loss += counts[:, label] / totals * ((after - true_probs) ** 2).sum(axis=1)
        return Row(method, self.labels, self.seed, {"EL_posterior": float(loss.mean())})
