"""Compatibility of torchvision with a CPU build of torch.

A wheel built for CUDA cannot load its operators next to torch for CPUs; two
declarations are enough for models and transforms.
"""

import sys

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# a library that is collected takes its operators with it
_LIBRARIES: list[torch.library.Library] = []


try:
    import torchvision  # noqa: F401
except RuntimeError as exc:
    if "torchvision::nms" not in str(exc):
        raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _LIBRARIES.append(library)

from torchvision import models  # noqa: E402  (the operators must be declared first)

__all__ = ["models"]
