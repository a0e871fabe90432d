"""Images and label counts of a data set as tensors on the device that trains.

A GPU keeps all of them, as bytes, where they fit: then nothing but the order of the cases travels in an epoch.
Otherwise each batch is gathered on the host and sent while the GPU is busy with the one before.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ml.datasets.base import ImageDataset
from ml.training.augmentation import sent

#: Share of a GPU's free memory that images may take.
_SHARE = 0.5
#: Numbers of cases: an array of the host, or a tensor on the device where the data lie there.
Rows = npt.NDArray[np.intp] | Tensor


class DeviceData:
    """A data set whose cases are put on a device batch by batch, or lie there.

    Args:
        dataset: images and label histograms.
        device: where the tensors go.
        resident: whether all of it is kept there; None: on a GPU where it fits.
    """

    def __init__(self, dataset: ImageDataset, device: torch.device, *, resident: bool | None = None) -> None:
        self.dataset, self.device = dataset, device
        scale, offset = dataset.preprocessing.scale_and_offset()
        self._scale, self._offset = torch.from_numpy(scale).to(device), torch.from_numpy(offset).to(device)
        self.resident = _fits(dataset, device) if resident is None else resident
        if self.resident:
            self._pixels = torch.tensor(dataset.pixels).to(device)
            self._counts = torch.tensor(dataset.label_counts).to(device)

    def located(self, rows: npt.NDArray[np.intp]) -> Rows:
        """Numbers of cases where ``inputs`` and ``counts`` read them; any slice of them will do."""
        return sent(torch.from_numpy(rows), self.device) if self.resident else rows

    def inputs(self, rows: Rows) -> Tensor:
        """Network inputs of cases: the same numbers as ``Preprocessing.normalise`` gives in serving."""
        pixels = self._pixels.index_select(0, self._index(rows)) if self.resident else self._gathered(rows)
        images = pixels.permute(0, 3, 1, 2).float() * self._scale + self._offset
        return images.contiguous(memory_format=torch.channels_last)

    def counts(self, rows: Rows) -> Tensor:
        """Label counts (n, K) of cases."""
        if self.resident:
            return self._counts.index_select(0, self._index(rows))
        return sent(torch.from_numpy(self.dataset.label_counts[rows]), self.device)

    def _index(self, rows: Rows) -> Tensor:
        return rows if isinstance(rows, Tensor) else sent(torch.from_numpy(rows), self.device)

    def _gathered(self, rows: Rows) -> Tensor:
        return sent(torch.from_numpy(self.dataset.pixels[rows]), self.device)


def _fits(dataset: ImageDataset, device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return dataset.pixels.nbytes + dataset.label_counts.nbytes <= _SHARE * free
