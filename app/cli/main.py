"""The whole ``secondread`` command: the offline half of ``ml.cli`` and the service's commands."""

import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

import ml.cli_results  # noqa: F401  each of these three registers its commands
from app import cli_people, cli_serving  # noqa: F401
from app.cli_shared import group, parts
from ml.cli import Json, app, emit, run_command, say

release = group("release", "Releases: add, list, promote.")
dataset = group("dataset", "Collected images and labels.")


@app.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help="Folder or zip of images, with or without manifest.csv.")],
    account: Annotated[str, typer.Option(help="Account that the cases are stored by.")] = "admin",
    as_json: Json = False,
) -> None:
    """Import many images as cases; doing it again adds what is missing.

    Columns of manifest.csv: file, external_id and, if wanted, patient, site, metadata (a JSON object of texts).
    """  # noqa: DOC501
    from app.imports.command import import_local

    with parts() as context:
        result = import_local(context, source, account, say)
    lines = [f"{result['created']:,} created, {result['known']:,} known, {result['failed']:,} failed"]
    lines += [f"row {row['row']}: {row['external_id']}: {row['detail']}" for row in result["failures"]]
    emit(result, as_json, "\n".join(lines))
    if result["failed"]:
        raise SystemExit(1)


@release.command("add")
def release_add(path: Annotated[Path, typer.Argument(help="Release folder.")], as_json: Json = False) -> None:
    """Verify a release, copy it and make it known; the first one is served at once."""
    from app.releases.adding import add_release
    from app.releases.service import describe

    with parts() as context, context.database.write() as session:
        row, new = add_release(session, context.secret, path, context.settings.releases_folder)
        shown = describe(session, row)
    emit(shown.model_dump(mode="json"), as_json, f"{shown.id}  {shown.name}{'' if new else '  (known already)'}")


@release.command("list")
def release_list(as_json: Json = False) -> None:
    """List releases, newest first."""
    from app.releases.queries import all_releases
    from app.releases.service import describe

    with parts() as context, context.database.read() as session:
        rows = [describe(session, row) for row in all_releases(session)]
    lines = [
        f"{row.id}  {row.created_at:%Y-%m-%d %H:%M}Z  {','.join(row.aliases) or '-':<10}  {row.name}" for row in rows
    ]
    emit([row.model_dump(mode="json") for row in rows], as_json, "\n".join(lines) or "no releases")


@release.command("promote")
def release_promote(
    release_id: Annotated[uuid.UUID, typer.Argument(help="Release to serve.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the audit.")],
) -> None:
    """Make a release champion; promoting an earlier one is the rollback."""
    from app.releases.service import move_alias

    with parts() as context, context.database.write() as session:
        alias = move_alias(session, context, "command line", "champion", release_id, reason, None)
    say(f"champion is {release_id}, revision {alias.revision}")


@app.command()
def recalibrate(
    method: Annotated[str, typer.Option(help="none, temperature, vector or matrix; the change plan allows which.")] = (
        "temperature"
    ),
    since: Annotated[datetime | None, typer.Option(help="Only cases stored at this UTC time or later.")] = None,
    as_json: Json = False,
) -> None:
    """Fit a candidate release on the labels collected so far and judge it against the champion; promotes nothing."""
    from app.releases.command import recalibrate_here

    with parts() as context:
        result = recalibrate_here(context, method, None if since is None else since.replace(tzinfo=UTC))
    gate = result["gate"]
    lines = [f"candidate {result['release']}: the gate {'passed' if gate['passed'] else 'refused'}", *gate["reasons"]]
    for name, before in result["champion"].items():
        after = result["candidate"][name]
        if before["value"] is not None and after["value"] is not None:
            lines.append(f"  {name:<9} {before['value']:.4f} -> {after['value']:.4f}")
    emit(result, as_json, "\n".join(lines))


@dataset.command("export")
def dataset_export(
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    partition: Annotated[
        Literal["all", "calibration", "evaluation"], typer.Option(help="all, calibration or evaluation.")
    ] = "all",
    kind: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="Of the tables.")] = "csv",
    images: Annotated[bool, typer.Option("--images/--no-images", help="Write the images too.")] = True,
    as_json: Json = False,
) -> None:
    """Write collected labels, predictions, images and the audit as tables and files."""
    from app.export import export_dataset

    with parts() as context, context.database.read() as session:
        counts = export_dataset(session, context, out, partition, kind=kind, images=images)
    emit(counts, as_json, f"{counts['n_cases']:,} cases and {counts['n_labels']:,} labels in {out}")


def main() -> None:
    """Entry point of the command line."""
    run_command(app, _service_errors)


def _service_errors(exc: Exception) -> str | None:
    """One line for the service's own errors and those of the database; None for anything else."""
    if "app.errors" not in sys.modules:
        return None
    from sqlalchemy.exc import DBAPIError

    from app.errors import Problem

    if isinstance(exc, Problem):
        return exc.detail
    if isinstance(exc, DBAPIError):
        return f"the database refused: {exc.orig}"
    return None
