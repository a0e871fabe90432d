"""Training loss: the negative log-likelihood of label histograms."""

from torch import Tensor
from torch.nn import functional


def count_weighted_nll(logits: Tensor, label_counts: Tensor) -> Tensor:
    """Mean negative log-likelihood of a label, −Σ_i Σ_k y_ik log f_ik / Σ n_i (paper §6.1).

    Args:
        logits: (N, K).
        label_counts: (N, K); a case with more labels weighs more, one without none.

    Returns:
        Scalar, in nats per label.
    """
    counts = label_counts.to(logits.dtype)
    total = counts.sum().clamp(min=1)
    return -(counts * functional.log_softmax(logits, dim=1)).sum() / total
