"""The commands about results: evaluate, agreement, reproduce."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import typer

from ml.cli.shared import Json, emit, say

if TYPE_CHECKING:
    from ml.agreement import AgreementReport
    from ml.metrics.evaluation import EvaluationDocument
    from ml.metrics.jackknife import Estimate
    from ml.tables.streaming import StreamedDocument

commands = typer.Typer()


@commands.command()
def evaluate(
    labels: Annotated[Path, typer.Option(help="LABELS table, .csv or .parquet.")],
    predictions: Annotated[Path, typer.Option(help="PREDICTIONS table, .csv or .parquet.")],
    n_bins: Annotated[int, typer.Option(min=1, help="Equal-width bins.")] = 15,
    debias: Annotated[str, typer.Option(help="pair, paper or none.")] = "pair",
    weights: Annotated[str | None, typer.Option(help="Column of LABELS: weights of order 1.")] = None,
    weights2: Annotated[str | None, typer.Option(help="Column of LABELS: weights of order 2.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Column of LABELS that names the patient.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for reliability diagrams.")] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Tables sorted by case_id and larger than memory: values, no intervals.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Evaluate predictions against label histograms (stage 4)."""  # noqa: DOC501
    from ml.tables.evaluate import evaluate_tables, write_diagrams

    if debias not in _FORMS:
        raise typer.BadParameter(f"--debias must be pair, paper or none, got {debias!r}")
    if stream and plots is not None:
        raise typer.BadParameter("--stream keeps no cases to draw; leave --plots out")
    options: _Options = {
        "weights": weights,
        "weights2": weights2,
        "cluster": cluster,
        "n_bins": n_bins,
        "debias": _FORMS[debias],
    }
    if stream:
        streamed = _streamed(labels, predictions, options)
        emit(streamed, as_json, metrics_table(streamed))
        return
    evaluation = evaluate_tables(labels, predictions, **options)
    for path in write_diagrams(evaluation, plots) if plots is not None else []:
        say(f"wrote {path}")
    emit(evaluation.to_dict(), as_json, metrics_table(evaluation.to_dict()))


class _Options(TypedDict):
    """Columns of LABELS, and how reliability is binned and debiased."""

    weights: str | None
    weights2: str | None
    cluster: str | None
    n_bins: int
    debias: Literal["pair", "paper"] | None


_FORMS: dict[str, Literal["pair", "paper"] | None] = {"pair": "pair", "paper": "paper", "none": None}


def _streamed(labels: Path, predictions: Path, options: _Options) -> "StreamedDocument":
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from ml.tables.streaming import evaluate_stream

    console = Console(stderr=True)
    shown = (TextColumn("{task.completed:,.0f} cases"), TimeElapsedColumn())
    with Progress(*shown, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("evaluating", total=None)
        return evaluate_stream(labels, predictions, observer=lambda cases: bar.update(task, completed=cases), **options)


@commands.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="debias, theorem-1, coverage, mix-mnist, mix-cifar10, cifar10h, pbc-nucleus or lidc.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for results, from which an interrupted run resumes; reproduced/NAME.")
    ] = None,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; 3 where networks are trained.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short version, at most 20 s.")] = False,
    truth: Annotated[str, typer.Option(help="mix-…: exact probabilities or label counts.")] = "exact",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    network: Annotated[str | None, typer.Option(help="cifar10h: compact instead of vgg16, without a GPU.")] = None,
    as_json: Json = False,
) -> None:
    """Reproduce a figure or table, with numbers next to the paper's."""  # noqa: DOC501
    from rich.console import Console
    from rich.progress import Progress

    from ml.reproduce.report import reproduce as run
    from ml.reproduce.setting import Setting

    if truth not in {"exact", "counts"}:
        raise typer.BadParameter(f"--truth must be exact or counts, got {truth!r}")
    several = 3 if name in {"mix-mnist", "mix-cifar10", "cifar10h"} and not quick else 1
    folder = out or Path("reproduced") / name
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        document = run(
            Setting(
                name,
                folder,
                tuple(range(seed, seed + (seeds or several))),
                quick=quick,
                truth=truth,  # type: ignore[arg-type]
                device=device,
                network=network,
                observer=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
            )
        )
    emit(document, as_json, (folder / f"{name}.md").read_text())


@commands.command()
def agreement(
    labels: Annotated[Path, typer.Option(help="LABELS table with one row per label, .csv or .parquet.")],
    cluster: Annotated[str | None, typer.Option(help="Column that names the patient.")] = None,
    seed: Annotated[int, typer.Option(help="Of the permutation test.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure how well annotators agree: overall, by pair, annotator, class and site."""
    from ml.agreement import measure_agreement

    report = measure_agreement(labels, cluster=cluster, seed=seed)
    emit(report.to_dict(), as_json, agreement_table(report))


def _interval(estimate: "Estimate") -> str:
    row = estimate.to_dict()
    if row["value"] is None:
        return "–"
    between = "" if row["low"] is None else f"  ({row['low']:.3f} to {row['high']:.3f})"
    return f"{row['value']:.3f}{between}"


def agreement_table(report: "AgreementReport") -> str:
    """Text table of agreement, for people."""
    lines = [f"{report.n_cases:,} cases, {report.n_labels:,} labels, {report.n_annotators} annotators"]
    lines.append(f"{'Krippendorff alpha':<44}{_interval(report.krippendorff_alpha)}")
    lines += [f"{'  class ' + row.name:<44}{_interval(row.krippendorff_alpha)}" for row in report.classes]
    lines += [f"{'  site ' + str(row.site):<44}{_interval(row.krippendorff_alpha)}" for row in report.sites]
    for pair in report.pairs:
        lines.append(f"{'Cohen kappa ' + ' and '.join(pair.annotators):<44}{_interval(pair.cohen_kappa)}")
    for annotator in report.annotators:
        lines.append(f"{annotator.annotator + ' agrees with others':<44}{_interval(annotator.agreement_with_others)}")
    lines.append(f"{'annotators use classes alike: p':<44}{report.rater_marginals.p_value:.3f}")
    return "\n".join(lines + [f"warning: {text}" for text in report.warnings])


def metrics_table(document: "EvaluationDocument | StreamedDocument") -> str:
    """Text table of an evaluation, with intervals, for people."""
    lines = [f"{document['n_cases']:,} cases, {document['n_labels']:,} labels, {document['n_classes']} classes"]
    lines.append(f"{'metric':<12}{'value':>10}{'95 % interval':>22}{'cases':>9}{'dropped':>9}")
    for name, row in document["metrics"].items():
        value = "–" if row["value"] is None else f"{row['value']:.4f}"
        between = "–" if row["low"] is None else f"{row['low']:.4f} to {row['high']:.4f}"
        lines.append(f"{name:<12}{value:>10}{between:>22}{row['n']:>9,}{row['dropped']:>9,}")
    return "\n".join(lines + [f"warning: {text}" for text in document["warnings"]])
