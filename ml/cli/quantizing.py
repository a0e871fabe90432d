"""Command that quantises a release's network to whole numbers."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ml.cli.shared import Json, emit, say
from ml.cli.stages import data_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import TaskID

    from ml.metrics.jackknife import EstimateDocument
    from ml.training.quantize import Observer, QuantizeReport

commands = typer.Typer()


@commands.command()
def quantize(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    data: Annotated[str, typer.Option(help="What it was trained on, by name or folder, or other labelled images.")],
    out: Annotated[Path, typer.Option(help="Release folder to make.")],
    ranges: Annotated[
        Literal["entropy", "percentile", "minmax"],
        typer.Option(help="How far activations reach: by least divergence, by the 99.999 % quantile, or to the ends."),
    ] = "percentile",
    weight_bits: Annotated[
        int,
        typer.Option(min=7, max=8, help="7 for other servers of networks on processors without VNNI; less accurate."),
    ] = 8,
    images: Annotated[int, typer.Option(min=1, help="Images of the calibration partition that say so, at most.")] = 256,
    name: Annotated[str | None, typer.Option(help="Name of the new release; the old one's with int8.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the data's split, and of everything drawn; the release's where left out.")
    ] = None,
    cases: Annotated[int | None, typer.Option(help="cells: number of simulated cells.")] = None,
    valid_labels: Annotated[int | None, typer.Option(help="mix_…: labels per validation image, 1, 2 or 5.")] = None,
    shifts: Annotated[
        bool, typer.Option("--shifts/--no-shifts", help="Try standard shifts of held-out images out, for the card.")
    ] = True,
    despite_gate: Annotated[
        bool, typer.Option("--despite-gate", help="Make it although it is worse on held-out images; its card says so.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make an int8 release: faster on CPUs, calibrated anew, and refused where it is worse on held-out images.

    The convolutions compute in whole numbers, with ranges of activations from images of the partition calibration;
    temperature, concentration head and checks are fitted anew on them, and both networks are judged on the partition
    test. Images that the release was made with judge nothing.
    """
    from ml.datasets.registry import DATASET_NAMES, load_dataset
    from ml.release.artifact import read_release, require_empty
    from ml.training.quantize import QuantizationRequest, quantize_release

    source = read_release(release)
    require_empty(out)
    drawn = int(source.card["seed"]) if seed is None else seed
    say(f"loading data set {data}")
    options = data_options(data, cases, valid_labels, None, None, drawn)
    if data not in DATASET_NAMES:  # a folder is read as the release's network sees it
        seen = source.preprocessing
        options = data_options(data, cases, valid_labels, seen.size, seen.crop, drawn)
        options |= {} if seen.channels == 3 else {"grey": True}
    dataset = load_dataset(data, options)
    wish = QuantizationRequest(ranges, images, drawn, name, despite_gate, shifts, 7 if weight_bits == 7 else 8)
    with _bars() as observer:
        report = quantize_release(release, dataset, out, wish, observer)
    for sentence in _quantization_warnings(report):
        say(sentence)
    emit(report, as_json, _quantization_text(report))


@contextmanager
def _bars() -> "Iterator[Observer]":
    """Progress on stderr, a bar for each part of the work, on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    with Progress(console=console, disable=not console.is_terminal) as bars:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


def _quantization_warnings(report: "QuantizeReport") -> list[str]:
    """Warnings about omitted images and doubtful results."""
    warnings, left_out = [], report["left_out"]
    if left_out["test"]:
        warnings.append(
            f"{left_out['test']:,} images of the partition test judge nothing: the release was made with them"
        )
    if left_out["calibration"]:
        warnings.append(
            f"{left_out['calibration']:,} images of the partition calibration trained the network: left out"
        )
    if report["trained_on"] == "unknown":
        warnings.append("which images the release was made with is unknown: it carries no digests of them")
    warnings += [f"warning: made despite the gate: {harm}" for harm in report["quantized"]["harms"]]
    return warnings


_METRICS = ("agreement", "L", "skill", "CE", "L_D", "skill_D", "CE_D")


def _quantization_text(report: "QuantizeReport") -> str:
    """Both networks on the same cells, for people."""
    quantized = report["quantized"]
    sizes = [f"{size / 1e6:.1f} MB" for size in report["network_bytes"].values()]
    lines = [
        f"{quantized['n_layers']} convolutions in whole numbers, ranges by {quantized['ranges']} on "
        f"{quantized['n_range_images']:,} images; network {sizes[0]} -> {sizes[1]}",
        f"{report['n_held_out']:,} held-out cells".ljust(22) + "".join(f"{step:>28}" for step in report["figures"]),
    ]
    before, after = report["figures"].values()
    lines += [f"{metric:<22}{_figure(before[metric]):>28}{_figure(after[metric]):>28}" for metric in _METRICS]
    lines += [f"change of {name:<12}{_figure(change, '+'):>56}" for name, change in quantized["changes"].items()]
    return "\n".join([*lines, f"release {report['release']}"])


def _figure(metric: "EstimateDocument", sign: str = "") -> str:
    value, low, high = metric["value"], metric["low"], metric["high"]
    if value is None:
        return "–"
    if low is None or high is None:
        return f"{value:{sign}.4f}"
    return f"{value:{sign}.4f} ({low:{sign}.4f} to {high:{sign}.4f})"
