"""Triton model repository of a release's network."""

import shutil
from pathlib import Path

from ml.release.artifact import Release, ReleaseError
from ml.release.predictor import Predictor

#: Images of one run at most; those that arrive within the delay go together.
MAX_BATCH, QUEUE_MICROSECONDS = 64, 1_000
#: Name of the parameter by which a client knows the network again.
NETWORK_PARAMETER = "network_sha256"
_DIGITS = 16


def network_name(network_sha256: str) -> str:
    """Model name of a network, shared by all releases of the same network.

    >>> network_name("0123456789abcdef" * 4)
    'network-0123456789abcdef'
    """
    return f"network-{network_sha256[:_DIGITS]}"


def write_repository(release: Release, folder: Path) -> str:
    """Write a release's network into a model repository; return its name."""
    name = network_name(release.network_sha256)
    model = folder / name
    if model.exists():
        raise ReleaseError(f"{model}: the model is there already")
    config = _model_config(release, Predictor(release, device="cpu").n_features)
    (model / "1").mkdir(parents=True)
    shutil.copyfile(release.network, model / "1" / "model.onnx")
    (model / "config.pbtxt").write_text(config, encoding="utf-8")
    return name


def _model_config(release: Release, n_features: int) -> str:
    side, channels = release.preprocessing.size, release.preprocessing.channels
    return f"""name: "{network_name(release.network_sha256)}"
backend: "onnxruntime"
max_batch_size: {MAX_BATCH}
input [
  {{
    name: "image"
    data_type: TYPE_FP32
    dims: [ {channels}, {side}, {side} ]
  }}
]
output [
  {{
    name: "logits"
    data_type: TYPE_FP32
    dims: [ {len(release.classes)} ]
  }},
  {{
    name: "features"
    data_type: TYPE_FP32
    dims: [ {n_features} ]
  }}
]
dynamic_batching {{
  max_queue_delay_microseconds: {QUEUE_MICROSECONDS}
}}
instance_group [
  {{
    count: 1
    kind: KIND_AUTO
  }}
]
parameters {{
  key: "{NETWORK_PARAMETER}"
  value: {{ string_value: "{release.network_sha256}" }}
}}
"""
