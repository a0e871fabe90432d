"""Simulated annotators: independent, copying or biased."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.util.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class AnnotatorPool:
    """Pool of simulated annotators."""

    size: int = 6
    copying: float = 0.0
    biased: int | None = None
    bias: float = 0.3

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.copying <= 1 or not 0 <= self.bias <= 1:
            raise ValueError(f"size must be positive, copying and bias in [0, 1], got {self}")
        if self.biased is not None and not 0 <= self.biased < self.size:
            raise ValueError(f"biased must name one of {self.size} annotators, got {self.biased}")

    def read(
        self, true_probs: FloatArray, n_labels: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[IntArray, IntArray]:
        """Annotators and labels (N, max n_labels) of N cases, −1 for none."""
        labels_per_case = np.broadcast_to(np.asarray(n_labels, dtype=np.int64), len(true_probs))
        if labels_per_case.max(initial=0) > self.size:
            raise ValueError(f"{labels_per_case.max()} labels per case need as many annotators, there are {self.size}")
        width = int(labels_per_case.max(initial=0))
        people = rng.permuted(np.tile(np.arange(self.size), (len(true_probs), 1)), axis=1)[:, :width]
        labels = np.empty((len(true_probs), width), dtype=np.int64)
        shifted = (1 - self.bias) * true_probs + self.bias * np.roll(true_probs, 1, axis=1)
        for column in range(width):
            own = people[:, column] == (-1 if self.biased is None else self.biased)
            probs = np.where(own[:, None], shifted, true_probs)
            steps = probs.cumsum(axis=1) / probs.sum(axis=1, keepdims=True)
            labels[:, column] = (rng.random((len(probs), 1)) > steps).sum(axis=1)
            if column > 0:
                copies = rng.random(len(probs)) < self.copying
                labels[copies, column] = labels[copies, 0]
        absent = np.arange(width) >= labels_per_case[:, None]
        return np.where(absent, -1, people), np.where(absent, -1, labels)


def count_labels(labels: IntArray, n_classes: int) -> IntArray:
    """Label histograms (N, K) of labels (N, M), −1 meaning none."""
    return np.asarray((labels[..., None] == np.arange(n_classes)).sum(axis=1), dtype=np.int64)
