"""Stage 2: cached logits and features of a run → calibration, with held-out metrics before and after."""

from typing import Any

from ml.calibration import Calibration, calibrate
from ml.metrics import evaluate
from ml.run_folder import CachedOutputs, RunFolder, write_json
from ml.scaling import Method, Scaling

#: Metrics of the held-out part that go on the card.
CARD_METRICS = ("accuracy", "L", "EL", "CE", "L_D", "CE_D")


def calibrate_run(folder: RunFolder, *, method: Method, alpha: bool, seed: int = 0) -> dict[str, Any]:
    """Fit calibrators on a finished run and write ``calibration.json`` and its report.

    Args:
        folder: finished run.
        method: how class probabilities are calibrated.
        alpha: whether to fit the concentration head.
        seed: of the 80/20 split by patient.

    Returns:
        The report: fit, number of cases, held-out metrics raw, after the method, and after the head.

    Raises:
        ValueError: the run is unfinished, or a fit failed.
    """
    outputs = folder.read_outputs()
    config = folder.read_config()["dataset"]
    partition = str(config["calibration_partition"])
    part = outputs.take(outputs.partition == partition)
    found = calibrate(
        part.logits, part.features, part.label_counts, part.groups.tolist(), method=method, alpha=alpha, seed=seed
    )
    steps = {"raw": Calibration(Scaling(), None)}
    if method != "none":
        steps[method] = Calibration(found.calibration.scaling, None)
    if found.calibration.concentration is not None:
        steps["with concentration head"] = found.calibration
    held_out = outputs.take(outputs.partition == "test")
    report: dict[str, Any] = {
        "fit": found.report,
        "partition": partition,
        "split_by": config["split_by"],
        "n_held_out": len(held_out.case_ids),
        "held_out": {name: held_out_metrics(held_out, step) for name, step in steps.items()},
        "disagreement_calibrated": found.calibration.concentration is not None,
    }
    write_json(folder.calibration, found.calibration.to_dict())
    write_json(folder.report, report)
    return report


def held_out_metrics(outputs: CachedOutputs, calibration: Calibration) -> dict[str, Any]:
    """Metrics of a calibration on cached outputs, by patient where there are several cells of one."""
    if len(outputs.case_ids) == 0:
        return {}
    distribution = calibration.apply(outputs.logits, outputs.features)
    clustered = len(set(outputs.groups.tolist())) < len(outputs.groups)
    document = evaluate(
        outputs.label_counts,
        distribution.class_probs,
        distribution.disagreement_probs,
        cluster=outputs.groups if clustered else None,
    )
    return {name: document["metrics"][name] for name in CARD_METRICS}
