"""An int8 release beside the one in float32 that it was made of: time of a prediction by its parts, and what it costs.

    python -m benchmarks.int8 --save

Speed: from a JPEG of 360 × 363 pixels to the prediction, by the paper's VGG16 (224 × 224, 22 classes, random weights)
and by the network of the demo's release; both networks take turns, round by round, in one process. Accuracy, on
held-out images that nothing was fitted to, with paired intervals: the demo's release on its nucleus shapes, and a
compact network that is trained here for some epochs on CIFAR-10N and judged on CIFAR-10H (about 51 labels per
photograph); without the data sets (``SECONDREAD_DATASETS``) speed alone.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from rich.progress import Progress

from benchmarks.serving import cell_jpeg
from ml.calibration.calibrators import Calibration
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.scaling import Scaling
from ml.datasets.base import ClassInfo, ImageDataset
from ml.datasets.registry import load_dataset
from ml.images.image_quality_features import compute_quality_features, feature_columns
from ml.images.preprocess import Preprocessing, decode_image
from ml.release.artifact import FAMILIARITY_FILE, Release, read_release, write_release
from ml.release.ood_detector import DetectorInputs, fit_ood_detector
from ml.release.predictor import Predictor, prediction_of, quality_features_for_release
from ml.training.calibrate import calibrate_run
from ml.training.export import export_run, to_onnx
from ml.training.networks import build_network
from ml.training.quantize import (
    AFTER,
    BEFORE,
    RANGE_IMAGES,
    QuantizationRequest,
    QuantizeReport,
    quantize_graph,
    quantize_release,
)
from ml.training.run_folder import RunFolder, TrainConfig
from ml.training.train import choose_precision, train
from tests.support.tiny_release import write_tiny_release

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "app" / "demo" / "cells" / "release"
CORES = len(os.sched_getaffinity(0))
VGG_SIDE, VGG_CLASSES = 224, 22
GOAL = 3.3
#: Predictions of each network in a round.
PREDICTIONS = {"VGG16": 8, "compact": 300}
#: Ways to quantise that are compared: ranges of activations, and bits of a weight.
WAYS: tuple[tuple[Any, Any], ...] = (("percentile", 8), ("minmax", 8), ("entropy", 8), ("percentile", 7))
STAGES = ("decode", "crop and shrink", "normalise", "network", "statistics of pixels", "calibration and checks")


def noise(n: int, side: int, seed: int) -> npt.NDArray[np.uint8]:
    """Images (N, side, side, 3) of soft blobs: they are only there to have something to compute on."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, size=(n, side // 16, side // 16, 3), dtype=np.uint8)
    return np.repeat(np.repeat(coarse, 16, axis=1), 16, axis=2)


