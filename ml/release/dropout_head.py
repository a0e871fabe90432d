"""Monte-Carlo dropout of a network's head in NumPy, with stored masks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.release.ood_detector import read_tensors

Floats32 = npt.NDArray[np.float32]
_FIELDS = ("weight", "bias", "mask")
#: Members drawn where nothing else is asked for (paper §6.1).
SAMPLES = 20


@dataclass(frozen=True)
class HeadLayer:
    """One linear layer with the dropout before it."""

    # (out, in)
    weight: Floats32
    # (out,)
    bias: Floats32
    # (S, in), zero for a dropped input and 1/(1 − rate) for a kept one
    mask: Floats32

    @cached_property
    def masked(self) -> Floats32:
        """Transposed weights (S, in, out) with the masks applied."""
        return np.ascontiguousarray((self.weight * self.mask[:, None, :]).transpose(0, 2, 1))

    def __call__(self, inputs: Floats32) -> Floats32:
        """Outputs (S, N, out) of inputs (N, in) or (S, N, in)."""
        return np.asarray(inputs @ self.masked + self.bias, dtype=np.float32)


@dataclass(frozen=True)
class DropoutHead:
    """Linear layers with ReLU between them, under S dropout masks."""

    layers: tuple[HeadLayer, ...]

    def __post_init__(self) -> None:
        sizes = [layer.weight.shape[::-1] for layer in self.layers]
        members = {len(layer.mask) for layer in self.layers}
        fits = all(a[1] == b[0] for a, b in pairwise(sizes)) and len(members) == 1
        for layer in self.layers:
            fits &= layer.mask.shape[1:] == layer.weight.shape[1:] and layer.bias.shape == layer.weight.shape[:1]
            fits &= bool(np.isfinite(layer.weight).all() and np.isfinite(layer.bias).all())
        if not fits:
            raise ValueError("layers of a dropout head do not fit each other or are not finite")

    @classmethod
    def draw(
        cls, layers: Sequence[tuple[float, Floats32, Floats32]], *, samples: int = SAMPLES, seed: int = 0
    ) -> "DropoutHead":
        """Draw masks for layers given as (dropout rate, weight, bias)."""
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        rng = np.random.default_rng(seed)
        drawn = []
        for rate, weight, bias in layers:
            kept = rng.random((samples, weight.shape[1])) >= rate
            drawn.append(HeadLayer(weight, bias, np.asarray(kept / (1 - rate), dtype=np.float32)))
        return cls(tuple(drawn))

    @property
    def samples(self) -> int:
        """S."""
        return len(self.layers[0].mask)

    def without_dropout(self) -> "DropoutHead":
        """The single member that drops nothing: the deterministic head."""
        return DropoutHead(
            tuple(HeadLayer(layer.weight, layer.bias, np.ones_like(layer.mask[:1])) for layer in self.layers)
        )

    def __call__(self, pooled: Floats32) -> tuple[Floats32, Floats32]:
        """Logits (S, N, K) and features (S, N, D) of pooled vectors (N, P)."""
        if pooled.ndim != 2 or pooled.shape[1] != self.layers[0].weight.shape[1]:
            raise ValueError(f"pooled must be (N, {self.layers[0].weight.shape[1]}), got {pooled.shape}")
        hidden = np.broadcast_to(pooled.astype(np.float32, copy=False), (self.samples, *pooled.shape))
        for layer in self.layers[:-1]:
            hidden = np.maximum(layer(hidden), 0)
        return self.layers[-1](hidden), hidden

    def to_bytes(self) -> bytes:
        """Write as safetensors."""
        from safetensors.numpy import save

        tensors = {
            f"layer{index}.{name}": np.ascontiguousarray(getattr(layer, name))
            for index, layer in enumerate(self.layers)
            for name in _FIELDS
        }
        return bytes(save(tensors))

    @classmethod
    def from_bytes(cls, data: bytes) -> "DropoutHead":
        """Read back what ``to_bytes`` wrote."""
        return read_tensors(data, "dropout head", cls._of_tensors)

    @classmethod
    def _of_tensors(cls, tensors: dict[str, npt.NDArray[Any]]) -> "DropoutHead":
        layers = [
            HeadLayer(*(np.asarray(tensors[f"layer{index}.{name}"], np.float32) for name in _FIELDS))
            for index in range(len(tensors) // len(_FIELDS))
        ]
        if not layers or any((layer.weight.ndim, layer.mask.ndim, layer.bias.ndim) != (2, 2, 1) for layer in layers):
            raise ValueError("its layers are missing or misshapen")
        return cls(tuple(layers))
