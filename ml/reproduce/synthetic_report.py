"""Tables 1 and 2 of the paper and what goes beyond them, as Markdown and figures."""

from dataclasses import asdict
from typing import TypedDict

import numpy as np
from altair.typing import ChartType

from ml.calibration.calibrators import Calibration
from ml.calibration.scaling import Scaling
from ml.charts.reliability import reliability_diagram
from ml.charts.results import calibration_dispersion_map, method_chart, temperature_chart, triage_chart
from ml.charts.rows import MethodLosses, MethodPoint, TemperaturePoint, TriagePoint
from ml.distributions.families import PredictiveDistribution, softmax_probs
from ml.metrics import evaluate
from ml.metrics.losses import exact_metrics
from ml.reproduce.paper import CPE_TABLE, TABLE_1, TABLE_2, paper_numbers
from ml.reproduce.scoring import triage_rows
from ml.reproduce.setting import Reproduction, Setting
from ml.reproduce.synthetic import LABELS, Row, SeedOutputs, seed_outputs


class ComparedNumber(TypedDict):
    """A number of the paper's next to ours (mean over seeds)."""

    method: str
    labels: int
    metric: str
    ours: float
    paper: float
    worse: bool


Cells = dict[tuple[str, int, str], list[float]]
TITLES = {"mix-mnist": "Mix-MNIST", "mix-cifar10": "Mix-CIFAR-10"}
#: What was done to the paper's network.
_TRAINING = {
    "mix-mnist": "The paper's network with the paper's optimiser. Unlike the paper's, it saw training images shifted "
    "by up to two whole pixels, and the moving average of its weights was kept.",
    "mix-cifar10": "The paper's network, optimiser, rates and choice of weights; augmentation by mirrors, small turns, "
    "shifts, zooms and colours.",
}
#: Seeds on which the training was chosen, with their test curves in view.
CHOSEN_ON: dict[str, tuple[int, ...]] = {"mix-mnist": (0,)}
_QUICK = "A short version on few images: its numbers show only that everything runs."


def reproduce(setting: Setting) -> Reproduction:
    """Train or resume, score every row, and compare them with the paper's."""
    first = seed_outputs(setting, setting.seeds[0])
    rows = _seed_rows(setting, first)
    for seed in setting.seeds[1:]:
        rows += _seed_rows(setting, seed_outputs(setting, seed))
    cells = gathered(rows)
    verdict, further = verdicts(setting.name, rows)
    triage = _triage(first)
    title = TITLES[setting.name]
    return Reproduction(
        what=f"{title}: Tables 1 and 2, against the {'exact probabilities' if setting.truth == 'exact' else 'labels'}",
        rows=[asdict(row) for row in rows],
        text="\n\n".join(
            [
                _QUICK if setting.quick else _TRAINING[setting.name],
                verdict,
                tables(setting.name, cells),
            ]
        ),
        charts={**_charts(setting.name, cells, first), "triage": triage_chart(triage)},
        further={**further, "triage": triage},
    )


def verdicts(name: str, rows: list[Row]) -> tuple[str, dict[str, list[ComparedNumber]]]:
    """The comparison with the paper over all seeds, and over those that had no part in choosing the training."""
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


def _seed_rows(setting: Setting, outputs: SeedOutputs) -> list[Row]:
    rows: list[Row] = []
    for done, labels in enumerate(LABELS):
        setting.observer(f"seed {outputs.seed}: calibrating with {labels} labels", done, len(LABELS))
        rows += outputs.rows(labels, setting.truth)
    return rows


def gathered(rows: list[Row]) -> Cells:
    """Values over seeds by (method, labels, metric)."""
    cells: Cells = {}
    for row in rows:
        for name, value in row.metrics.items():
            cells.setdefault((row.method, row.labels, name), []).append(value)
    return cells


def _text(values: list[float] | None) -> str:
    if not values:
        return "–"
    spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


