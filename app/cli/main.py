"""Complete ``secondread`` command: the offline commands of ``ml.cli`` and those of the service."""

import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli import people, serving
from app.cli.shared import service_context
from ml.cli import releases, results, scoring, stages
from ml.cli.shared import Json, emit, run_command, say, version_line

if TYPE_CHECKING:
    from app.imports.dry_run import FailedRow
    from app.imports.import_job import RowCounts
    from app.imports.label_import import LabelCounts

secondread = typer.Typer(
    name="secondread",
    help="Calibrated class and disagreement probabilities for cell images, and blinded second reads.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
release = typer.Typer(no_args_is_help=True, help="Model releases: add, list, judge, promote.")
specimens = typer.Typer(no_args_is_help=True, help="Specimens: coverage of their intervals.")
dataset = typer.Typer(no_args_is_help=True, help="Collected images and labels.")


def _print_version(wanted: bool) -> None:
    if wanted:
        emit(None, False, version_line())
        raise typer.Exit


@secondread.callback()
def _read_global_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version and commit."),
    ] = False,
) -> None:
    """Read the options before any command."""


@secondread.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help="Folder or zip of images, with or without manifest.csv.")],
    account: Annotated[str, typer.Option(help="Account that stores the cells.")] = "admin",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report the result of each row; store nothing.")] = False,
    shard: Annotated[
        str | None, typer.Option(help="Import the part i/n of the rows; other processes import the others.")
    ] = None,
    class_folders: Annotated[
        bool, typer.Option("--class-folders", help="Folders are classes: labels of one unnamed annotator.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Import many images as cells, and labels; running it again adds what is missing.

    Columns of manifest.csv: file, external_id and, if wanted, patient, site, specimen, metadata (a JSON
    object of texts), field. Labels: labels.csv with image, annotator, label, at, blinded, or another tool's file.
    """
    from app.cli.imports import check_local, import_local
    from app.job_table import FUNCTIONS
    from ml.scoring.shards import parse_shard

    part = None if shard is None else parse_shard(shard)
    if part is not None and dry_run:
        raise ValueError("--dry-run looks at every row: leave --shard out")
    with service_context() as context:
        if dry_run:
            check = check_local(context, source, say, class_folders=class_folders)
            twins = f", {check['twins']:,} with a duplicate image; nothing was stored"
            _print_import_counts(check, check["labels"], check["failures"], twins, as_json)
        else:
            done = import_local(context, FUNCTIONS, source, account, say, part, class_folders=class_folders)
            _print_import_counts(done, done["labels"], done["failures"], "", as_json)


def _print_import_counts(
    counts: "RowCounts", labels: "LabelCounts", failures: "list[FailedRow]", more: str, as_json: bool
) -> None:
    known_text = f"{counts['known']:,} known" + (f" ({counts['differs']:,} differ)" if counts["differs"] else "")
    ignored = f", {counts['ignored']:,} other files ignored" if counts["ignored"] else ""
    lines = [f"{counts['created']:,} created, {known_text}, {counts['failed']:,} failed{ignored}{more}"]
    if any(labels.values()):
        lines.append(f"labels: {labels['stored']:,} stored, {labels['known']:,} known, {labels['failed']:,} failed")
    for row in failures:
        lines.append(f"{row['place'] or 'row {}'.format(row['row'])}: {row['external_id']}: {row['detail']}")
    emit(counts, as_json, "\n".join(lines))
    if counts["failed"] or labels["failed"]:
        raise SystemExit(1)


@release.command("add")
def release_add(
    path: Annotated[Path, typer.Argument(help="Release folder.")],
    fit_ood_check: Annotated[
        Path | None,
        typer.Option(help="Folder or manifest of typical images, to which an out-of-distribution check is fitted."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify a model release, try its network in a sandbox, and register it; the first one is served at once."""
    from app.releases.registration import add_release
    from app.releases.service import describe_release
    from app.releases.training import measure_training_overlap
    from ml.release.artifact import read_release

    with service_context() as context:
        row, new = add_release(context.database, context.keys.audit, path, context.folders, fit_ood_check)
        index = read_release(context.folders.path(f"releases/{row.id}")).training
        with context.database.read() as session:
            release_out = describe_release(session, row)
            overlap = measure_training_overlap(session, context.keys.training, row.card, index)
    if not release_out.out_of_distribution_check:
        say(
            "warning: the release has no out-of-distribution check, so each of its cells is read twice; add it with "
            "--fit-ood-check IMAGES to fit one to typical images"
        )
    if release_out.metrics_stated_by_maker:
        say("warning: the metrics on its card are stated by the maker: they do not name this network")
    text = f"{release_out.id}  {release_out.name}{'' if new else '  (known already)'}\n{overlap.sentence()}"
    emit(release_out.model_dump(mode="json") | {"overlap": overlap.model_dump()}, as_json, text)


@release.command("list")
def release_list(as_json: Json = False) -> None:
    """List releases, newest first."""
    from app.releases.service import list_releases

    with service_context() as context, context.database.read() as session:
        rows = list_releases(session).items
    lines = [
        f"{row.id}  {row.created_at:%Y-%m-%d %H:%M}Z  {','.join(row.aliases) or '-':<10}  {row.name}" for row in rows
    ]
    emit([row.model_dump(mode="json") for row in rows], as_json, "\n".join(lines) or "no releases")


@release.command("promote")
def release_promote(
    release_id: Annotated[uuid.UUID, typer.Argument(help="Release to serve.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")],
    despite_gate: Annotated[
        bool,
        typer.Option("--despite-gate", help="Promote it although the promotion check rejected or never judged it."),
    ] = False,
) -> None:
    """Make a release champion; promoting an earlier one is the rollback."""
    from app.releases.service import move_alias

    with service_context() as context, context.database.write() as session:
        alias = move_alias(
            session, context, "command line", "champion", release_id, reason, None, despite_gate=despite_gate
        )
    say(f"champion is {release_id}, revision {alias.revision}")


@release.command("judge")
def release_judge(
    release_id: Annotated[uuid.UUID, typer.Argument(help="Model release trained elsewhere.")], as_json: Json = False
) -> None:
    """Run the promotion check of a model release against the champion; promotes nothing."""
    from app.cli.recalibration import judge_release_inline
    from app.job_table import FUNCTIONS

    with service_context() as context:
        report = judge_release_inline(context, FUNCTIONS, release_id)
    lines = [f"release {report.release}: {report.gate.headline()}", *report.gate.reasons, *report.gate.findings]
    emit(report.to_dict(), as_json, "\n".join(lines))


@secondread.command()
def recalibrate(
    method: Annotated[
        str | None,
        typer.Option(
            help="none, temperature, vector or matrix refit the calibration of the class probabilities. adapt is for "
            "other annotators and few cells read twice: only temperature, level and slope of the disagreement change. "
            "The change plan lists the allowed methods. Default: temperature."
        ),
    ] = None,
    since: Annotated[datetime | None, typer.Option(help="Only cells stored at this UTC time or later.")] = None,
    as_json: Json = False,
) -> None:
    """Fit a candidate release on the labels collected so far and judge it against the champion; promotes nothing."""
    from app.cli.recalibration import recalibrate_inline
    from app.job_table import FUNCTIONS
    from ml.release.card import adaptation_sentence

    with service_context() as context:
        report = recalibrate_inline(context, FUNCTIONS, method, None if since is None else since.replace(tzinfo=UTC))
    lines = [f"candidate {report.release}: {report.gate.headline()}", *report.gate.reasons, *report.gate.findings]
    if report.n_kept_for_sets:
        lines.append(f"{report.n_kept_for_sets:,} cells are kept for prediction sets: no fit has used them")
    if report.fit.adaptation is not None:
        lines.append(adaptation_sentence(report.fit.adaptation.document()))
    for name, before in report.champion.items():
        after = report.candidate[name]
        if before.value is not None and after.value is not None:
            lines.append(f"  {name:<9} {before.value:.4f} -> {after.value:.4f}")
    emit(report.to_dict(), as_json, "\n".join(lines))


@dataset.command("export")
def dataset_export(
    out: Annotated[Path, typer.Option(help="New folder.")],
    partition: Annotated[
        Literal["all", "calibration", "evaluation"] | None,
        typer.Option(help="calibration, evaluation or all (default: calibration; with --proof: all)."),
    ] = None,
    kind: Annotated[
        Literal["csv", "parquet", "label-studio", "croissant"],
        typer.Option(
            "--format", help="Format of the tables; or csv with tasks of Label Studio, or Croissant metadata."
        ),
    ] = "csv",
    images: Annotated[bool, typer.Option("--images/--no-images", help="Write the images too.")] = True,
    proof: Annotated[
        bool,
        typer.Option("--proof", help="Also write the audit log and all rows as a proof, and a program to check it."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write collected labels, predictions, images and the audit log as tables and files."""
    from app.maintenance.export import export_dataset

    chosen: Literal["all", "calibration", "evaluation"] = partition or ("all" if proof else "calibration")
    with service_context() as context, context.database.read_moment() as session:
        counts = export_dataset(session, context, out, chosen, kind=kind, images=images, proof=proof)
    text = f"{counts['n_cases']:,} cases and {counts['n_labels']:,} labels in {out}"
    if counts["n_kept_for_sets"]:
        text += f"; {counts['n_kept_for_sets']:,} cells are kept for prediction sets and left out"
    emit(counts, as_json, text)


@specimens.command("check")
def specimens_check(as_json: Json = False) -> None:
    """Check the intervals of shares on completely read specimens of patients that the release was not trained on."""
    from app.cli.specimens import check_local, describe_checks

    with service_context() as context:
        checks = check_local(context, shown=not as_json)
    emit([one.to_dict() for one in checks], as_json, "\n".join(describe_checks(checks)))


for commands in (
    stages.commands,
    scoring.commands,
    releases.commands,
    results.commands,
    serving.commands,
):
    secondread.add_typer(commands)
for name, group in (
    ("release", release),
    ("dataset", dataset),
    ("specimens", specimens),
    ("user", people.user),
    ("key", people.key),
    ("patient", people.patient),
    ("db", serving.db),
):
    secondread.add_typer(group, name=name)


def main() -> None:
    """Entry point of the command line."""
    run_command(secondread, _service_errors)


def _service_errors(exc: Exception) -> str | None:
    """One line for the service's own errors and those of the database; None for anything else."""
    if "app.http.errors" not in sys.modules:
        return None
    from sqlalchemy.exc import DBAPIError

    from app.http.errors import Problem

    if isinstance(exc, Problem):
        return exc.detail
    if isinstance(exc, DBAPIError):
        return f"the database refused: {exc.orig}"
    return None
