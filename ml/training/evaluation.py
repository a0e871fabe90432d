"""Network outputs in float32 without dropout, and validation.

On a GPU validation uses TF32; outputs that are kept do not.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ml.training.data import DeviceData
from ml.training.learner import count_weighted_nll
from ml.training.networks import Network
from ml.training.processes import ALONE, Processes
from ml.training.run_folder import CachedOutputs

BATCH = 512


@contextmanager
def full_precision_convolutions(device: torch.device) -> Iterator[None]:
    """Convolutions in the block are in float32 on a GPU too."""
    if device.type != "cuda":
        yield
        return
    with warnings.catch_warnings(action="ignore"):  # deprecated in newer versions
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = before


def batch_outputs(
    network: Network, data: DeviceData, rows: npt.NDArray[np.intp]
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Logits, features, pooled vectors and label counts of cases, batch by batch."""
    network.eval()
    for start in range(0, max(len(rows), 1), BATCH):
        batch = rows[start : start + BATCH]
        with torch.inference_mode():
            pooled = network.pooled(data.inputs(batch))
            logits, features = network.apply_head(pooled)
        yield logits, features, pooled, data.counts(batch)


class Validation(TypedDict):
    """Loss in nats per label, and share of labels on the leading class."""

    valid_loss: float
    valid_agreement: float


def validate(
    network: Network, data: DeviceData, rows: npt.NDArray[np.intp], processes: Processes = ALONE
) -> Validation:
    """Compute validation loss and agreement over labelled cases."""
    processes.take_buffers(network)
    sums = torch.zeros(4, dtype=torch.float64, device=data.device)
    for logits, _, _, counts in batch_outputs(network, data, processes.part(rows)):
        sums += _sums(logits, counts)
    loss, agreeing, labels, labelled = processes.total(sums).tolist()  # one wait
    return {"valid_loss": loss / max(labels, 1.0), "valid_agreement": agreeing / max(labelled, 1.0)}


def _sums(logits: Tensor, counts: Tensor) -> Tensor:
    n_labels = counts.sum().double()
    totals = counts.sum(1, keepdim=True)
    leading = logits.argmax(1, keepdim=True)
    agreeing = (counts.gather(1, leading) / totals.clamp(min=1)).sum().double()
    return torch.stack(
        [count_weighted_nll(logits, counts).double() * n_labels, agreeing, n_labels, (totals > 0).sum().double()]
    )


def cached_outputs(network: Network, data: DeviceData) -> CachedOutputs:
    """Outputs of all cases that are not trained on."""
    dataset = data.dataset
    rows = dataset.rows("valid", "calibration", "test")
    with full_precision_convolutions(data.device):
        logits, features, pooled, _ = zip(*batch_outputs(network, data, rows), strict=True)
    arrays = [torch.cat(part).cpu().numpy() for part in (logits, features, pooled)]
    return CachedOutputs.of(dataset, rows, arrays)
