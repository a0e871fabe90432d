"""Training loss: the negative log-likelihood of label histograms."""

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional

#: The rarest and the most frequent class weigh at most so many times more or less than the average one.
_MOST = 10.0


def count_weighted_nll(
    logits: Tensor, label_counts: Tensor, log_weights: Tensor | None = None, whole: Tensor | None = None
) -> Tensor:
    """Mean of −Σ_k y_ik log f_ik per label (paper §6.1)."""
    counts, all_counts = (c.to(logits.dtype) for c in (label_counts, label_counts if whole is None else whole))
    if log_weights is not None:
        # the best logits + log w have odds of w_k times the true ones, so that the logits themselves stay those of the
        # true probabilities (Menon et al. 2021, eq. 10)
        weights = log_weights.exp()
        logits, counts, all_counts = logits + log_weights, counts * weights, all_counts * weights
    total = all_counts.sum().clamp(min=1)
    return -(counts * functional.log_softmax(logits, dim=1)).sum() / total


def balancing_weights(label_counts: npt.ArrayLike, exponent: float) -> npt.NDArray[np.float64]:
    """Class weights (mean count / count)^exponent, at most 10."""
    counts = np.asarray(label_counts, dtype=np.float64).sum(axis=0)
    present = counts > 0
    relative = np.ones(len(counts))
    relative[present] = counts[present].mean() / counts[present]
    return np.clip(relative, 1 / _MOST, _MOST) ** exponent
