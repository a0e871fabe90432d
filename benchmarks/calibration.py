"""How fast calibrators are fitted: L-BFGS here against the paper's Adam recipe, loss beside time.

The paper's recipe (§6.1): Adam, learning rate 1e-3, 50 epochs of batches of 128, patience 10, in float32. Both see
the same cached logits and features and report the same penalised loss on them.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from benchmarks.harness import Figures, interleaved, main
from ml.calibration.concentration import LOG_CONCENTRATION_PENALTY, concentration_loss, fit_concentration
from ml.calibration.scaling import fit_temperature, temperature_loss
from ml.distributions.families import softmax_probs

N, D, K, LABELS = 14_000, 128, 22, 5
EPOCHS, BATCH, RATE, PATIENCE = 50, 128, 1e-3, 10
ROUNDS = 5


def problem(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, features and label counts of simulated cases whose concentration follows the features."""
    rng = np.random.default_rng(seed)
    features = np.maximum(rng.normal(0.5, 1.0, (N, D)), 0)
    logits = features @ rng.normal(0, 0.35, (D, K))
    a = 1.0 + (features - features.mean(0)) @ rng.normal(0, 0.08, D)
    gammas = rng.standard_gamma(np.exp(a)[:, None] * softmax_probs(logits / 1.5) + 1e-9) + 1e-300
    counts = np.array([rng.multinomial(LABELS, row / row.sum()) for row in gammas])
    return logits, features, counts


def adam(parameters: list[torch.Tensor], loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The paper's recipe, stopping on a validation fifth."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    train, valid = order[: N * 4 // 5], order[N * 4 // 5 :]
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    best, since = float("inf"), 0
    for _ in range(EPOCHS):
        for rows in train[torch.randperm(len(train))].split(BATCH):
            optimiser.zero_grad()
            loss_of(rows).backward()
            optimiser.step()
        with torch.no_grad():
            loss = float(loss_of(valid))
        best, since = (loss, 0) if loss < best else (best, since + 1)
        if since >= PATIENCE:
            break


def adam_concentration(features: np.ndarray, probs: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Log concentrations (N,) by Adam, with lgamma in float32 as in the authors' code."""
    g, f, y = (torch.from_numpy(x).float() for x in (features, probs, counts))
    weight, bias = torch.zeros(D, requires_grad=True), torch.zeros(1, requires_grad=True)

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        a = g[rows] @ weight + bias
        alpha = torch.exp(a)[:, None] * f[rows].clamp(min=1e-7)
        total, n = alpha.sum(1), y[rows].sum(1)
        value = torch.lgamma(total) - torch.lgamma(total + n)
        value = value + (torch.lgamma(alpha + y[rows]) - torch.lgamma(alpha)).sum(1)
        return -value.sum() / n.sum() + LOG_CONCENTRATION_PENALTY * (a**2).mean()

    adam([weight, bias], loss_of)
    return (g @ weight + bias).detach().double().numpy()


def adam_temperature(logits: np.ndarray, counts: np.ndarray) -> float:
    """Log temperature by Adam."""
    u, y = torch.from_numpy(logits).float(), torch.from_numpy(counts).float()
    log_t = torch.zeros(1, requires_grad=True)

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        logs = functional.log_softmax(u[rows] * torch.exp(-log_t), dim=1)
        return -(y[rows] * logs).sum() / y[rows].sum()

    adam([log_t], loss_of)
    return float(log_t.detach())


def measure(quick: bool) -> Figures:
    """Seconds and loss of each fit, and how many times as long Adam takes."""
    logits, features, counts = problem()
    probs = softmax_probs(logits / 1.5)
    torch.set_num_threads(1)
    loss: dict[str, float] = {}

    def head() -> None:
        fitted = fit_concentration(features, probs, counts)[0]
        loss["head"] = concentration_loss(probs, counts, fitted(features))[0]

    def head_by_adam() -> None:
        loss["head, Adam"] = concentration_loss(probs, counts, adam_concentration(features, probs, counts))[0]

    def temperature() -> None:
        loss["temperature"] = temperature_loss(logits, counts, fit_temperature(logits, counts)[0])[0]

    def temperature_by_adam() -> None:
        loss["temperature, Adam"] = temperature_loss(logits, counts, adam_temperature(logits, counts))[0]

    works = {
        "head": head,
        "head, Adam": head_by_adam,
        "temperature": temperature,
        "temperature, Adam": temperature_by_adam,
    }
    seconds = interleaved(works, 1 if quick else ROUNDS)
    return {
        "problem": {"N": N, "D": D, "K": K, "labels": LABELS},
        "seconds": seconds,
        "loss": loss,
        "ratio": {name: seconds[f"{name}, Adam"] / seconds[name] for name in ("head", "temperature")},
    }


if __name__ == "__main__":
    main(__doc__, {"calibration": measure})
