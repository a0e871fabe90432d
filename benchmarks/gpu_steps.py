"""The steps of ``benchmarks.gpu``: what they are, what they keep, and how results are written.

Training and reproductions are those of ``secondread reproduce``, with its recipes and seeds, so that a run that was
begun by either is finished by the other.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch

from benchmarks.gpu_state import Document, Setting, SkipStepError, Step, digest
from benchmarks.several_processes import Job, trained
from ml.datasets.blends import BLENDS, load_blend
from ml.files import write_bytes_atomically, write_json
from ml.release.device import runs_on_cuda
from ml.reproduce import human_labels, synthetic
from ml.reproduce.report import reproduce
from ml.reproduce.setting import Setting as Reproduction
from ml.training.learner import StepReport
from ml.training.run_folder import RunFolder
from ml.training.train import choose_precision, train

ROOT = Path(__file__).parents[1]
SEED = 0
#: Goals: seconds of 250 epochs of VGG16 on a device of the class of an H200, and the share of ONNX Runtime alone.
GOAL_SECONDS, GOAL_SHARE, CLIENTS = 180.0, 0.85, 64
_LINE_SECONDS = 15.0


def _mix_configuration(setting: Setting) -> Document:
    precision = choose_precision("auto", setting.device)
    config = synthetic.config("mix-cifar10", SEED, setting.tiny, precision)
    return {"train": config.to_dict(), "device": setting.device_name}


def _cifar10h_configuration(setting: Setting) -> Document:
    precision = choose_precision("auto", setting.device)
    asked = _reproduction("cifar10h", setting)
    configs = [human_labels.config(asked, SEED, labels, precision).to_dict() for labels in human_labels.TRAIN_LABELS]
    return {"train": configs, "device": setting.device_name}


def _out(name: str, configuration: Document, setting: Setting) -> Path:
    """Where a reproduction keeps its runs, whichever step works on it."""
    return setting.state / "reproductions" / f"{name}-{digest(configuration)}"


def _reproduction(name: str, setting: Setting, out: Path = Path()) -> Reproduction:
    said = _said_now_and_then()
    return Reproduction(
        name,
        out,
        (SEED,),
        quick=setting.tiny,
        device=str(setting.device),
        observer=lambda what, done, total: said(f"{what}: {done:,} of {total:,}"),
        deadline=setting.deadline,
    )


def _said_now_and_then() -> Callable[[str], None]:
    """Says a line where some time has passed since the last one."""
    last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_SECONDS:
            last = time.monotonic()
            print(f"  {line}", flush=True)

    return say


def train_mix_cifar10(setting: Setting) -> Document:
    """Train VGG16 on Mix-CIFAR-10 by the recipe of ``secondread reproduce mix-cifar10``, and time it."""
    began = time.perf_counter()
    dataset = load_blend(BLENDS["mix-cifar10"], cases=synthetic.QUICK_CASES if setting.tiny else None)
    loading = time.perf_counter() - began
    config = synthetic.config("mix-cifar10", SEED, setting.tiny, choose_precision("auto", setting.device))
    folder = RunFolder(_out("mix-cifar10", _mix_configuration(setting), setting) / f"seed-{SEED}")
    said = _said_now_and_then()

    def observe(report: StepReport) -> None:
        said(f"epoch {report.epoch + 1} of {config.epochs}: {report.images_per_second:,.0f} images/s")

    best = train(dataset, config, folder, device=setting.device, observer=observe, deadline=setting.deadline)
    rows, images = folder.read_metrics(), len(dataset.rows("train"))
    seconds = sum(row["seconds"] for row in rows)
    return {
        "what": f"{config.network} on Mix-CIFAR-10, {config.precision}, batches of {config.batch_size}",
        "epochs": len(rows),
        "images": images,
        "seconds": seconds,
        "goal_seconds": GOAL_SECONDS * len(rows) / 250,
        "images_per_second": images * len(rows) / seconds,
        "epochs_with_recorded_steps": sum(row.get("recorded", False) for row in rows),
        "loading_seconds": loading,
        "best_epoch": best["epoch"],
        "valid_loss": best["valid_loss"],
        "valid_agreement": best["valid_agreement"],
    }


def reproduce_mix_cifar10(setting: Setting) -> Document:
    """Tables 1 and 2 on the network of the training step."""
    return _reproduced("mix-cifar10", _mix_configuration(setting), setting)


def reproduce_cifar10h(setting: Setting) -> Document:
    """Train VGG16 on one and on three human labels per photograph, and test it on about 51."""
    return _reproduced("cifar10h", _cifar10h_configuration(setting), setting)


def _reproduced(name: str, configuration: Document, setting: Setting) -> Document:
    out = _out(name, configuration, setting)
    document: Document = dict(reproduce(_reproduction(name, setting, out)))
    if setting.results is not None:
        publish(name, out, setting)
    runs = [RunFolder(path.parent) for path in sorted(out.glob("*/metrics.jsonl"))]
    seconds = {run.path.name: sum(row["seconds"] for row in run.read_metrics()) for run in runs}
    return {"what": document["what"], "rows": len(document["rows"]), "training_seconds": seconds}


def serve(setting: Setting) -> Document:
    """Serve an untrained VGG16 to 64 clients, beside ONNX Runtime alone."""
    from benchmarks.gpu_serving import measure  # needs the packages of the service, which training does without

    device = setting.device.type
    runs_on_cuda("cuda" if device == "cuda" else "cpu")  # says what is missing
    network, clients, seconds, rounds = ("cnn3", 4, 0.5, 1) if setting.tiny else ("vgg16", CLIENTS, 8.0, 5)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), device=device, network=network, clients=clients, seconds=seconds, rounds=rounds)
    return {"network": network, "clients": clients, "goal_of_raw": GOAL_SHARE, "figures": figures}


def run_tests(setting: Setting) -> Document:
    """Run the tests that need a CUDA device.

    Raises:
        RuntimeError: one of them failed, or there are none.
    """
    marker = "not slow" if setting.tiny else "gpu"
    files = [ROOT / "tests/ml/test_splits.py"] if setting.tiny else _marked()
    command = [sys.executable, "-m", "pytest", "-q", "-m", marker, "-p", "no:cacheprovider", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode:
        raise RuntimeError(f"{last} (status {done.returncode}): {(done.stdout + done.stderr).strip()[-2000:]}")
    passed = re.search(r"(\d+) passed", last)
    return {"passed": int(passed[1]) if passed else 0, "said": last, "files": [path.name for path in files]}


def _marked() -> list[Path]:
    """Files with tests that need a CUDA device."""
    mark = "pytest.mark." + "gpu"
    return [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if mark in path.read_text()]


def train_on_several(setting: Setting) -> Document:
    """Share each batch among all devices, by NCCL, against one of them.

    Raises:
        SkipStepError: there is one device.
    """
    count = 2 if setting.device.type == "cpu" else torch.cuda.device_count()
    if count < 2:
        raise SkipStepError("there is one device; several are needed")
    tiny = Job(setting.device.type, cells=240, batch=64)
    job = tiny if setting.tiny else Job(setting.device.type, cells=6000, batch=256 * count)
    found = {str(n): trained(n, job) for n in (1, count)}
    clock = {n: min(row[0] for row in run["times"]) for n, run in found.items()}
    return {"devices": count, "speed": clock["1"] / clock[str(count)], "runs": found, "batch": job.batch}


def publish(name: str, out: Path, setting: Setting) -> Path:
    """Put page, document and figures of a reproduction among the results.

    Raises:
        ValueError: the device is no GPU.
    """
    folder = _results(setting) / f"{date.today().isoformat()}_{name}_vgg16"
    folder.mkdir(parents=True, exist_ok=True)
    for path in [out / f"{name}.md", out / f"{name}.json", *out.glob("*.svg")]:
        shutil.copy(path, folder / path.name)
    return folder


def write_results(name: str, results: Document, setting: Setting) -> Path:
    """Write what a step found as dated JSON, and all of the day's as one page in Markdown.

    Args:
        name: of the step.
        results: of it.
        setting: of the call.

    Raises:
        ValueError: the device is no GPU: what a CPU does here in tiny sizes is no result.
    """
    folder, day = _results(setting), date.today().isoformat()
    machine = {"device": setting.device_name, "cores": os.cpu_count(), "python": platform.python_version()}
    machine |= {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    path = folder / f"{day}_gpu_{name}.json"
    write_json(path, {"name": name, "machine": machine, "results": results})
    lines = [f"# On a GPU, {day}", "", f"{setting.device_name}, PyTorch {torch.__version__}. `make gpu`", ""]
    for found in sorted(folder.glob(f"{day}_gpu_*.json")):
        lines.append(f"- [{found.stem.partition('_gpu_')[2]}]({found.name})")
    write_bytes_atomically(folder / f"{day}_gpu.md", ("\n".join(lines) + "\n").encode())
    return path


def _results(setting: Setting) -> Path:
    if setting.device.type != "cuda" or setting.results is None:
        raise ValueError(f"results of device {setting.device} are not kept")
    setting.results.mkdir(parents=True, exist_ok=True)
    return setting.results


def _kept(run: Callable[[Setting], Document], name: str) -> Callable[[Setting], Document]:
    """A step that writes what it found among the results, where the call has a folder for them."""

    def kept(setting: Setting) -> Document:
        results = run(setting)
        if setting.results is not None:
            write_results(name, results, setting)
        return results

    return kept


def _plain(**settings: object) -> Callable[[Setting], Document]:
    """The configuration of a step that depends on nothing but the device and the sizes."""
    return lambda setting: {**settings, "device": setting.device_name, "tiny": setting.tiny}


def _step(
    name: str,
    what: str,
    least: float,
    configuration: Callable[[Setting], Document],
    run: Callable[[Setting], Document],
) -> Step:
    return Step(name, what, least, configuration, _kept(run, name))


STEPS = (
    _step(
        "mix-cifar10-training",
        "VGG16 on Mix-CIFAR-10, 250 epochs, timed: under 180 s on a device of the class of an H200",
        60,
        _mix_configuration,
        train_mix_cifar10,
    ),
    _step(
        "mix-cifar10",
        "the paper's Tables 1 and 2 on that network; trains it where the step before has not",
        60,
        lambda setting: {**_mix_configuration(setting), "report": 1},
        reproduce_mix_cifar10,
    ),
    _step(
        "cifar10h",
        "VGG16 on one and on three human labels of CIFAR-10N, tested on the 51 of CIFAR-10H",
        60,
        _cifar10h_configuration,
        reproduce_cifar10h,
    ),
    _step(
        "serving",
        "64 clients at once on an untrained VGG16: at least .85 of ONNX Runtime alone on the same device",
        180,
        _plain(clients=CLIENTS, seconds=8, rounds=5),
        serve,
    ),
    _step("tests", "the tests that need a CUDA device", 60, _plain(), run_tests),
    _step(
        "several-devices", "each batch shared among all devices, by NCCL, against one", 120, _plain(), train_on_several
    ),
)
