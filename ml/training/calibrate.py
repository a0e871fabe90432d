"""Stage 2: cached logits and features of a run → calibration, with held-out metrics before and after."""

from dataclasses import replace
from typing import Any

import numpy.typing as npt

from ml.calibration.calibrators import Calibration, FitReport, Level, calibrate
from ml.calibration.scaling import Method, Scaling
from ml.metrics import evaluate
from ml.metrics.cases import observed_disagreement
from ml.metrics.jackknife import EstimateDocument
from ml.metrics.losses import judge_disagreement
from ml.metrics.second_order import second_order_error
from ml.release.card import CARD_METRICS, DisagreementDocument
from ml.release.dropout_head import DropoutHead, Floats32
from ml.training.run_folder import CachedOutputs, CalibrationReport, RunFolder
from ml.util.files import write_bytes_atomically, write_json


def calibrate_run(
    folder: RunFolder,
    *,
    method: Method,
    alpha: bool,
    level: Level = "nominal",
    seed: int = 0,
    mc_dropout: int | None = None,
) -> CalibrationReport:
    """Fit calibrators to a finished run, and write them with a report."""
    outputs = folder.read_outputs()
    config = folder.read_config()["dataset"]
    partition = str(config["calibration_partition"])
    head = None
    if mc_dropout is not None:
        head = DropoutHead.draw(folder.read_head_layers(), samples=mc_dropout, seed=seed)
    part, held_out = (outputs.take(outputs.partition == name) for name in (partition, "test"))
    fitted, calibration, disagreement = fit_and_judge(
        part, held_out, head, method=method, alpha=alpha, seed=seed, level=level
    )
    steps = calibration_steps(fitted, calibration, method)
    report: CalibrationReport = {
        "fit": fitted.report,
        "partition": partition,
        "split_by": config["split_by"],
        "n_held_out": len(held_out.case_ids),
        "held_out": {name: held_out_metrics(held_out, step, head) for name, step in steps.items()},
        "mc_dropout": None if head is None else {"samples": head.samples, "seed": seed},
        "disagreement_calibrated": fitted.calibration.concentration is not None,
        "constant_concentration": head is None and calibration.has_constant_concentration,
        "disagreement": disagreement,
    }
    folder.dropout_head.unlink(missing_ok=True)
    if head is not None:
        write_bytes_atomically(folder.dropout_head, head.to_bytes())
    write_json(folder.calibration, calibration.to_dict())
    write_json(folder.report, report)
    return report


def fit_and_judge(
    part: CachedOutputs,
    held_out: CachedOutputs,
    head: DropoutHead | None,
    *,
    method: Method,
    alpha: bool,
    seed: int,
    level: Level,
) -> tuple[FitReport, Calibration, DisagreementDocument | None]:
    """Fit calibrators, and judge disagreement on held-out cases."""
    logits, features = member_outputs(part, head)
    groups = part.groups.tolist()
    fitted = calibrate(logits, features, part.label_counts, groups, method=method, alpha=alpha, seed=seed, level=level)
    return fitted, *with_judged_disagreement(fitted.calibration, part, held_out, head)


def calibration_steps(fitted: FitReport, calibration: Calibration, method: Method) -> dict[str, Calibration]:
    """Calibrations that a card compares, from the raw outputs to the last."""
    steps = {"raw": Calibration(Scaling(), None)}
    if method != "none":
        steps[method] = Calibration(fitted.calibration.scaling, None)
    if fitted.calibration.concentration is not None:
        steps["with concentration head"] = fitted.calibration
    if calibration.constant_disagreement is not None:
        steps["with constant disagreement"] = calibration
    return steps


def member_outputs(outputs: CachedOutputs, head: DropoutHead | None) -> tuple[Floats32, Floats32]:
    """Logits and features (N, …), or (S, N, …) of a dropout ensemble."""
    return (outputs.logits, outputs.features) if head is None else head(outputs.pooled)


def with_judged_disagreement(
    calibration: Calibration, fitted_on: CachedOutputs, held_out: CachedOutputs, head: DropoutHead | None
) -> tuple[Calibration, DisagreementDocument | None]:
    """Calibration with a constant φ if its own is worse held out."""
    if not (held_out.label_counts.sum(axis=1) >= 2).any():
        return calibration, None
    counts, cluster = held_out.label_counts, clusters_of(held_out)
    distribution = calibration.apply(*member_outputs(held_out, head))
    verdict = judge_disagreement(counts, distribution.disagreement_probs, cluster=cluster)
    paired = fitted_on.label_counts[fitted_on.label_counts.sum(axis=1) >= 2]
    if verdict != "worse" or head is not None or calibration.concentration is None or len(paired) == 0:
        judged: DisagreementDocument = {"verdict": verdict, "constant": None}
        error = second_order_error(counts, distribution, cluster=cluster)
        if error is not None:
            judged["second_order"] = error
        return calibration, judged
    constant = float(observed_disagreement(paired).mean())
    return replace(calibration, constant_disagreement=constant), {"verdict": verdict, "constant": constant}


def clusters_of(outputs: CachedOutputs) -> npt.NDArray[Any] | None:
    """Patient of each case, None where no two cases are of one."""
    return outputs.groups if len(set(outputs.groups.tolist())) < len(outputs.groups) else None


def held_out_metrics(
    outputs: CachedOutputs, calibration: Calibration, head: DropoutHead | None = None
) -> dict[str, EstimateDocument]:
    """Metrics of a calibration on cached outputs, by patient."""
    if len(outputs.case_ids) == 0:
        return {}
    distribution = calibration.apply(*member_outputs(outputs, head))
    evaluation = evaluate(
        outputs.label_counts,
        distribution.class_probs,
        distribution.disagreement_probs,
        cluster=clusters_of(outputs),
    )
    return {name: evaluation.metrics[name].to_dict() for name in CARD_METRICS}
