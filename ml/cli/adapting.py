"""The command that adapts a release to other annotators, without a service."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ml.cli.shared import Json, emit, say

if TYPE_CHECKING:
    from ml.metrics.jackknife import EstimateDocument
    from ml.release.adapting import AdaptReport

commands = typer.Typer()


@commands.command()
def adapt(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    images: Annotated[Path, typer.Option(help="Folder of images, or a table with columns case_id and file.")],
    labels: Annotated[Path, typer.Option(help="LABELS table of your annotators, .csv, .csv.gz or .parquet.")],
    out: Annotated[Path, typer.Option(help="Release folder to make.")],
    cluster: Annotated[
        str | None, typer.Option(help="Column of LABELS that names the patient; `patient` where left out.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new release.")] = None,
    fused: Annotated[bool, typer.Option("--fused", help="Also write one graph with the final probabilities.")] = False,
    as_json: Json = False,
) -> None:
    """Adapt a release to other annotators by few images that they read twice.

    The network and what it knows of the cells stay. Relearned are the temperature, and level and slope of the
    disagreement: from 20 images with two labels on, better from 50. Images that the release was made with are left
    out. What is printed of the new release comes from fits that had not seen the image.
    """
    from rich.console import Console
    from rich.progress import Progress

    from ml.release.adapting import adapt_release

    fuse = None
    if fused:
        from ml.training.export import fused_graph

        fuse = fused_graph
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("predicting", total=None)

        def observe(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        report = adapt_release(release, images, labels, out, cluster=cluster, name=name, fuse=fuse, observer=observe)
    for sentence in _adaptation_warnings(report):
        say(sentence)
    emit(report, as_json, _adaptation_text(report))


def _adaptation_warnings(report: "AdaptReport") -> list[str]:
    """Warnings about omitted images and doubtful results."""
    warnings = []
    if report["n_left_out"]:
        warnings.append(f"{report['n_left_out']:,} images are left out because the release was made with them")
    if report["trained_on"] == "unknown":
        warnings.append("which images the release was made with is unknown: it carries no digests of them")
    if report["n_without_labels"]:
        warnings.append(f"{report['n_without_labels']:,} images have no label")
    if report["n_unlike"]:
        warnings.append(
            f"warning: {report['n_unlike']:,} images are unlike those of the release; other annotators are adapted "
            "to here, another stain or microscope is not"
        )
    return warnings


def _adaptation_text(report: "AdaptReport") -> str:
    """Before and after, for people."""
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
    lines += [f"{metric:<34}{_figure(before[metric]):>28}{_figure(after[metric]):>28}" for metric in before]
    lines += [f"change of {name:<24}{_figure(paired):>38}" for name, paired in report["changes"].items()]
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
        lines.append(f"{reason}: the release says {change['seen']:.4f} of every cell")
    elif change["verdict"] != "better":
        lines.append("the disagreement probability is no better than a constant so far: have more images read twice")
    return "\n".join([*lines, f"release {report['release']}"])


def _figure(metric: "EstimateDocument") -> str:
    if metric["value"] is None:
        return "–"
    if metric["low"] is None or metric["high"] is None:
        return f"{metric['value']:.4f}"
    return f"{metric['value']:.4f} ({metric['low']:.3f} to {metric['high']:.3f})"
