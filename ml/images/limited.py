"""Image decoding in a subprocess with limits on memory and time.

The process gets the file on stdin and answers with a line of JSON, the network's pixels and the PNG: nothing that could
be run. Whatever a decoder does in it, the service goes on, and its memory is given back.
"""

import json
import sys
from dataclasses import asdict, dataclass

import numpy as np

from ml.images.picture import Picture, read_picture
from ml.images.preprocess import ImageRejectedError, Preprocessing
from ml.util.sandbox import LimitError, limit_this_process, run_limited


@dataclass(frozen=True)
class _Header:
    """First line of the answer: what is wrong, or the picture without its bytes."""

    reason: str = ""
    message: str = ""
    width: int = 0
    height: int = 0
    image_hash: int = 0
    digest: str = ""
    shape: tuple[int, ...] = ()


def read_limited(data: bytes, preprocessing: Preprocessing, *, png: bool, memory: int, seconds: int) -> Picture:
    """Decode a picture in a process of its own.

    Args:
        data: PNG, JPEG or TIFF file.
        preprocessing: of the release that predicts it.
        png: whether it is wanted as a PNG too, with hash and digest.
        memory: bytes that decoding may take.
        seconds: that it may take, of computing; twice as long on the clock.

    Raises:
        ImageRejectedError: it cannot be read safely, or not within the limits.
    """
    request = {"preprocessing": preprocessing.to_dict(), "png": png, "memory": memory, "seconds": seconds}
    try:
        answer = run_limited("ml.images.limited", json.dumps(request), data=data, seconds=2 * seconds)
    except LimitError as exc:
        what = "took longer than it may" if exc.slow else "failed, or took more memory or time than its size allows"
        raise ImageRejectedError("broken", f"decoding {what}") from exc
    line, newline, rest = answer.partition(b"\n")
    if not newline:
        raise ImageRejectedError("broken", "decoding failed")
    return _picture(_Header(**json.loads(line)), rest)


def _picture(header: _Header, rest: bytes) -> Picture:
    """The picture of an answer."""
    if header.reason:
        raise ImageRejectedError(header.reason, header.message)  # type: ignore[arg-type]
    size = int(np.prod(header.shape))
    pixels = np.frombuffer(rest, dtype=np.uint8, count=size).reshape(header.shape)
    digest = bytes.fromhex(header.digest)
    return Picture(header.width, header.height, pixels, header.image_hash, digest, rest[size:])


def main() -> None:
    """Read the picture on stdin; the arguments say how."""
    request = json.loads(sys.argv[1])
    data = sys.stdin.buffer.read()
    limit_this_process(request["memory"], request["seconds"])
    try:
        picture = read_picture(data, Preprocessing.from_dict(request["preprocessing"]), png=request["png"])
    except ImageRejectedError as exc:
        _answer(_Header(exc.reason, str(exc)))
        return
    size = picture.width, picture.height
    header = _Header("", "", *size, picture.image_hash, picture.digest.hex(), picture.pixels.shape)
    _answer(header, np.ascontiguousarray(picture.pixels).tobytes(), picture.png)


def _answer(header: _Header, *parts: bytes) -> None:
    sys.stdout.buffer.write(json.dumps(asdict(header)).encode() + b"\n")
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
