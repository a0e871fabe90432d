"""Device selection for inference, CPU or CUDA, and batches of fixed sizes.

ONNX Runtime is loaded with the first network.
"""

import ctypes
import io
import threading
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnxruntime

Device = Literal["auto", "cpu", "cuda"]
_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
#: Products in float32 and one algorithm of convolution: results are those of
#: the CPU to rounding.
_CUDA_OPTIONS = {"device_id": "0", "use_tf32": "0", "cudnn_conv_algo_search": "DEFAULT"}
#: The smallest network, y = max(x, 0) of one number.
_SMALLEST = bytes.fromhex(
    "08083a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a02080142040a"
    "001012"
)
#: y = x w, of whole numbers: x (4, 64) of 0 to 255 and w (64, 16) of −128 to 127.
_PRODUCT = bytes.fromhex(
    "08083a5c0a180a01780a0177120179220d4d61744d756c496e74656765721201675a130a0178120e0a0c080212080a0208040a0208405a"
    "130a0177120e0a0c080312080a0208400a02081062130a0179120e0a0c080612080a0208040a02081042040a001012"
)
#: Levels of the runtime's logs.
_WARNING, _ERROR, _FATAL = 2, 3, 4


#: Sizes of batches; what lies between is filled up with zeros to the next one.
SIZES = (1, 8, 16, 32, 48, 64)
_OUTPUTS = ("logits", "features")
Images = npt.NDArray[np.float32]


class DeviceError(ValueError):
    """The device that was asked for cannot be used."""


def runs_on_cuda(device: Device) -> bool:
    """Choose CUDA or CPU; ``cuda`` raises if unusable."""
    if device == "cpu":
        return False
    fault = cuda_fault()
    if fault is not None and device == "cuda":
        raise DeviceError(f"device cuda cannot be used: {fault}")
    return fault is None


def fallen_back(device: Device) -> str | None:
    """Reason for a CPU fallback by ``auto``; None without one."""
    import onnxruntime

    return cuda_fault() if device == "auto" and _CUDA in onnxruntime.get_available_providers() else None


@cache
def cuda_fault() -> str | None:
    """Check CUDA once per process; the fault and a remedy, or None."""
    import onnxruntime

    if _CUDA not in onnxruntime.get_available_providers():
        return (
            "the installed ONNX Runtime is the one for CPUs; run `pip uninstall onnxruntime` and "
            "`pip install 'secondread-cells[gpu]'`"
        )
    onnxruntime.set_default_logger_severity(_FATAL)  # the fault is reported in words
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            onnxruntime.preload_dlls()  # CUDA that was installed by pip
        session = _session(_SMALLEST, 1, _FATAL, cuda=True)
        session.run(None, {"x": np.zeros(1, dtype=np.float32)})
    except Exception as exc:  # the runtime raises its own unrelated classes
        return _missing_library() or " ".join(str(exc).split())
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)
    return None if _CUDA in session.get_providers() else _missing_library() or "no CUDA device can be used"


def _missing_library() -> str | None:
    """A missing CUDA library with a remedy, or None."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "the NVIDIA driver is missing (libcuda.so.1); install it, or give the container its GPU (`--gpus all`)"
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    try:
        ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / "libonnxruntime_providers_cuda.so"))
    except OSError as exc:
        return f"{exc}; install CUDA and cuDNN, for example `pip install 'onnxruntime-gpu[cuda,cudnn]'`"
    return None


def open_session(
    network: bytes | str, threads: int = 0, *, device: Device = "auto", quiet: bool = False
) -> "onnxruntime.InferenceSession":
    """Open an ONNX network from bytes or path; 0 threads: all cores; quiet: errors are raised and not logged."""
    cuda = runs_on_cuda(device)
    session = _session(network, threads, _FATAL if quiet else _ERROR, cuda=cuda)
    if cuda and _CUDA not in session.get_providers():
        raise DeviceError("device cuda worked before, and no longer does")
    return session


@cache
def clips_sums() -> bool:
    """Detect x86 without VNNI, which clips integer dot products."""
    session = _session(_PRODUCT, 1, _ERROR, cuda=False, exact=False)
    largest, smallest = np.full((4, 64), 255, dtype=np.uint8), np.full((64, 16), -128, dtype=np.int8)
    return bool((session.run(None, {"x": largest, "w": smallest})[0] != 64 * 255 * -128).any())


def _session(
    network: bytes | str, threads: int, severity: int, *, cuda: bool, exact: bool = True
) -> "onnxruntime.InferenceSession":
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = severity
    if exact and clips_sums():  # slower, and equal on every processor
        options.add_session_config_entry("session.x64quantprecision", "1")
    providers = [*([(_CUDA, _CUDA_OPTIONS)] if cuda else []), _CPU]
    # without a silent fallback to the CPU
    return onnxruntime.InferenceSession(network, options, providers=providers, enable_fallback=0)


def worth_taking(waiting: int) -> int:
    """Number of waiting images for the next run, in whole batches."""
    # up to the second size a run is hardly longer for more images
    if waiting <= SIZES[1]:
        return waiting
    return max(size for size in SIZES if size <= waiting)


@dataclass(frozen=True)
class _Buffers:
    """Buffers of one batch and image size."""

    host: Images
    binding: "onnxruntime.IOBinding"
    image: "onnxruntime.OrtValue"
    outputs: "list[onnxruntime.OrtValue]"


class PaddedRuns:
    """Runs of a session in padded batches, one at a time."""

    # A device prepares every new size of a batch, which takes far longer than the run.

    def __init__(self, session: "onnxruntime.InferenceSession", device: Literal["cpu", "cuda"]) -> None:
        self.session, self.device = session, device
        self._buffers: dict[tuple[int, ...], _Buffers] = {}
        self._one_at_a_time = threading.Lock()

    def __call__(self, images: Images) -> tuple[Images, Images]:
        """Logits (N, K) and features (N, D) of images (N, C, H, W)."""
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
        """Allocate buffers for an input shape by a first run."""
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
