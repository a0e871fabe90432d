"""Eight named annotators of two classes: log loss of another annotator's label after one label.

Opinions are Dir(α0 f) with one α0. Annotators are tilted by their matrices, tilted by a shift of the log-odds, or
alike. A network that knows the panel's mean answer is calibrated on the fitting half, three labels a case. Annotators
are fitted on the same labels, and the exchangeable model, which takes them as alike, too. Every case of the other half
has a label by each annotator, and all pairs count. The reference is the formula: f ∝ exp(u / T + b), α0 and weakly
shrunk matrices, maximised together over all opinions, written here apart from the library.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, expit, logit

from experiments import reproduce_from_arguments
from ml.annotations import Annotations
from ml.annotators.choosing import choose_readers
from ml.annotators.confusions import ReaderModel
from ml.annotators.posterior import mixed_posterior
from ml.calibration.calibrators import calibrate
from ml.distributions.families import PredictiveDistribution
from ml.reproduce.report import Reproduction, Setting
from ml.util.arrays import FloatArray, IntArray

READERS, FITTED, JUDGED, LABELS, DRAWS = 8, 400, 400, 3, 6
CONCENTRATION = 3.0
PANELS = ("tilted", "tilted log-odds", "alike")
ARMS = ("exchangeable", "named", "formula")
NAMES = [f"reader {number}" for number in range(READERS)]
#: Share of other answers that the formula's matrices are pulled towards, and with how many labels per opinion.
OTHER, PULL = 0.05, 2.0


@dataclass(frozen=True)
class Panel:
    """Logits (N, 2) of the network and the class (N, R) that each annotator gives."""

    logits: FloatArray
    labels: IntArray


def panel(kind: str, seed: int) -> Panel:
    """Draw cases and the labels of all annotators."""
    rng = np.random.default_rng([PANELS.index(kind), seed])
    position = rng.normal(-0.5, 1.8, FITTED + JUDGED)
    share = rng.beta(CONCENTRATION * expit(position) + 1e-9, CONCENTRATION * expit(-position) + 1e-9)
    tilt = rng.permutation(np.linspace(-0.5, 1, READERS))
    if kind == "tilted log-odds":
        answers = expit(logit(np.clip(share, 1e-9, 1 - 1e-9))[:, None] + 1.5 * tilt)
        mean = expit(position[:, None] + 1.5 * tilt).mean(axis=1)
    else:
        over, under = (0.45 * np.maximum(sign * tilt * (kind == "tilted"), 0) for sign in (1, -1))
        answers = share[:, None] * (1 - under) + (1 - share[:, None]) * over
        mean = expit(position) * (1 - under.mean()) + expit(-position) * over.mean()
    labels = (rng.uniform(size=answers.shape) < answers).astype(np.int64)
    return Panel(np.stack([np.zeros(len(mean)), 1.5 * logit(mean)], axis=1), labels)


def fitting_labels(drawn: Panel, seed: int) -> Annotations:
    """Three annotators at random for each case of the fitting half."""
    order = np.random.default_rng([9, seed]).uniform(size=(FITTED, READERS)).argsort(axis=1)[:, :LABELS]
    case = np.repeat(np.arange(FITTED), LABELS)
    return Annotations(case, order.ravel(), drawn.labels[case, order.ravel()], FITTED, READERS, 2)


def formula(chance: FloatArray, long: Annotations) -> FloatArray:
    """Parameters of the formula, of predictions (N,) of class 1: T and α0 as logarithms, b, then logits (2, R)."""
    log_odds, given = logit(chance), long.label.reshape(-1, LABELS)
    by = long.annotator.reshape(-1, LABELS)

    def loss(x: FloatArray) -> float:
        flips = expit(x[3:].reshape(2, READERS))
        pull = (OTHER * np.log(flips) + (1 - OTHER) * np.log1p(-flips)).sum()
        return -float(np.log(likelihood(x, log_odds, by, given)).sum()) - PULL * float(pull)

    start = np.concatenate([[0.0, 1.0, 0.0], np.full(2 * READERS, logit(OTHER))])
    bounds = [(-4, 4), (-6, 6), (-6, 6), *[(-8, 8)] * (2 * READERS)]
    return np.asarray(minimize(loss, start, method="L-BFGS-B", bounds=bounds, options={"maxfun": 10**6}).x)


def likelihood(x: FloatArray, log_odds: FloatArray, by: IntArray, given: IntArray) -> FloatArray:
    """Probability (N,) of the classes given (N, n) by annotators (N, n), summed over all opinions."""
    f = np.clip(expit(log_odds / np.exp(x[0]) + x[2]), 1e-9, 1 - 1e-9)
    first, second = np.exp(x[1]) * f, np.exp(x[1]) * (1 - f)
    over, under = expit(x[3:].reshape(2, READERS))
    # of opinions with m of class 1, the answers' probabilities in sum
    by_ones = np.zeros((by.shape[1] + 1, len(f)))
    by_ones[0] = 1.0
    for reader, answer in zip(by.T, given.T, strict=True):
        of_one, of_zero = (np.where(answer == 1, p, 1 - p) for p in (1 - under[reader], over[reader]))
        by_ones[1:], by_ones[0] = by_ones[1:] * of_zero + by_ones[:-1] * of_one, by_ones[0] * of_zero
    ones = np.arange(len(by_ones))[:, None]
    drawn = np.exp(betaln(first + ones, second + by.shape[1] - ones) - betaln(first, second))
    return np.asarray((by_ones * drawn).sum(axis=0))


def formula_chances(x: FloatArray, chance: FloatArray, labels: IntArray) -> FloatArray:
    """Probability (R, N, R) of the label of each annotator (last axis) after that of another (first axis)."""
    log_odds, n = logit(chance), len(chance)
    result = np.ones((READERS, n, READERS))
    for r in range(READERS):
        first = np.full((n, 1), r)
        alone = likelihood(x, log_odds, first, labels[:, [r]])
        for s in range(READERS):
            pair = np.concatenate([first, np.full((n, 1), s)], axis=1)
            result[r, :, s] = likelihood(x, log_odds, pair, labels[:, [r, s]]) / alone
    return result


def model_chances(model: ReaderModel, prior: PredictiveDistribution, labels: IntArray) -> FloatArray:
    """The same by a model."""
    n = len(labels)
    result = np.ones((READERS, n, READERS))
    for r in range(READERS):
        long = Annotations(np.arange(n), np.full(n, r), labels[:, r], n, READERS, 2)
        components = model.components(prior, NAMES)
        after = mixed_posterior(components, long)
        matrices = np.concatenate([part.confusions for part in components], axis=1)
        for s in range(READERS):
            result[r, :, s] = after.answer_probs(matrices[s])[np.arange(n), labels[:, s]]
    return result


def one_draw(kind: str, seed: int) -> dict[str, object]:
    """Log loss of each arm over all pairs, and its standard error over the cases of this draw."""
    drawn = panel(kind, seed)
    long, rows = fitting_labels(drawn, seed), slice(FITTED, None)
    groups, none = [str(case) for case in range(FITTED)], np.zeros((FITTED, 1))
    fit = calibrate(drawn.logits[:FITTED], none, long.counts(), groups, method="temperature", refined=False)
    priors = [fit.calibration.apply(logits, none) for logits in (drawn.logits[:FITTED], drawn.logits[rows])]
    choice, labels = choose_readers(priors[0], long, NAMES), drawn.labels[rows]
    x = formula(priors[0].class_probs[:, 1], long)
    chances = {
        "exchangeable": model_chances(choice.alike, priors[1], labels),
        "named": model_chances(choice.model, priors[1], labels),
        "formula": formula_chances(x, priors[1].class_probs[:, 1], labels),
    }
    other = ~np.eye(READERS, dtype=bool)[:, None, :]
    by_case = {arm: -(np.log(p) * other).sum(axis=(0, 2)) / (READERS * (READERS - 1)) for arm, p in chances.items()}
    over = by_case["named"] - by_case["formula"]
    error = float(over.std(ddof=1) / np.sqrt(len(over)))
    losses = {arm: float(loss.mean()) for arm, loss in by_case.items()}
    return {"panel": kind, "seed": seed, "kind": choice.kind, "error": error, **losses}


def reproduce(setting: Setting) -> Reproduction:
    """A row of the table per panel."""
    draws = 2 if setting.quick else DRAWS
    return result([one_draw(kind, seed) for kind in PANELS for seed in range(draws)])


def result(rows: list[dict[str, object]]) -> Reproduction:
    """The page of some draws."""
    draws = len(rows) // len(PANELS)
    text = f"Log loss of another annotator's label after one label, nats; {draws} draws, ± is the standard error over\n"
    text += (
        "draws; in one draw: that of named − formula over its cases. Exchangeable: annotators alike, refitted with\n"
    )
    text += "a class bias.\n\n"
    text += "| panel | exchangeable | named | formula | named − exchangeable | named − formula | in one draw |\n"
    text += "|---|---|---|---|---|---|---|\n"
    for kind in PANELS:
        text += _line(kind, [row for row in rows if row["panel"] == kind])
    return Reproduction(what="Named annotators of a simulated panel", rows=rows, text=text, charts={})


def _line(kind: str, rows: list[dict[str, object]]) -> str:
    values: Mapping[str, FloatArray] = {
        name: np.array([row[name] for row in rows], dtype=np.float64) for name in (*ARMS, "error")
    }
    cells = [f"{values[arm].mean():.4f}" for arm in ARMS]
    for other in ("exchangeable", "formula"):
        change = values["named"] - values[other]
        cells.append(f"{change.mean():+.4f} ± {change.std(ddof=1) / np.sqrt(len(rows)):.4f}")
    return f"| {kind} | {' | '.join(cells)} | {values['error'].mean():.4f} |\n"


def main() -> None:
    reproduce_from_arguments("named-panel", __doc__, reproduce)


if __name__ == "__main__":
    main()