def vgg_releases(folder: Path, n_images: int) -> dict[str, Release]:
    """The paper's VGG16 with random weights, and the same in whole numbers, with checks of familiarity.

    Args:
        folder: to work in.
        n_images: by which the ranges of activations are found.
    """
    torch.manual_seed(0)
    network = build_network("vgg16", 3, VGG_CLASSES).eval()
    preprocessing = Preprocessing(3, None, VGG_SIDE, (0.5,) * 3, (0.25,) * 3)
    classes = [ClassInfo(f"class-{k}", f"Class {k}", "") for k in range(VGG_CLASSES)]
    card = {
        **read_release(write_tiny_release(folder / "tiny")).card,
        "preprocessing": preprocessing.to_dict(),
        "classes": [asdict(info) for info in classes],
        "network": "vgg16",
    }
    calibration = Calibration(Scaling(), ConcentrationHead(np.zeros(network.head.in_features), 1.0))
    graph = to_onnx(network, torch.randn(2, 3, VGG_SIDE, VGG_SIDE), ["logits", "features"])
    (folder / "vgg16.onnx").write_bytes(graph)
    ranges = preprocessing.normalise(noise(n_images, VGG_SIDE, 1))
    whole = quantize_graph(folder / "vgg16.onnx", np.array_split(ranges, max(1, n_images // 2)), "minmax")[0]
    found = {}
    for name, data in ((BEFORE, graph), (AFTER, whole)):
        plain = write_release(folder / f"plain {name}", {"network.onnx": data}, calibration, card, "for benchmarks")
        files = {"network.onnx": data, FAMILIARITY_FILE: _familiarity(plain)}
        found[name] = write_release(folder / f"vgg16 {name}", files, calibration, card, "for benchmarks")
    return found


def _familiarity(release: Release) -> bytes:
    pixels = noise(40, release.preprocessing.size, 2)
    logits, features = Predictor(release, device="cpu").outputs(list(pixels))
    looks = compute_quality_features(pixels)
    halves = [DetectorInputs(features[rows], logits[rows], looks[rows]) for rows in (slice(0, 20), slice(20, 40))]
    found = fit_ood_detector(halves[0], halves[1], feature_columns(release.preprocessing.size, 3))
    assert found is not None
    return found.to_bytes()


def demo_releases(folder: Path, n_images: int) -> dict[str, Release]:
    """The demo's release, and its network in whole numbers behind the same calibration: for speed alone."""
    source = read_release(DEMO)
    pixels = noise(n_images, source.preprocessing.size, 1)
    whole = quantize_graph(source.network, [source.preprocessing.normalise(pixels)], "minmax")[0]
    names = [name for name in source.card["files"] if name.endswith((".safetensors", ".index"))]
    kept = {name: (DEMO / name).read_bytes() for name in names}
    made = write_release(folder / "compact", {**kept, "network.onnx": whole}, source.calibration, source.card, "")
    return {BEFORE: source, AFTER: made}


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


def speed(releases: dict[str, Release], rounds: int, predictions: int, threads: int) -> dict[str, Any]:
    """Milliseconds by stage, and by how much the int8 network is faster: medians over rounds.

    Args:
        releases: in float32 and in int8.
        rounds: in each of which both networks predict.
        predictions: of each network in a round.
        threads: of a run of the network.
    """
    predictors = {name: Predictor(release, threads, device="cpu") for name, release in releases.items()}
    jpeg = cell_jpeg()
    found: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in predictors}
    for predictor in predictors.values():
        prediction_by_stages(predictor, jpeg)
    for number in range(rounds):
        names = list(predictors)[:: 1 if number % 2 == 0 else -1]
        times = {name: [prediction_by_stages(predictors[name], jpeg) for _ in range(predictions)] for name in names}
        for name in names:
            found[name].append(np.median(times[name], axis=0))
    before, after = (np.array(found[name]) for name in (BEFORE, AFTER))
    network = STAGES.index("network")
    return {
        "ms": {
            name: dict(zip(STAGES, (1000 * np.median(found[name], axis=0)).tolist(), strict=True)) for name in found
        },
        "end to end": statistics.median((before.sum(axis=1) / after.sum(axis=1)).tolist()),
        "network alone": statistics.median((before[:, network] / after[:, network]).tolist()),
        "network of the int8 prediction": statistics.median((after[:, network] / after.sum(axis=1)).tolist()),
        "operators": {name: operators(release, threads) for name, release in releases.items()},
    }


def operators(release: Release, threads: int, runs: int = 3) -> dict[str, float]:
    """Share of a run of the network by kind of operator, the largest first."""
    side = release.preprocessing.size
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/run"
        session = onnxruntime.InferenceSession(str(release.network), options, providers=["CPUExecutionProvider"])
        inputs = release.preprocessing.normalise(noise(1, side, 3))
        for _ in range(runs):
            session.run(None, {"image": inputs})
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
    total = sum(spent.values())
    shares = {name: spent[name] / total for name in sorted(spent, key=lambda name: -spent[name])}
    return {name: share for name, share in shares.items() if share >= 0.005}


def cifar_release(folder: Path, epochs: int, cases: int | None) -> tuple[Path, ImageDataset]:
    """A compact network that is trained for some epochs on CIFAR-10N, and its data.

    Args:
        folder: to work in.
        epochs: of the training.
        cases: keep only that many of each partition; None for all.
    """
    options = {} if cases is None else {"cases": cases}
    dataset = load_dataset("cifar10h", options)
    config = TrainConfig(
        data="cifar10h",
        data_options=options,
        network="compact",
        epochs=epochs,
        batch_size=128,
        learning_rate=2e-3,
        warmup_epochs=1,
        decay_epochs=(max(1, epochs - 1),),
        patience=epochs,
        seed=0,
        precision=choose_precision("auto", torch.device("cpu")),
        compiled=False,
        backbone_weights=None,
    )
    run = RunFolder(folder / "run")
    train(dataset, config, run, device=torch.device("cpu"))
    calibrate_run(run, method="temperature", alpha=True)
    return export_run(run, folder / "release", name="CIFAR-10N").path, dataset


def accuracies(source: Path, dataset: ImageDataset, folder: Path, n_images: int) -> dict[str, QuantizeReport]:
    """What each way to quantise changes on held-out images.

    Args:
        source: release in float32.
        dataset: that it was made with.
        folder: to work in.
        n_images: by which the ranges of activations are found.
    """
    found = {}
    for ranges, bits in WAYS:
        name = f"{ranges}, {bits} bits"
        wish = QuantizationRequest(ranges, n_images, shifts=False, despite_gate=True, weight_bits=bits)
        found[name] = quantize_release(source, dataset, folder / name, wish)
        found[name]["release"] = ""  # a folder of this run
    return found


def accuracy(folder: Path, arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, QuantizeReport]]]:
    """Reports by data set."""
    n_images, cases = (32, 100) if arguments.quick else (RANGE_IMAGES, None)
    nucleus = load_dataset("pbc_nucleus", {} if cases is None else {"cases": cases})
    yield "nucleus shape, the demo's release", accuracies(DEMO, nucleus, folder / "nucleus", n_images)
    source, cifar = cifar_release(folder / "cifar", 1 if arguments.quick else arguments.epochs, cases)
    yield "CIFAR-10H, compact", accuracies(source, cifar, folder / "cifar ways", n_images)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that is asked for."""
    rounds, n_images = (1, 4) if arguments.quick else (arguments.rounds, 16)
    found: dict[str, Any] = {"load": os.getloadavg()[0], "speed": {}, "accuracy": {}}
    with tempfile.TemporaryDirectory() as temporary, Progress(transient=True) as bar:
        folder, task = Path(temporary), bar.add_task("speed", total=None)
        for name, made in (("VGG16", vgg_releases), ("compact", demo_releases)):
            (folder / name).mkdir()
            releases = made(folder / name, n_images)
            each = 2 if arguments.quick else PREDICTIONS[name]
            found["speed"][name] = speed(releases, rounds, each, arguments.threads)
        if os.environ.get("SECONDREAD_DATASETS"):
            bar.update(task, description="accuracy")
            found["accuracy"] = dict(accuracy(folder, arguments))
    return found


def show(found: dict[str, Any]) -> None:
    """Print what was measured."""
    for name, row in found["speed"].items():
        print(f"{name}: {row['end to end']:.2f} × end to end, network alone {row['network alone']:.2f} ×")
        for stage in STAGES:
            print(f"  {stage:<24}{row['ms'][BEFORE][stage]:>10.2f} ms{row['ms'][AFTER][stage]:>10.2f} ms")
        for network, shares in row["operators"].items():
            print(f"  {network}: " + ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()))
    for name, ways in found["accuracy"].items():
        print(f"{name}, {next(iter(ways.values()))['n_held_out']:,} held-out images")
        for way, report in ways.items():
            changes = "  ".join(
                f"{metric} {change['value']:+.5f} ± {change['se'] or 0:.5f}"
                for metric, change in report["quantized"]["changes"].items()
            )
            print(f"  {way:<22}{changes}  {'refused' if report['quantized']['harms'] else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="of a run of the network, 0 for all cores")
    parser.add_argument("--epochs", type=int, default=4, help="of the training on CIFAR-10N")
    parser.add_argument("--quick", action="store_true", help="whether it runs; the figures mean nothing")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/DATE_int8.json")
    arguments = parser.parse_args()
    found = measure(arguments)
    show(found)
    print(f"goal: {GOAL} × end to end with VGG16")
    if arguments.save:
        machine = f"{CORES} cores, {platform.machine()}"
        document = {"machine": machine, "rounds": arguments.rounds, "threads": arguments.threads} | found
        out = Path(__file__).parent / "results" / f"{date.today()}_int8.json"
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