def compare_with_paper(name: str, cells: Cells) -> tuple[str, list[ComparedNumber]]:
    """Ours next to every number of the paper's that we have too: in a sentence, and as rows."""
    compared: list[ComparedNumber] = []
    for method, labels, metric, paper in paper_numbers(name):
        ours = cells.get((method, labels, metric))
        if ours is None:
            continue
        mean = float(np.mean(ours))
        worse = mean < paper if metric == "accuracy" else mean > paper
        # the paper prints four decimals
        worse = worse and abs(mean - paper) >= 0.00005
        compared.append(
            {"method": method, "labels": labels, "metric": metric, "ours": mean, "paper": paper, "worse": worse}
        )
    worse_ones = [entry for entry in compared if entry["worse"]]
    text = f"Of {len(compared)} numbers of the paper, ours (mean over seeds) are no worse in "
    text += f"{len(compared) - len(worse_ones)}."
    if worse_ones:
        text += " Worse: " + "; ".join(_worse(entry, cells) for entry in worse_ones) + "."
    return text, compared


def _worse(entry: ComparedNumber, cells: Cells) -> str:
    method, labels, metric = entry["method"], entry["labels"], entry["metric"]
    text = f"{method}({labels}) {metric} {entry['ours']:.4f} for {entry['paper']:.4f}"
    per_member = cells.get((f"{method} [per member]", labels, metric))
    return text if per_member is None else f"{text} ({np.mean(per_member):.4f} in the paper's way, per member)"


def tables(name: str, cells: Cells) -> str:
    """Table 1, the class probabilities and Table 2, in Markdown."""
    return "\n\n".join([_table_1(name, cells), _cpe(name, cells), _table_2(name, cells)])


def _methods(cells: Cells, metric: str) -> list[str]:
    return list(dict.fromkeys(method for method, _, name in cells if name == metric))


