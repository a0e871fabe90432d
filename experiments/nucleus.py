"""Nucleus shape of real blood cells: trained on single labels, calibrated and tested on cells labelled twice."""

from dataclasses import asdict
from typing import Any

import numpy as np

from experiments import reproduce_from_arguments
from ml.agreement.coefficients import excess_disagreement_test, krippendorff_alpha
from ml.calibration.calibrators import Calibration, calibrate
from ml.calibration.scaling import Scaling
from ml.charts.reliability import reliability_diagram
from ml.charts.results import triage_chart
from ml.datasets.pbc import load_pbc_nucleus
from ml.distributions.families import PredictiveDistribution
from ml.metrics import evaluate
from ml.metrics.jackknife import EstimateDocument
from ml.metrics.triage_curves import net_benefit_difference, uncertainty_scores
from ml.release.dropout_head import SAMPLES, DropoutHead
from ml.reproduce.report import Reproduction, Setting
from ml.reproduce.scoring import SERVED, calibration_steps, markdown, scored_rows, triage_rows
from ml.training.calibrate import member_outputs
from ml.training.run_folder import CachedOutputs, RunFolder, TrainConfig
from ml.training.train import choose_device, choose_precision, train
from ml.util.arrays import IntArray

QUICK_CASES = 300
#: Share of cells sent for a second read, and the chance of disagreement at which one is just worth it.
CAPACITY, THRESHOLD = 1 / 3, 0.1


class NetBenefitRow(EstimateDocument):
    """Net benefit over that of a simple rule, at the same share of second reads and the same threshold."""

    over: str
    capacity: float
    threshold: float


def _config(setting: Setting, precision: str) -> TrainConfig:
    return TrainConfig(
        data="pbc_nucleus",
        data_options={"cases": QUICK_CASES} if setting.quick else {},
        network="compact",
        epochs=1 if setting.quick else 13,
        batch_size=128,
        learning_rate=2e-3,
        warmup_epochs=1,
        decay_epochs=(8, 11),
        patience=10,
        seed=setting.seeds[0],
        precision=precision,
        compiled=False,
        backbone_weights=None,
    )


def _outputs(setting: Setting) -> tuple[CachedOutputs, DropoutHead]:
    device = choose_device(setting.device)
    config = _config(setting, choose_precision("auto", device))
    folder = RunFolder(setting.out / f"seed-{setting.seeds[0]}")

    def training(report: Any) -> None:
        done = report.epoch * report.steps + report.step
        setting.observer("training", done, config.epochs * report.steps)

    train(
        load_pbc_nucleus(**config.data_options),
        config,
        folder,
        device=device,
        observer=training,
    )
    head = DropoutHead.draw(folder.read_head_layers(), samples=SAMPLES, seed=setting.seeds[0])
    return folder.read_outputs(), head


def _distributions(fitted: CachedOutputs, test: CachedOutputs, head: DropoutHead) -> dict[str, PredictiveDistribution]:
    groups = fitted.groups.tolist()
    steps = calibration_steps(fitted.logits, fitted.features, fitted.label_counts, groups)
    predicted = {method: step.apply(test.logits, test.features) for method, step in steps.items()}
    inside, outside = member_outputs(fitted, head), member_outputs(test, head)
    predicted["MCDO"] = Calibration(Scaling(), None).apply(*outside)
    for name, method in (("MCDO+α", "none"), ("MCDO+ts+α", "temperature")):
        both = calibrate(*inside, fitted.label_counts, groups, method=method, refined=False)  # type: ignore[arg-type]
        predicted[name] = both.calibration.apply(*outside)
    predicted["MCDO+ts+α served"] = calibrate(*inside, fitted.label_counts, groups).calibration.apply(*outside)
    return predicted


def net_benefit_rows(counts: IntArray, distribution: PredictiveDistribution) -> list[NetBenefitRow]:
    """Net benefit of the disagreement probability less that of each simple rule, at the same capacity."""
    return [
        {
            "over": name,
            "capacity": CAPACITY,
            "threshold": THRESHOLD,
            **net_benefit_difference(counts, distribution.disagreement_probs, score, CAPACITY, THRESHOLD).to_dict(),
        }
        for name, score in uncertainty_scores(distribution.class_probs).items()
    ]


def reproduce(setting: Setting) -> Reproduction:
    """Train, calibrate on 696 cells labelled twice, test on 304 others."""
    outputs, head = _outputs(setting)
    fitted = outputs.take(outputs.partition == "calibration")
    test = outputs.take(outputs.partition == "test")
    test = test.take(np.flatnonzero(test.label_counts.sum(axis=1) == 2))
    predicted = _distributions(fitted, test, head)
    rows = scored_rows(test.label_counts, predicted, None)
    alpha = krippendorff_alpha(test.label_counts)
    excess = excess_disagreement_test(test.label_counts, predicted["Raw+ts"].class_probs)
    best = predicted[SERVED]
    evaluation = evaluate(test.label_counts, best.class_probs, best.disagreement_probs)
    triage = triage_rows(test.label_counts, best, None)
    benefits = net_benefit_rows(test.label_counts, best)
    text = f"Calibrated on {len(fitted.case_ids)} cells labelled twice, tested on {len(test.case_ids)} others. "
    text += f"Krippendorff's α {alpha.value:.3f} ({alpha.low:.3f} to {alpha.high:.3f}). "
    text += (
        f"Do annotators disagree more than Raw+ts can represent? z = {excess.statistic:.2f}, p = {excess.p_value:.3f}."
    )
    text += "\n\nThe source names no patients, so errors are by cell and may be too small."
    text += "\n\nNet benefit of sending the third with the highest disagreement probability, at a threshold of "
    text += f"{THRESHOLD:.0%}: " + "; ".join(_benefit(row) for row in benefits) + "."
    return Reproduction(
        what="Nucleus shape of blood cells, labelled twice",
        rows=rows,
        text=f"{text}\n\n{markdown(rows)}",
        charts={
            "triage": triage_chart(triage),
            "reliability_disagreement": reliability_diagram(
                evaluation.disagreement_bins, title="served: disagreement", what="disagreement"
            ),
        },
        further={
            "krippendorff": alpha.to_dict(),
            "excess_disagreement": asdict(excess),
            "net_benefit_differences": benefits,
            "triage": triage,
        },
    )


def _benefit(row: NetBenefitRow) -> str:
    return f"{row['value']:+.3f} ({row['low']:.3f} to {row['high']:.3f}) over {row['over']}"


def main() -> None:
    reproduce_from_arguments("pbc-nucleus", __doc__, reproduce)


if __name__ == "__main__":
    main()
