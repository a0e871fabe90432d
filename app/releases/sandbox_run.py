"""Sandboxed first run of an external release, with limits on memory and time."""

import json
import sys
from pathlib import Path

import numpy as np

from ml.images.preprocess import Pixels, Preprocessing, decode_image
from ml.release.artifact import ReleaseError, read_release
from ml.release.predictor import Predictor, prediction_of, quality_features_for_release
from ml.util.sandbox import LimitError, limit_this_process, run_limited

#: Bytes and seconds of computing for loading a network and predicting a few images with it, on one core.
TRIAL_MEMORY, TRIAL_SECONDS = 4 * 1024**3, 60
_LONGEST_FAULT = 300
_REAL_CELLS = Path(__file__).parents[1] / "demo" / "cells" / "images"
_MAX_REAL_CELLS = 4
_OUT_OF_MEMORY = "Failed to allocate memory"  # in the words of ONNX Runtime


def _memory_fault(path: Path | str, memory: int) -> str:
    return f"{path}: the first run of the network took more than {memory / 1024**3:.1f} GiB of memory"


def try_release(path: Path, *, memory: int = TRIAL_MEMORY, seconds: int = TRIAL_SECONDS) -> None:
    """Check the graphs of a release and run its network once."""
    arguments = json.dumps({"path": str(path.absolute()), "memory": memory, "seconds": seconds})
    try:
        answer = run_limited("app.releases.sandbox_run", arguments, seconds=2 * seconds)
    except LimitError as exc:
        slow = f"{path}: the first run of the network took more than {seconds} s"
        raise ReleaseError(slow if exc.slow else f"{_memory_fault(path, memory)}, or crashed") from exc
    fault = json.loads(answer.splitlines()[-1])["fault"]
    if fault:
        raise ReleaseError(fault)


def main() -> None:
    """Try the release that the argument names, and print what is wrong with it."""
    arguments = json.loads(sys.argv[1])
    limit_this_process(arguments["memory"], arguments["seconds"])
    fault = ""
    try:
        _run_once(Path(arguments["path"]))
    except ReleaseError as exc:
        text = " ".join(str(exc).split())
        fault = (
            _memory_fault(arguments["path"], arguments["memory"]) if _OUT_OF_MEMORY in text else text[:_LONGEST_FAULT]
        )
    print(json.dumps({"fault": fault}))


def _run_once(path: Path) -> None:
    """Load the network, and require a finite answer to images of each kind."""
    from app.releases.onnx_safety import require_plain_graph  # needs onnx, which nothing but this process loads

    release = read_release(path)
    for file in sorted(path.glob("*.onnx")):
        require_plain_graph(file)
    predictor = Predictor(release, threads=1, device="cpu")
    for kind, pixels in _trial_images(release.preprocessing).items():
        try:
            logits, features = predictor.outputs(pixels)
        except Exception as exc:  # the runtime raises its own unrelated classes
            raise ReleaseError(f"{release.network}: ONNX Runtime cannot run it: {exc}") from exc
        if not (np.isfinite(logits).all() and np.isfinite(features).all()):
            raise ReleaseError(f"{release.network}: the answer to {kind} is not finite; every image needs one that is")
        try:
            prediction_of(release, logits, features, quality_features_for_release(release, np.stack(pixels)))
        except ValueError as exc:
            raise ReleaseError(f"{path}: the answer to {kind} cannot be used: {exc}") from exc


def _trial_images(preprocessing: Preprocessing) -> dict[str, list[Pixels]]:
    """Network pixels of each kind of image."""
    side, channels = preprocessing.size, preprocessing.channels
    black = np.zeros((side, side, channels), dtype=np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (2, *black.shape), dtype=np.uint8)
    real = [decode_image(file.read_bytes()) for file in sorted(_REAL_CELLS.iterdir())[:_MAX_REAL_CELLS]]
    return {
        "a black image": [black],
        "a white image": [np.full_like(black, 255)],
        "noise": list(noise),
        "a real cell": [preprocessing.pixels(image) for image in real],
    }


if __name__ == "__main__":
    main()
