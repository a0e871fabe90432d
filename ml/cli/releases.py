"""Commands that make a release of another release or of a model made elsewhere: adapt, quantize and adopt."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from ml.cli.shared import ChosenLevel, ChosenMethod, Json, WithHead, emit, figure, progress_bars, say
from ml.cli.stages import data_options, metric_lines, on_disagreement, say_loading

if TYPE_CHECKING:
    from ml.release.adapting import AdaptReport
    from ml.training.adopt import AdoptReport, PreprocessingSteps
    from ml.training.quantize import QuantizeReport

commands = typer.Typer()


@commands.command()
def adapt(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    images: Annotated[Path, typer.Option(help="Folder of images, or a table with columns case_id and file.")],
    labels: Annotated[Path, typer.Option(help="LABELS table of your annotators, .csv, .csv.gz or .parquet.")],
    out: Annotated[Path, typer.Option(help="New release folder.")],
    cluster: Annotated[
        str | None, typer.Option(help="Column of LABELS that names the patient (default: `patient`).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new release.")] = None,
    fused: Annotated[bool, typer.Option("--fused", help="Also write one graph with the final probabilities.")] = False,
    as_json: Json = False,
) -> None:
    """Adapt a model release to other annotators with a few images that two of them labelled.

    The network is unchanged. The command estimates the temperature and the level and slope of the disagreement again:
    it needs 20 images with two labels, and 50 are better. It leaves out images that trained the release. The printed
    metrics of the new release come from fits without the evaluated image.
    """
    from ml.release.adapting import adapt_release

    fuse = None
    if fused:
        from ml.training.export import fused_graph

        fuse = fused_graph
    with progress_bars("predicting") as observe:
        report = adapt_release(release, images, labels, out, cluster=cluster, name=name, fuse=fuse, observer=observe)
    for sentence in _adaptation_warnings(report):
        say(sentence)
    emit(report, as_json, _adaptation_text(report))


def _adaptation_warnings(report: "AdaptReport") -> list[str]:
    warnings = []
    if report["n_left_out"]:
        warnings.append(f"{report['n_left_out']:,} images are left out because the release was made with them")
    if report["trained_on"] == "unknown":
        warnings.append("the training images of the release are unknown: it carries no digests of them")
    if report["n_without_labels"]:
        warnings.append(f"{report['n_without_labels']:,} images have no label")
    if report["n_unlike"]:
        warnings.append(
            f"warning: {report['n_unlike']:,} images are out of distribution; this command adapts to other "
            "annotators, not to another stain or microscope"
        )
    return warnings


def _adaptation_text(report: "AdaptReport") -> str:
    change = report["adaptation"]
    lines = [f"{change['n_cases']:,} labelled images, {change['n_double_reads']:,} of them read twice"]
    lines.append(f"{'':<34}{'before':>10}{'after':>10}")
    rows = (
        ("temperature", change["temperature_before"], change["temperature_after"]),
        ("rise of the log concentration", 0.0, change["rise"]),
        ("slope of logit φ", 1.0, change["slope"]),
        ("level of logit φ", 0.0, change["level"]),
        (f"mean φ (they differ on {change['seen']:.3f})", change["mean_before"], change["mean_after"]),
    )
    lines += [f"{label:<34}{before:>10.3f}{after:>10.3f}" for label, before, after in rows]
    lines.append("")
    lines.append(f"{'by fits without the image':<34}{'before':>28}{'after':>28}")
    before, after = report["figures"].values()
    for metric, value in before.items():
        lines.append(f"{metric:<34}{figure(value, digits=3):>28}{figure(after[metric], digits=3):>28}")
    lines += [f"change of {name:<24}{figure(paired, digits=3):>38}" for name, paired in report["changes"].items()]
    low = report["changes"]["L"]["low"]
    if low is not None and low > 0:
        lines.append(
            "warning: the class probabilities are WORSE than before; your annotators differ more often than this "
            "release can say without blurring its classes: calibrate it anew, or keep it as it is"
        )
    high = report["changes"]["L_D"]["high"]
    if high is None or high >= 0:
        lines.append("these labels do not show that its disagreement probability suits your annotators better")
    if change["constant"] is not None:
        reason = "what the network says of single cells is not shown to be better than a constant"
        lines.append(f"{reason}: the release has {change['seen']:.4f} of every cell")
    elif change["verdict"] != "better":
        lines.append("the disagreement probability is no better than a constant so far: have more images read twice")
    return "\n".join([*lines, f"release {report['release']}"])


@commands.command()
def quantize(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    data: Annotated[str, typer.Option(help="What it was trained on, by name or folder, or other labelled images.")],
    out: Annotated[Path, typer.Option(help="New release folder.")],
    ranges: Annotated[
        Literal["entropy", "percentile", "minmax"],
        typer.Option(help="How far activations reach: by least divergence, by the 99.999 % quantile, or to the ends."),
    ] = "percentile",
    weight_bits: Annotated[
        int,
        typer.Option(min=7, max=8, help="7 for other servers of networks on processors without VNNI; less accurate."),
    ] = 8,
    images: Annotated[
        int, typer.Option(min=1, help="Maximum number of calibration images to measure the ranges on.")
    ] = 256,
    name: Annotated[str | None, typer.Option(help="Name of the new release; the old one's with int8.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed for the split and the draws (default: the seed of the release).")
    ] = None,
    cases: Annotated[int | None, typer.Option(help="cells: number of simulated cells.")] = None,
    valid_labels: Annotated[int | None, typer.Option(help="mix_…: labels per validation image, 1, 2 or 5.")] = None,
    shifts: Annotated[
        bool, typer.Option("--shifts/--no-shifts", help="Try standard shifts of held-out images out, for the card.")
    ] = True,
    despite_gate: Annotated[
        bool,
        typer.Option("--despite-gate", help="Write it even if it is worse on held-out images; its card notes this."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Quantise a release to int8: faster on CPUs, recalibrated, and rejected if it is worse on held-out images.

    The convolutions compute in whole numbers, with ranges of activations from images of the partition calibration;
    temperature, concentration head and checks are fitted again on them, and both networks are judged on the partition
    test. Images that the release was made with judge nothing.
    """
    from ml.datasets.base import is_built_in, load_dataset
    from ml.release.artifact import read_release, require_empty
    from ml.training.quantize import QuantizationRequest, quantize_release

    source = read_release(release)
    require_empty(out)
    drawn = int(source.card["seed"]) if seed is None else seed
    say_loading(data)
    options = data_options(data, cases, valid_labels, None, None, drawn)
    if not is_built_in(data):  # a folder is read as the release's network sees it
        seen = source.preprocessing
        options = data_options(data, cases, valid_labels, seen.size, seen.crop, drawn)
        options |= {} if seen.channels == 3 else {"grey": True}
    dataset = load_dataset(data, options)
    wish = QuantizationRequest(ranges, images, drawn, name, despite_gate, shifts, 7 if weight_bits == 7 else 8)
    with progress_bars("quantising") as observe:
        report = quantize_release(release, dataset, out, wish, lambda part, done, total: observe(done, total, part))
    for sentence in _quantization_warnings(report):
        say(sentence)
    emit(report, as_json, _quantization_text(report))


