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
    """Mean negative log-likelihood of a label, −Σ_i Σ_k y_ik log f_ik / Σ n_i (paper §6.1).

    With weights of classes, labels of a class weigh w_k, and the likelihood is of softmax(logits + log w). What is best
    under the weighted labels has odds of w_k times the true ones, so that the logits themselves stay those of the true
    probabilities: rare classes are learned harder, and nothing has to be taken back (Menon et al. 2021, eq. 10).

    Args:
        logits: (N, K).
        label_counts: (N, K); a case with more labels weighs more, one without none.
        log_weights: (K,), None for equal ones.
        whole: label counts (M, K) of the batch of which these cases are a part, None where they are all of it; over its
            parts the losses add up to that of the batch.

    Returns:
        Scalar, in nats per label.
    """
    counts, all_counts = (c.to(logits.dtype) for c in (label_counts, label_counts if whole is None else whole))
    if log_weights is not None:
        weights = log_weights.exp()
        logits, counts, all_counts = logits + log_weights, counts * weights, all_counts * weights
    total = all_counts.sum().clamp(min=1)
    return -(counts * functional.log_softmax(logits, dim=1)).sum() / total


def balancing_weights(label_counts: npt.ArrayLike, exponent: float) -> npt.NDArray[np.float64]:
    """Weights of the classes, (mean count / count of the class)^exponent, at most tenfold; 1 for one without labels.

    Args:
        label_counts: (N, K) of the training cells.
        exponent: 0 for equal weights, 1 as if all classes were equally frequent.
    """
    counts = np.asarray(label_counts, dtype=np.float64).sum(axis=0)
    present = counts > 0
    relative = np.ones(len(counts))
    relative[present] = counts[present].mean() / counts[present]
    return np.clip(relative, 1 / _MOST, _MOST) ** exponent
