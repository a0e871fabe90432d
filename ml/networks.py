"""Networks: image (N, C, H, W) → logits (N, K) and penultimate features (N, D).

The features are the tensor before the last linear layer, without dropout: what the concentration head reads.
"""

from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class Network(Protocol):
    """What training and export need of a network."""

    feature_size: int

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, K) and features (N, D) of images (N, C, H, W)."""


class CompactNetwork(nn.Module):
    """Six batch-normalised convolutions for small cell images.

    Args:
        channels: C.
        n_classes: K.
        width: channels of the first pair of convolutions, doubled by each of the next two pairs.
    """

    def __init__(self, channels: int, n_classes: int, width: int = 32) -> None:
        super().__init__()
        widths = [channels, width, width, 2 * width, 2 * width, 4 * width, 4 * width]
        layers: list[nn.Module] = []
        for index, (inside, outside) in enumerate(pairwise(widths)):
            layers += [
                nn.Conv2d(inside, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
            ]
            if index % 2 == 1 and index < 5:
                layers.append(nn.MaxPool2d(2))
        self.backbone = nn.Sequential(*layers)
        self.dropout = nn.Dropout(0.3)
        self.feature_size = widths[-1]
        self.head = nn.Linear(self.feature_size, n_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, K) and features (N, D)."""
        features = self.backbone(images).mean(dim=(2, 3))
        return self.head(self.dropout(features)), features


class Cnn3Network(nn.Module):
    """The paper's Mix-MNIST network (§6.1), with the Dense-128 and convolution dropout of the authors' code."""

    def __init__(self, channels: int, n_classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.Dropout(0.05), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 7, padding=3), nn.ReLU(), nn.Dropout(0.05), nn.MaxPool2d(4, padding=1),
            nn.Conv2d(64, 128, 11, padding=5), nn.ReLU(), nn.Dropout(0.05),
        )  # fmt: skip
        self.dense = nn.Sequential(nn.Dropout(0.5), nn.Linear(128, 128), nn.ReLU())
        self.dropout = nn.Dropout(0.5)
        self.feature_size = 128
        self.head = nn.Linear(self.feature_size, n_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, K) and features (N, D)."""
        features = self.dense(self.backbone(images).mean(dim=(2, 3)))
        return self.head(self.dropout(features)), features


class Vgg16Network(nn.Module):
    """VGG16 convolutions, global max pooling, Dense-128: the paper's network for photographs (§6.1, §6.2).

    Args:
        channels: C, 3.
        n_classes: K.
        backbone_weights: state of torchvision's ``vgg16``, for example trained on ImageNet.
    """

    def __init__(self, channels: int, n_classes: int, backbone_weights: dict[str, Tensor] | None = None) -> None:
        from ml.torchvision_ops import models

        super().__init__()
        if channels != 3:
            raise ValueError(f"vgg16 reads RGB images, the data have {channels} channel(s)")
        whole = models.vgg16(weights=None)
        if backbone_weights is not None:
            kept = {k.removeprefix("features."): v for k, v in backbone_weights.items() if k.startswith("features.")}
            try:
                whole.features.load_state_dict(kept)
            except RuntimeError as exc:
                raise ValueError(f"not the weights of torchvision's vgg16: {exc}") from exc
        self.backbone = whole.features
        self.dense = nn.Sequential(nn.Dropout(0.5), nn.Linear(512, 128), nn.ReLU())
        self.dropout = nn.Dropout(0.5)
        self.feature_size = 128
        self.head = nn.Linear(self.feature_size, n_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, K) and features (N, D)."""
        features = self.dense(functional.adaptive_max_pool2d(self.backbone(images), 1).flatten(1))
        return self.head(self.dropout(features)), features


NETWORK_NAMES = ("compact", "cnn3", "vgg16")


def build_network(
    name: str, channels: int, n_classes: int, backbone_weights: dict[str, Tensor] | None = None
) -> nn.Module:
    """Build a network by name.

    Raises:
        ValueError: an unknown name, weights for a network that takes none, or the wrong ones.
    """
    if name == "vgg16":
        return Vgg16Network(channels, n_classes, backbone_weights)
    if backbone_weights is not None:
        raise ValueError(f"network {name!r} takes no backbone weights; vgg16 does")
    if name == "compact":
        return CompactNetwork(channels, n_classes)
    if name == "cnn3":
        return Cnn3Network(channels, n_classes)
    raise ValueError(f"unknown network {name!r}; there are {', '.join(NETWORK_NAMES)}")


def read_backbone_weights(path: str) -> dict[str, Tensor]:
    """Read weights from a ``.safetensors`` or a PyTorch state file, never running code from it.

    Raises:
        ValueError: no such file, or not a state of named tensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.endswith(".safetensors"):
            return load_file(path)
        state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, SafetensorError, ValueError) as exc:
        raise ValueError(f"{path}: not readable as network weights: {exc}") from exc
    return state
