"""An int8 release beside the one in float32 that it was made of: time of a prediction by its parts.

    python -m benchmarks.int8 --save

From a JPEG of 360 × 363 pixels to the prediction, by the paper's VGG16 (224 × 224, 22 classes, random weights) and by
the network of the demo's release; both networks take turns, round by round, in one process. What a network loses in
whole numbers is measured by ``secondread quantize`` on held-out images.
"""

import json
import statistics
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.harness import DEMO, Figures, in_turn, main
from benchmarks.networks import vgg_graph, write_network_release
from benchmarks.pictures import blobs, cell_jpeg
from ml.images.preprocess import decode_image
from ml.release.artifact import Release, read_release, write_release
from ml.release.predictor import Predictor, prediction_of, quality_features_for_release
from ml.training.quantize import AFTER, BEFORE, quantize_graph

#: Predictions of each network in a round.
PREDICTIONS = {"VGG16": 8, "compact": 300}
STAGES = ("decode", "crop and shrink", "normalise", "network", "statistics of pixels", "calibration and checks")


def vgg_releases(folder: Path, n_images: int) -> dict[str, Release]:
    """The paper's VGG16 with random weights, and the same in whole numbers, with checks of familiarity.

    Args:
        folder: to work in.
        n_images: that give the ranges of activations.
    """
    graph, width, preprocessing = vgg_graph()
    (folder / "vgg16.onnx").write_bytes(graph)
    ranges = preprocessing.normalise(blobs(n_images, preprocessing.size, 1))
    whole = quantize_graph(folder / "vgg16.onnx", np.array_split(ranges, max(1, n_images // 2)), "minmax")[0]
    networks = {BEFORE: graph, AFTER: whole}
    return {name: write_network_release(folder, data, width, preprocessing, name) for name, data in networks.items()}


def demo_releases(folder: Path, n_images: int) -> dict[str, Release]:
    """The demo's release, and its network in whole numbers behind the same calibration: for speed alone."""
    source = read_release(DEMO)
    pixels = blobs(n_images, source.preprocessing.size, 1)
    whole = quantize_graph(source.network, [source.preprocessing.normalise(pixels)], "minmax")[0]
    names = [name for name in source.card["files"] if name.endswith((".safetensors", ".index"))]
    kept = {name: (DEMO / name).read_bytes() for name in names}
    files = {**kept, "network.onnx": whole}
    return {BEFORE: source, AFTER: write_release(folder / "compact", files, source.calibration, source.card, "")}


def prediction_by_stages(predictor: Predictor, jpeg: bytes) -> list[float]:
    """Seconds of each stage of one prediction, from the file to the distribution."""
    release, marks = predictor.release, [time.perf_counter()]

    def mark() -> None:
        marks.append(time.perf_counter())

    image = decode_image(jpeg)
    mark()
    pixels = np.stack(predictor.pixels([image]))
    mark()
    inputs = release.preprocessing.normalise(pixels)
    mark()
    logits, features = predictor.run(inputs)
    mark()
    seen = quality_features_for_release(release, pixels)
    mark()
    prediction_of(release, logits, features, seen)
    mark()
    return [end - start for start, end in pairwise(marks)]


def operators(release: Release) -> dict[str, float]:
    """Share of a run of the network by kind of operator, the largest first."""
    side = release.preprocessing.size
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/run"
        session = onnxruntime.InferenceSession(str(release.network), options, providers=["CPUExecutionProvider"])
        inputs = release.preprocessing.normalise(blobs(1, side, 3))
        for _ in range(3):
            session.run(None, {"image": inputs})
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
    total = sum(spent.values())
    shares = {name: spent[name] / total for name in sorted(spent, key=lambda name: -spent[name])}
    return {name: share for name, share in shares.items() if share >= 0.005}


def speed(releases: dict[str, Release], rounds: int, predictions: int) -> Figures:
    """Milliseconds by stage, and by how much the int8 network is faster: medians over rounds.

    Args:
        releases: in float32 and in int8.
        rounds: in each of which both networks predict.
        predictions: of each network in a round.
    """
    predictors = {name: Predictor(release, device="cpu") for name, release in releases.items()}
    jpeg = cell_jpeg()
    for predictor in predictors.values():
        prediction_by_stages(predictor, jpeg)
    seen: dict[str, list[list[float]]] = {name: [] for name in predictors}
    for order in in_turn(list(predictors), rounds):
        for name in order:
            times = [prediction_by_stages(predictors[name], jpeg) for _ in range(predictions)]
            seen[name].append(np.median(times, axis=0).tolist())
    before, after = (np.array(seen[name]) for name in (BEFORE, AFTER))
    network = STAGES.index("network")
    return {
        "ms": {
            name: dict(zip(STAGES, (1000 * np.median(rows, axis=0)).tolist(), strict=True))
            for name, rows in seen.items()
        },
        "end to end": statistics.median((before.sum(axis=1) / after.sum(axis=1)).tolist()),
        "network alone": statistics.median((before[:, network] / after[:, network]).tolist()),
        "network of the int8 prediction": statistics.median((after[:, network] / after.sum(axis=1)).tolist()),
        "operators": {name: operators(release) for name, release in releases.items()},
    }


def measure(quick: bool) -> Figures:
    """Speed of both networks."""
    rounds, n_images, figures = (1, 4, {}) if quick else (5, 16, {})
    with tempfile.TemporaryDirectory() as temporary:
        for name, releases in (("VGG16", vgg_releases), ("compact", demo_releases)):
            folder = Path(temporary) / name
            folder.mkdir()
            figures[name] = speed(releases(folder, n_images), rounds, 2 if quick else PREDICTIONS[name])
    return figures


if __name__ == "__main__":
    main(__doc__, {"int8": measure})