def _table_1(name: str, cells: Cells) -> str:
    lines = ["## Disagreement probabilities (Table 1)", ""]
    lines.append("| method | " + " | ".join(f"L_φ({n}) | paper | CE_φ({n}) | paper" for n in LABELS) + " |")
    lines.append("|---" * (1 + 4 * len(LABELS)) + "|")
    for method in _methods(cells, "L_D"):
        row = [method]
        for labels in LABELS:
            paper = TABLE_1[name][labels].get(method)
            for index, metric in enumerate(("L_D", "CE_D")):
                row += [_text(cells.get((method, labels, metric))), f"{paper[index]:.4f}" if paper else "–"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _cpe(name: str, cells: Cells) -> str:
    metrics = ("accuracy", "L", "EL", "CE")
    lines = ["## Class probabilities, two labels per validation image", ""]
    lines.append("| method | " + " | ".join(f"{metric} | paper" for metric in metrics) + " |")
    lines.append("|---" * (1 + 2 * len(metrics)) + "|")
    for method in _methods(cells, "L"):
        # the concentration does not change class probabilities, what is served does
        if "α" in method and not method.endswith("served"):
            continue
        paper = CPE_TABLE[name].get(method)
        row = [method]
        for index, metric in enumerate(metrics):
            row += [_text(cells.get((method, 2, metric))), f"{paper[index]:.4f}" if paper else "–"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _table_2(name: str, cells: Cells) -> str:
    lines = ["## Posterior after one expert label (Table 2)", "", _ERRATUM, ""]
    lines.append("| method | " + " | ".join(f"EL({n}) | EL′({n}) | paper EL → EL′" for n in LABELS) + " |")
    lines.append("|---" * (1 + 3 * len(LABELS)) + "|")
    for method in _methods(cells, "EL_posterior"):
        if method in {"Raw", "Raw+ts"}:  # points: labels do not move them
            continue
        row = [method]
        for labels in LABELS:
            paper = TABLE_2[name][labels].get(method.removesuffix(" [authors' posterior]"))
            row += [_text(cells.get((method, labels, metric))) for metric in ("EL", "EL_posterior")]
            row.append(f"{paper[0]:.4f} → {paper[1]:.4f}" if paper else "–")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


_ERRATUM = (
    "Rows `authors' posterior` weigh the members as the authors' code does, by Σ_k f_k^{y_k}; it must be the product "
    "Π_k f_k^{y_k}, which the rows without brackets use. The sum hardly moves an ensemble: the paper's finding that "
    "ensembles learn little from a label is an artefact. Posteriors of MCDO+α and MCDO+ts+α are exact Dirichlet "
    "mixtures, which the paper leaves out."
)


def _charts(name: str, cells: Cells, outputs: SeedOutputs) -> dict[str, ChartType]:
    comparison: list[MethodPoint] = []
    for labels in LABELS:
        for method in [method for method in _methods(cells, "CE_D") if "[" not in method]:
            ours, paper = cells[method, labels, "CE_D"], TABLE_1[name][labels].get(method)
            ends = {"ours": (float(np.mean(ours)), min(ours), max(ours))}
            if paper is not None:
                ends["paper"] = (paper[1],) * 3
            for who, (value, low, high) in ends.items():
                panel = f"{labels} labels per validation image"
                comparison.append(
                    {"method": method, "labels": panel, "who": who, "value": value, "low": low, "high": high}
                )
    return {
        "ce_disagreement": method_chart(comparison, measure="calibration error CE_φ of the DPE"),
        "calibration_dispersion": calibration_dispersion_map(_dispersion(outputs)),
        "temperature": _temperature(outputs),
        **_reliability(outputs),
    }


def _distributions(outputs: SeedOutputs, kind: str) -> dict[str, PredictiveDistribution]:
    test = outputs.outputs[kind].rows(outputs.part("test"))
    steps = outputs.calibrations(kind, LABELS[0])
    return {kind + step: calibration.apply(test.logits, test.features) for step, calibration in steps.items()}


def _dispersion(outputs: SeedOutputs) -> list[MethodLosses]:
    rows: list[MethodLosses] = []
    for kind in outputs.outputs:
        for method, distribution in _distributions(outputs, kind).items():
            if "α" in method:
                continue
            exact = exact_metrics(outputs.true_probs, distribution.class_probs, distribution.disagreement_probs)
            gap = exact["EL"].value - exact["CL"].value
            rows.append({"method": method, "family": kind, "CL": exact["CL"].value, "DL": gap})
    return rows


def _temperature(outputs: SeedOutputs) -> ChartType:
    test = outputs.outputs["Raw"].rows(outputs.part("test"))
    steps = outputs.calibrations("Raw", LABELS[0])
    fitted = float(np.exp(steps["+ts"].scaling.log_temperature))
    rows: list[TemperaturePoint] = []
    for temperature in np.geomspace(0.4, 3.0, 27):
        scaling = Scaling("temperature", float(np.log(temperature)))
        probs = softmax_probs(scaling(test.logits))
        for name, head in (("point", None), ("with head", steps["+ts+α"].concentration)):
            distribution = Calibration(scaling, head).apply(test.logits, test.features)
            exact = exact_metrics(outputs.true_probs, probs, distribution.disagreement_probs)
            measures = {"Disagreement: CE_φ": ("CE_D", name)}
            if head is None:
                measures |= {"Class probabilities": ("CE", "CE")}
            for panel, (metric, label) in measures.items():
                rows.append(
                    {
                        "panel": panel,
                        "temperature": float(temperature),
                        "measure": label,
                        "value": exact[metric].value,
                    }
                )
    return temperature_chart(rows, fitted)


def _triage(outputs: SeedOutputs) -> list[TriagePoint]:
    return triage_rows(outputs.test_counts, _distributions(outputs, "MCDO")["MCDO+ts+α"], None)


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
