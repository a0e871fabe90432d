"""Images and label counts of a data set as tensors on the device that trains, batch by batch."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ml.datasets.base import ImageDataset


class DeviceData:
    """A data set whose cases are put on a device batch by batch.

    Args:
        dataset: images and label histograms.
        device: where the tensors go.
    """

    def __init__(self, dataset: ImageDataset, device: torch.device) -> None:
        self.dataset, self.device = dataset, device
        scale, offset = dataset.preprocessing.scale_and_offset()
        self._scale, self._offset = torch.from_numpy(scale).to(device), torch.from_numpy(offset).to(device)

    def inputs(self, rows: npt.NDArray[np.intp]) -> Tensor:
        """Network inputs of cases: the same numbers as ``Preprocessing.normalise`` gives in serving."""
        pixels = torch.from_numpy(self.dataset.pixels[rows]).to(self.device)
        images = pixels.permute(0, 3, 1, 2).float() * self._scale + self._offset
        return images.contiguous(memory_format=torch.channels_last)

    def counts(self, rows: npt.NDArray[np.intp]) -> Tensor:
        """Label counts (n, K) of cases."""
        return torch.from_numpy(self.dataset.label_counts[rows]).to(self.device)
