"""What every peer does with an image; needs numpy, Pillow and onnxruntime, and nothing of secondread."""

import io
import json
import os
import sys
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import numpy as np
import onnxruntime
from PIL import Image


class Work:
    """A network and its preprocessing.

    Args:
        spec: path of a JSON file with ``network``, ``crop``, ``size``, ``mean``, ``std``, ``threads`` and ``classes``.
    """

    def __init__(self, spec: str) -> None:
        with open(spec) as file:
            self.spec = json.load(file)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.spec["threads"]
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(self.spec["network"], options, ["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name
        self.mean, self.std = (np.float32(self.spec[key]) for key in ("mean", "std"))

    def inputs(self, data: bytes) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Inputs (1, C, size, size) of an encoded image."""
        size, crop = self.spec["size"], self.spec["crop"]
        image = Image.open(io.BytesIO(data)).convert("RGB")
        left, top = (image.width - crop) / 2, (image.height - crop) / 2
        image = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + crop, top + crop))
        pixels = (np.asarray(image, dtype=np.float32) / 255 - self.mean) / self.std
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])

    def run(self, inputs: "np.ndarray[Any, np.dtype[np.float32]]") -> list[dict[str, float]]:
        """Class probabilities of each input, by class."""
        logits = self.session.run(None, {self.name: inputs})[0].reshape(len(inputs), -1)[:, : len(self.spec["classes"])]
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return [
            dict(zip(self.spec["classes"], row.tolist(), strict=False)) for row in powers / powers.sum(1, keepdims=True)
        ]


def arguments() -> tuple[str, int]:
    """Path of the specification, and the port."""
    return sys.argv[1], int(sys.argv[2])
