"""A picture read in a process of its own, with limits on its memory and its time, which ends with it.

The process gets the file on stdin and answers with a line of JSON, the network's pixels and the PNG: nothing that could
be run. Whatever a decoder does in it, the service goes on, and its memory is given back.
"""

import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ml.images.picture import Picture, read_picture
from ml.images.preprocess import ImageRejectedError, Preprocessing

_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG")
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
_NICE = 5
# address space that allocators reserve in blocks, however small a picture is
_SLACK = 128 * 1024**2


@dataclass(frozen=True)
class _Header:
    """First line of the answer: what is wrong, or the picture without its bytes."""

    reason: str = ""
    message: str = ""
    width: int = 0
    height: int = 0
    image_hash: int = 0
    shape: tuple[int, ...] = ()


def read_limited(data: bytes, preprocessing: Preprocessing, *, png: bool, memory: int, seconds: int) -> Picture:
    """Decode a picture in a process of its own.

    Args:
        data: PNG, JPEG or TIFF file.
        preprocessing: of the release that predicts it.
        png: whether it is wanted as a PNG too.
        memory: bytes that decoding may take.
        seconds: that it may take, of computing; twice as long on the clock.

    Raises:
        ImageRejectedError: it cannot be read safely, or not within the limits.
    """
    asked = {"preprocessing": preprocessing.to_dict(), "png": png, "memory": memory, "seconds": seconds}
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _ONE_THREAD
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "ml.images.limited", json.dumps(asked)]
    try:
        done = subprocess.run(  # noqa: S603
            command, input=data, capture_output=True, timeout=2 * seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise ImageRejectedError("broken", f"decoding took longer than {2 * seconds} s") from exc
    line, newline, rest = done.stdout.partition(b"\n")
    if done.returncode != 0 or not newline:
        raise ImageRejectedError("broken", "decoding failed, or took more memory or time than its size allows")
    return _picture(_Header(**json.loads(line)), rest)


def _picture(header: _Header, rest: bytes) -> Picture:
    """The picture of an answer.

    Raises:
        ImageRejectedError: the answer says that it cannot be read.
    """
    if header.reason:
        raise ImageRejectedError(header.reason, header.message)  # type: ignore[arg-type]
    size = int(np.prod(header.shape))
    pixels = np.frombuffer(rest, dtype=np.uint8, count=size).reshape(header.shape)
    return Picture(header.width, header.height, header.image_hash, pixels, rest[size:])


def main() -> None:
    """Read the picture on stdin; the arguments say how."""
    asked = json.loads(sys.argv[1])
    os.nice(_NICE)
    data = sys.stdin.buffer.read()
    _limit(asked["memory"], asked["seconds"])
    try:
        picture = read_picture(data, Preprocessing.from_dict(asked["preprocessing"]), png=asked["png"])
    except ImageRejectedError as exc:
        _answer(_Header(exc.reason, str(exc)))
        return
    header = _Header("", "", picture.width, picture.height, picture.image_hash, picture.pixels.shape)
    _answer(header, np.ascontiguousarray(picture.pixels).tobytes(), picture.png)


def _limit(memory: int, seconds: int) -> None:
    """Bound this process: memory beyond what it has now, computing time, and no file."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory + _SLACK
    for kind, value in (
        (resource.RLIMIT_AS, most),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _answer(header: _Header, *parts: bytes) -> None:
    sys.stdout.buffer.write(json.dumps(asdict(header)).encode() + b"\n")
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
