"""Outputs of ensemble members by the trained network itself: every dropout layer active, or augmented images.

Serving draws dropout in the head only (``ml.release.dropout_head``); the paper's numbers come from whole
stochastic passes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ml.datasets.base import ImageDataset
from ml.training.augmentation import augment
from ml.training.evaluation import unrounded
from ml.training.networks import Network

Floats32 = npt.NDArray[np.float32]
_BATCH = 500


@dataclass(frozen=True)
class Outputs:
    """Logits (N, K) and features (N, D) of a network, or (S, N, K) and (S, N, D) of its members."""

    logits: Floats32
    features: Floats32

    def rows(self, rows: npt.NDArray[np.intp]) -> "Outputs":
        """Pick cases."""
        return Outputs(self.logits[..., rows, :], self.features[..., rows, :])


def network_outputs(
    network: Network,
    dataset: ImageDataset,
    rows: npt.NDArray[np.intp],
    *,
    kind: str,
    samples: int,
    seed: int,
    device: torch.device,
    observer: Callable[[int, int], None],
) -> Outputs:
    """Run the network over cases, once or once a member, in float32.

    Args:
        network: trained.
        dataset: images.
        rows: cases.
        kind: ``Raw`` (one pass), ``MCDO`` (dropout on) or ``TTA`` (augmented images).
        samples: S, for the latter two.
        seed: of dropout and augmentation; each member and batch has its own stream.
        device: where to run.
        observer: called with batches done and in all.
    """
    network.eval()
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.train(kind == "MCDO")
    network.to(device)
    batches = np.split(rows, range(_BATCH, len(rows), _BATCH))
    members = 1 if kind == "Raw" else samples
    logits, features = [], []
    for done, batch in enumerate(batches):
        inputs = torch.from_numpy(dataset.preprocessing.normalise(dataset.pixels[batch])).to(device)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        parts = []
        for member in range(members):
            stream = (seed * 1_000 + member) * 100_003 + done
            torch.manual_seed(stream)
            generator = torch.Generator().manual_seed(stream)
            images = augment(inputs, dataset.orientation, generator) if kind == "TTA" else inputs
            with torch.inference_mode(), unrounded(device):
                parts.append([tensor.float().cpu().numpy() for tensor in network(images)])
        logits.append(np.stack([part[0] for part in parts]))
        features.append(np.stack([part[1] for part in parts]))
        observer(done + 1, len(batches))
    network.eval()
    whole = Outputs(np.concatenate(logits, axis=1), np.concatenate(features, axis=1))
    return Outputs(whole.logits[0], whole.features[0]) if kind == "Raw" else whole


def cached(path: Path, compute: Callable[[], Outputs]) -> Outputs:
    """Outputs kept in a file, computed where it is not there yet."""
    if path.is_file():
        with np.load(path, allow_pickle=False) as data:
            return Outputs(data["logits"], data["features"])
    outputs = compute()
    temporary = path.with_name(path.stem + ".tmp.npz")
    np.savez(temporary, allow_pickle=False, logits=outputs.logits, features=outputs.features)
    temporary.replace(path)
    return outputs
