"""Why MCDO+ts+α of Mix-MNIST has a larger CE_φ than in the paper: whose temperature and whose head members have.

``python -m experiments.mixture_steps RUN [--seed 5] [--redraws 20] [--save]``: RUN is the folder of ``secondread
reproduce mix-mnist``, whose kept outputs are read. Temperature and head are fitted on the mixture's likelihood (ours)
or on that of the single network (the paper), and crossed, with two labels per validation image that are drawn again
from their true probabilities. Then the temperature is fixed and only the head fitted, with the paper's labels.
"""

import argparse
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np

from experiments import RESULTS
from ml.calibration.calibrators import Calibration, calibrate
from ml.calibration.concentration import fit_concentration
from ml.calibration.scaling import Scaling
from ml.distributions.families import softmax_probs
from ml.metrics.losses import exact_metrics
from ml.metrics.posterior_gain import exact_posterior_epistemic_loss
from ml.reproduce.report import Setting
from ml.reproduce.scoring import markdown_table
from ml.reproduce.synthetic import SeedOutputs, seed_outputs
from ml.util.arrays import IntArray

LABELS = 2
METRICS = ("T", "CE_φ", "L_φ", "CE", "EL", "EL after a label")
TEMPERATURES = np.geomspace(0.7, 1.6, 9)


@dataclass(frozen=True)
class Experiment:
    """Outputs of one seed, and the labels of its validation images."""

    outputs: SeedOutputs
    counts: IntArray
    names: list[str]

    def fit(self, kind: str, *, refined: bool = False) -> Calibration:
        """Calibrate by the likelihood of ``Raw`` or ``MCDO``."""
        valid = self.outputs.part(kind, "valid")
        return calibrate(valid.logits, valid.features, self.counts, self.names, refined=refined).calibration

    def at_temperature(self, scaling: Scaling) -> Calibration:
        """Fit only the head to the mixture."""
        valid = self.outputs.part("MCDO", "valid")
        probs = softmax_probs(scaling(valid.logits))
        return Calibration(scaling, fit_concentration(valid.features, probs, self.counts)[0])

    def judge(self, calibration: Calibration) -> list[float]:
        """Metrics on the test images, of the mixture of calibrated members."""
        test, truth, counts = self.outputs.part("MCDO", "test"), self.outputs.true_probs, self.outputs.test_counts
        distribution = calibration.apply(test.logits, test.features)
        exact = exact_metrics(truth, distribution.class_probs, distribution.disagreement_probs, debias="paper")
        after = exact_posterior_epistemic_loss(counts, truth, distribution).value
        temperature = float(np.exp(calibration.scaling.log_temperature))
        return [temperature, *(exact[name].value for name in ("CE_D", "L_D", "CE", "EL")), after]

    def crossed(self) -> dict[str, list[float]]:
        """Temperature and metrics by way."""
        own, single = self.fit("MCDO"), self.fit("Raw")
        ways = {
            "both of the mixture": own,
            "temperature of the network, head of the mixture": self.at_temperature(single.scaling),
            "temperature of the mixture, head of the network": replace(single, scaling=own.scaling),
            "both of the network, as the paper": single,
        }
        return {way: self.judge(calibration) for way, calibration in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder with outputs-seed-….npz")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--redraws", type=int, default=20)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    outputs = seed_outputs(Setting("mix-mnist", options.run, from_outputs=options.run), options.seed)
    counts, names = outputs.valid_labels(LABELS)
    as_published = Experiment(outputs, counts, names)
    published = as_published.crossed() | {"as served": as_published.judge(as_published.fit("MCDO", refined=True))}
    rng, drawn = np.random.default_rng(options.seed), list[dict[str, list[float]]]()
    for number in range(options.redraws):
        drawn.append(Experiment(outputs, rng.multinomial(LABELS, outputs.valid_true_probs), names).crossed())
        print(f"redraw {number + 1} of {options.redraws}: {drawn[-1]}", flush=True)
    rows = []
    for way, values in published.items():
        again = np.array([each[way] for each in drawn if way in each])
        spread = [f"{v.mean():.4f} ({v.min():.4f} to {v.max():.4f})" for v in again.T] if len(again) else ["–"] * 6
        rows.append([way, *(f"{value:.4f}" for value in values), spread[0], spread[1]])
    grid = [as_published.judge(as_published.at_temperature(Scaling("temperature", t))) for t in np.log(TEMPERATURES)]
    ways = markdown_table(f"way | {' | '.join(METRICS)} | T of redraws | CE_φ of redraws", rows)
    heads = markdown_table(" | ".join(METRICS), [[f"{value:.4f}" for value in row] for row in grid])
    n_members = len(outputs.outputs["MCDO"].logits)
    page = f"# {__doc__.splitlines()[0]}\n\nSeed {options.seed}, {n_members} members of dropout; paper: CE_φ .0155.\n\n"
    page += f"The paper's labels, then mean and range of {options.redraws} redraws.\n\n{ways}\n\n"
    page += f"The head of the mixture at a fixed temperature.\n\n{heads}\n"
    print(page)
    if options.save:
        (RESULTS / f"{date.today()}_mixture-steps.md").write_text(page)


if __name__ == "__main__":
    main()
