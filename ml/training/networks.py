"""Networks: image (N, C, H, W) → logits (N, K) and features (N, D).

Features are the input of the last linear layer, without dropout.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class Network(nn.Module):
    """Pooled backbone, and a head of linear layers with dropout."""

    backbone: nn.Module  # images (N, C, H, W) → maps
    dense: nn.Sequential | None  # pooled vector → features; None: identity
    dropout: nn.Dropout  # before the last layer
    head: nn.Linear  # features (N, D) → logits (N, K)

    def pooled(self, images: Tensor) -> Tensor:
        """Pooled vectors (N, P) of images (N, C, H, W), before dropout."""
        maps: Tensor = self.backbone(images)
        return maps.mean(dim=(2, 3))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, K) and features (N, D)."""
        return self.apply_head(self.pooled(images))

    def apply_head(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, K) and features (N, D) of pooled vectors (N, P)."""
        features = pooled if self.dense is None else self.dense(pooled)
        return self.head(self.dropout(features)), features

    def head_layers(self) -> list[tuple[float, nn.Linear]]:
        """Dropout rate and linear layer of each stage; ReLU between."""
        layers = [] if self.dense is None else list(self.dense)
        rates = [float(layer.p) for layer in (*layers, self.dropout) if isinstance(layer, nn.Dropout)]
        linear = [layer for layer in (*layers, self.head) if isinstance(layer, nn.Linear)]
        return list(zip(rates, linear, strict=True))


def _dense(inside: int) -> nn.Sequential:
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(inside, 128), nn.ReLU())


class CompactNetwork(Network):
    """Six batch-normalised convolutions for small cell images."""

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
        self.dense = None
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(widths[-1], n_classes)


class Cnn3Network(Network):
    """The paper's Mix-MNIST network (§6.1)."""

    def __init__(self, channels: int, n_classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.Dropout(0.05), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 7, padding=3), nn.ReLU(), nn.Dropout(0.05), nn.MaxPool2d(4, padding=1),
            nn.Conv2d(64, 128, 11, padding=5), nn.ReLU(), nn.Dropout(0.05),
        )  # fmt: skip
        self.dense = _dense(128)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(128, n_classes)


class Vgg16Network(Network):
    """The paper's network for photographs, VGG16 (§6.1, §6.2), also with batch normalisation."""

    def __init__(
        self,
        channels: int,
        n_classes: int,
        backbone_weights: dict[str, Tensor] | None = None,
        batch_norm: bool = False,
    ) -> None:
        from ml.util.torchvision_ops import models

        super().__init__()
        if channels != 3:
            raise ValueError(f"vgg16 reads RGB images, the data have {channels} channel(s)")
        whole = (models.vgg16_bn if batch_norm else models.vgg16)(weights=None)
        if backbone_weights is not None:
            kept = {k.removeprefix("features."): v for k, v in backbone_weights.items() if k.startswith("features.")}
            try:
                whole.features.load_state_dict(kept)
            except RuntimeError as exc:
                raise ValueError(f"not the weights of torchvision's vgg16: {exc}") from exc
        # the last pooling is part of the global one below
        self.backbone = whole.features[:-1] if batch_norm else whole.features
        self.dense = _dense(512)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(128, n_classes)

    def pooled(self, images: Tensor) -> Tensor:
        """Global maxima (N, 512) of the last maps."""
        return functional.adaptive_max_pool2d(self.backbone(images), 1).flatten(1)


NETWORK_NAMES = ("compact", "cnn3", "vgg16", "vgg16-bn")


def require_network(name: str) -> None:
    """Refuse an unknown name of a network."""
    if name not in NETWORK_NAMES:
        raise ValueError(f"unknown network {name!r}; there are {', '.join(NETWORK_NAMES)}")


def build_network(
    name: str, channels: int, n_classes: int, backbone_weights: dict[str, Tensor] | None = None
) -> Network:
    """Build a network by name."""
    require_network(name)
    if name in {"vgg16", "vgg16-bn"}:
        return Vgg16Network(channels, n_classes, backbone_weights, batch_norm=name == "vgg16-bn")
    if backbone_weights is not None:
        raise ValueError(f"network {name!r} takes no backbone weights; vgg16 does")
    if name == "compact":
        return CompactNetwork(channels, n_classes)
    return Cnn3Network(channels, n_classes)


def read_backbone_weights(path: str) -> dict[str, Tensor]:
    """Read ``.safetensors`` or a PyTorch state, without its code."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.endswith(".safetensors"):
            return load_file(path)
        state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, SafetensorError, ValueError) as exc:
        raise ValueError(f"{path}: not readable as network weights: {exc}") from exc
    return state
