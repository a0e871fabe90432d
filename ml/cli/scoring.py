"""Predictions of many images: into one table, or shard by shard on as many machines as there are."""

import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from ml.cli.shared import Device, Json, emit, progress_bars, say_where

if TYPE_CHECKING:
    from ml.scoring.table import ScoreRequest

commands = typer.Typer()


@commands.command()
def score(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    out: Annotated[
        Path, typer.Option(help="PREDICTIONS table to write, .csv or .parquet; with --shard or --engine a folder.")
    ],
    images: Annotated[
        Path | None, typer.Option(help="Folder of images and folders, or a table with columns case_id and file.")
    ] = None,
    logits: Annotated[
        Path | None,
        typer.Option(
            help="In place of images a table of your model's outputs: case_id, logit:<class> or prob:<class>."
        ),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Table with case_id and feature:<name>, if LOGITS has no such columns.")
    ] = None,
    shard: Annotated[str | None, typer.Option(help="Only part i of n, such as 3/8; the first is 1/8.")] = None,
    engine: Annotated[
        Literal["local", "ray"] | None,
        typer.Option(help="Run all shards that are missing: by one process per core (local), or by Ray."),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster (default: RAY_ADDRESS, or Ray on this machine).")
    ] = None,
    tta: Annotated[int | None, typer.Option(min=1, help="Augmented views per image, usually 20.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed for the augmented views.")] = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict many images; those that cannot be read are rows of a table of errors."""
    if (images is None) == (logits is None):
        raise typer.BadParameter("give either --images or --logits")
    if images is None or logits is not None:
        from ml.scoring.table import score_outputs

        if shard is not None or engine is not None or tta is not None:
            raise typer.BadParameter("--logits needs no network: leave --shard, --engine and --tta out")
        scored = score_outputs(release, cast(Path, logits), features, out)
        document = {"n_cases": scored.n_predictions, "predictions": str(out)}
        emit(document, as_json, f"{scored.n_predictions:,} predictions in {out}")
        return
    if shard is not None and engine is not None:
        raise ValueError("--shard runs one shard and --engine all that are missing: leave one of them out")
    if ray_address is not None and engine != "ray":
        raise ValueError("--ray-address belongs to --engine ray")
    from ml.scoring.table import ScoreRequest

    say_where(device)
    request = ScoreRequest(release, images, tta, seed, device)
    if shard is None and engine is None:
        _score_table(request, out, as_json)
        return
    if out.suffix.lower() in {".csv", ".parquet"}:
        raise ValueError(f"{out}: with --shard or --engine a folder is written, and `secondread score-finish` joins it")
    if engine is not None:
        from ml.scoring.pool import run_missing

        # Ray says on stdout which machines and processes died
        with progress_bars("predicting") as observe, redirect_stdout(sys.stderr):
            run = run_missing(request, out, engine, observe, ray_address=ray_address)
        counts = _counts(run.n_predictions, run.n_errors)
        text = f"{run.n_run:,} of {run.n_shards:,} shards were missing and have been run, in all {counts}\n"
        emit(asdict(run), as_json, f"{text}to join them: secondread score-finish {out}")
    elif shard is not None:
        from ml.scoring.shards import parse_shard, score_shard

        numbers = parse_shard(shard)
        with progress_bars("predicting") as observe:
            part = score_shard(request, out, numbers, observe)
        counts = _counts(part["n_predictions"], part["n_errors"])
        emit(part, as_json, f"shard {numbers[0]} of {numbers[1]}: {counts}")


def _score_table(request: "ScoreRequest", out: Path, as_json: bool) -> None:
    from ml.scoring.table import score_images

    with progress_bars("predicting") as observe:
        done = score_images(request, out, observe)
    text = f"{done.n_predictions:,} predictions in {out}"
    if done.n_errors:
        text += f"\n{done.n_errors:,} images could not be read: {done.errors}"
    emit(done.to_dict(), as_json, text)


@commands.command("score-finish")
def score_finish(
    folder: Annotated[Path, typer.Argument(help="Folder of shards.")],
    as_json: Json = False,
) -> None:
    """Check that every shard is there, and join them into predictions.parquet and errors.parquet."""
    from ml.scoring.shards import merge_job_shards

    done = merge_job_shards(folder)
    text = f"{done.n_shards:,} shards: {done.n_predictions:,} predictions in {done.predictions}"
    if done.n_errors:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in done.reasons.items())
        text += f"\n{done.n_errors:,} images could not be read ({reasons}): {done.errors}"
    emit(done.to_dict(), as_json, text)


def _counts(n_predictions: int, n_errors: int) -> str:
    return f"{n_predictions:,} predictions, {n_errors:,} images that could not be read"
