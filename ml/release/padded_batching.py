"""Padded batches of a few fixed sizes on a device, with reused buffers.

A device prepares every new size of a batch, which takes far longer than the run; with buffers of fixed sizes nothing is
prepared or allocated twice.
"""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnxruntime

#: Sizes of batches; what lies between is filled up with zeros to the next one.
SIZES = (1, 8, 16, 32, 48, 64)
_OUTPUTS = ("logits", "features")
Images = npt.NDArray[np.float32]


def worth_taking(waiting: int) -> int:
    """Number of waiting images for the next run: whole batches, unless there are few.

    A run takes as long for what it is filled up with as for images; who is left goes with the next one, which whoever
    has come meanwhile fills. Up to the second size a run is hardly longer for more images, and takes all.
    """
    if waiting <= SIZES[1]:
        return waiting
    return max(size for size in SIZES if size <= waiting)


@dataclass(frozen=True)
class _Buffers:
    """Host, input and output buffers of one batch size and image size."""

    host: Images
    binding: "onnxruntime.IOBinding"
    image: "onnxruntime.OrtValue"
    outputs: "list[onnxruntime.OrtValue]"


class PaddedRuns:
    """A session's runs in padded batches; one at a time, whoever asks.

    Args:
        session: of a network that maps ``image`` to ``logits`` and ``features``, each image for itself.
        device: where the buffers lie.
    """

    def __init__(self, session: "onnxruntime.InferenceSession", device: Literal["cpu", "cuda"]) -> None:
        self.session, self.device = session, device
        self._buffers: dict[tuple[int, ...], _Buffers] = {}
        self._one_at_a_time = threading.Lock()

    def __call__(self, images: Images) -> tuple[Images, Images]:
        """Logits (N, K) and features (N, D) of images (N, C, H, W), N of any size."""
        with self._one_at_a_time:
            blocks = [images[start : start + SIZES[-1]] for start in range(0, max(len(images), 1), SIZES[-1])]
            logits, features = zip(*[self._run(block) for block in blocks], strict=True)
        return np.concatenate(logits), np.concatenate(features)

    def _run(self, images: Images) -> tuple[Images, Images]:
        size = next(size for size in SIZES if size >= len(images))
        key = (size, *images.shape[1:])
        if key not in self._buffers:
            self._buffers[key] = self._allocate(key)
        buffers = self._buffers[key]
        if len(images) == size:  # nothing to fill up, and nothing to copy first
            buffers.image.update_inplace(np.ascontiguousarray(images))
        else:
            buffers.host[: len(images)], buffers.host[len(images) :] = images, 0
            buffers.image.update_inplace(buffers.host)
        self.session.run_with_iobinding(buffers.binding)
        logits, features = (np.array(value.numpy()[: len(images)]) for value in buffers.outputs)
        return logits, features

    def _allocate(self, shape: tuple[int, ...]) -> _Buffers:
        """Buffers for a shape of input; a first run allocates those of the outputs, whose shapes the network knows."""
        import onnxruntime

        host = np.zeros(shape, dtype=np.float32)
        binding = self.session.io_binding()
        image = onnxruntime.OrtValue.ortvalue_from_numpy(host, self.device, 0)
        binding.bind_ortvalue_input("image", image)
        for name in _OUTPUTS:
            binding.bind_output(name, self.device, 0)
        self.session.run_with_iobinding(binding)
        outputs = list(binding.get_outputs())
        for name, value in zip(_OUTPUTS, outputs, strict=True):
            binding.bind_ortvalue_output(name, value)
        return _Buffers(host, binding, image, outputs)