def _quantization_warnings(report: "QuantizeReport") -> list[str]:
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
        warnings.append("the training images of the release are unknown: it carries no digests of them")
    warnings += [f"warning: written despite the check: {harm}" for harm in report["quantized"]["harms"]]
    return warnings


_METRICS = ("agreement", "L", "skill", "CE", "L_D", "skill_D", "CE_D")


def _quantization_text(report: "QuantizeReport") -> str:
    quantized = report["quantized"]
    sizes = [f"{size / 1e6:.1f} MB" for size in report["network_bytes"].values()]
    lines = [
        f"{quantized['n_layers']} convolutions in whole numbers, ranges by {quantized['ranges']} on "
        f"{quantized['n_range_images']:,} images; network {sizes[0]} -> {sizes[1]}",
        f"{report['n_held_out']:,} held-out cells".ljust(22) + "".join(f"{step:>28}" for step in report["figures"]),
    ]
    before, after = report["figures"].values()
    lines += [f"{metric:<22}{figure(before[metric]):>28}{figure(after[metric]):>28}" for metric in _METRICS]
    lines += [f"change of {name:<12}{figure(change, '+'):>56}" for name, change in quantized["changes"].items()]
    return "\n".join([*lines, f"release {report['release']}"])


@commands.command()
def adopt(
    source: Annotated[
        str,
        typer.Argument(
            help="MODEL.onnx, module.py:factory (returns a torch.nn.Module), or a table of outputs: case_id, "
            "logit:<class> or prob:<class>."
        ),
    ],
    out: Annotated[Path, typer.Option(help="New release folder.")],
    data: Annotated[Path | None, typer.Option(help="Folder of images with labels.")] = None,
    labels: Annotated[Path | None, typer.Option(help="LABELS table, with --images or a table of outputs.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="Images of --labels: a folder, or a table with columns case_id and file.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Classes in the order of the outputs, such as blast,monocyte (default: sorted).")
    ] = None,
    output: Annotated[
        Literal["logits", "probabilities"] | None,
        typer.Option(help="What the model returns (default: found out on the images)."),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Tensor (ONNX) or layer (module) of the features; left out, what enters the last linear layer. Of a "
            "table: another table with case_id and feature:<name>."
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Side of the network's input in px.")] = None,
    crop: Annotated[int | None, typer.Option(min=1, help="Side of the central square to keep, in px.")] = None,
    mean: Annotated[
        str | None, typer.Option(help="Means by channel of pixels in [0, 1], such as 0.485,0.456,0.406 (default: 0).")
    ] = None,
    std: Annotated[str | None, typer.Option(help="Standard deviations by channel (default: 1).")] = None,
    colour: Annotated[Literal["rgb", "grey"] | None, typer.Option(help="Channels of the network's input.")] = None,
    preprocessing: Annotated[
        Path | None, typer.Option(help="JSON file with size, crop, channels, mean and std, as in a card.")
    ] = None,
    method: ChosenMethod = "temperature",
    alpha: WithHead = True,
    level: ChosenLevel = "nominal",
    held_out: Annotated[
        float | None,
        typer.Option(help="Share of the patients that evaluate (default: partition `test` of LABELS, or half)."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Column of LABELS that names the patient (default: `patient`).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for the split.")] = 0,
    name: Annotated[str | None, typer.Option(help="Name of the release (default: that of the source).")] = None,
    as_json: Json = False,
) -> None:
    """Calibrate a model made elsewhere into a release.

    Use cells that the model was not trained on, most of them with labels of two annotators. Half of the patients
    calibrate, the others evaluate.
    """
    from ml.adoption import adopt as run
    from ml.util.files import read_json

    channels = None if colour is None else {"rgb": 3, "grey": 1}[colour]
    numbers = {"mean": _numbers("--mean", mean), "std": _numbers("--std", std)}
    given = {"size": size, "crop": crop, "channels": channels, **numbers}
    steps = {} if preprocessing is None else read_json(preprocessing)
    steps |= {key: value for key, value in given.items() if value is not None}
    # a factory or a network may print, and stdout is for the report
    with progress_bars("predicting") as observe, redirect_stdout(sys.stderr):
        report = run(
            source,
            out,
            data=data,
            labels=labels,
            images=images,
            classes=None if classes is None else [code.strip() for code in classes.split(",")],
            output=output,
            features=features,
            preprocessing=cast("PreprocessingSteps", steps),
            method=method,
            alpha=alpha,
            level=level,
            seed=seed,
            held_out=held_out,
            cluster=cluster,
            name=name,
            observer=observe,
        )
    for sentence in report["warnings"]:
        say(f"warning: {sentence}")
    emit(report, as_json, _adoption_text(report))


def _numbers(option: str, text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError as exc:
        raise typer.BadParameter(f"{option} must be numbers like 0.5,0.5,0.5, got {text!r}") from exc


def _adoption_text(report: "AdoptReport") -> str:
    adopted, parity = report["adopted"], report["parity"]
    lines = [
        f"{adopted['output']} of {adopted['source']}, features: {adopted['features']}; {report['n_calibration']:,} "
        "cells calibrate" + (f", {adopted['n_left_out']:,} are left out" if adopted["n_left_out"] else "")
    ]
    if parity is not None:
        lines.append(
            f"parity with the source on {parity['n']} images: probabilities within "
            f"{parity['max_probability_difference']:.1e}"
        )
    lines += metric_lines(report["held_out"], report["n_held_out"])
    lines += on_disagreement(report["disagreement"], report["constant_concentration"])
    if report["picture"] is not None:
        lines.append(f"three images as the network sees them: {report['picture']}")
    return "\n".join([*lines, f"release {report['release']}"])
