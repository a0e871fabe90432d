"""Commands evaluate, audit, agreement and reproduce."""

import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ml.cli.shared import Json, emit, progress_bars, say
from ml.util.number_format import finite, probability

TABLES_HELP = """
Tables are CSV (UTF-8, commas; also .csv.gz) or Parquet, by extension; cases are matched by case_id.

LABELS, one row per label, or per case if annotators are unknown:

  case_id,annotator,label,patient        case_id,count:blast,count:monocyte
  cell-1,anna,monocyte,P1                cell-1,0,2
  cell-1,ben,blast,P1                    cell-2,1,1

PREDICTIONS, one row per case; disagreement_prob (or log_concentration) if
there is one:

  case_id,prob:blast,prob:monocyte,disagreement_prob
  cell-1,0.2,0.8,0.3

A column finding in both tables evaluates each finding on its own.
With --binary one column such as prob:present is enough.
More examples, ties and fractional counts: docs/reference/tables.md.
"""

LabelsFile = Annotated[Path, typer.Option(help="LABELS table, .csv, .csv.gz or .parquet.")]
LabelsOrExport = Annotated[
    Path | None,
    typer.Option("--labels", help="LABELS table, .csv, .csv.gz or .parquet; counts if annotators are unknown."),
]
Export = Annotated[
    Path | None,
    typer.Argument(metavar="EXPORT", help="Labels of another tool, in place of --labels; or a folder per class."),
]
ExportFormat = Annotated[
    Literal["labels", "label-studio", "cvat", "coco", "wide"] | None,
    typer.Option("--from", help="Format of EXPORT; detected if omitted."),
]
BadRows = Annotated[
    Literal["error", "drop"],
    typer.Option(
        help="A row of EXPORT without a label of a whole image: refuse the file, or leave it out and name it."
    ),
]
PredictionsFile = Annotated[Path, typer.Option(help="PREDICTIONS table, .csv, .csv.gz or .parquet.")]
Form = Annotated[Literal["pair", "paper", "none"], typer.Option(help="How CL is corrected: pair, paper or none.")]
Against = Annotated[
    Path | None, typer.Option(help="Other PREDICTIONS of the same cases: paired changes with intervals.")
]


if TYPE_CHECKING:
    from collections.abc import Sequence

    from ml.agreement import AgreementReport
    from ml.audit.evaluate_findings import FindingAudit
    from ml.label_files import Format
    from ml.metrics.jackknife import Estimate
    from ml.tables.evaluate import EvaluationOptions
    from ml.tables.reading import TableSource

commands = typer.Typer()
#: Annotators, pairs and classes that are listed; JSON has all.
_MAX_LINES = 40
#: Rows of an export that are named if they have no label.
_NAMED_ROWS = 5
#: Columns of the table with one row per finding, where they are there.
_OVERVIEW = ("agreement", "L", "skill", "CE", "EL", "L_D", "skill_D", "CE_D", "RPS")


def _evaluation_options(
    n_bins: Annotated[int, typer.Option(min=1, help="Equal-width bins.")] = 15,
    debias: Form = "pair",
    weights: Annotated[str | None, typer.Option(help="Column of LABELS: weights of order 1.")] = None,
    weights2: Annotated[str | None, typer.Option(help="Column of LABELS: weights of order 2.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Column of LABELS that names the patient.")] = None,
    missing: Annotated[
        Literal["error", "drop"],
        typer.Option(help="A label without a prediction: refuse the tables, or leave it out and name it."),
    ] = "error",
    binary: Annotated[
        bool, typer.Option("--binary", help="One column prob:<class>; the other class is its complement.")
    ] = False,
    level: Annotated[
        Literal["nominal", "ordinal"],
        typer.Option(help="ordinal: classes are grades in the order of the columns; adds RPS, weighted kappa, alpha."),
    ] = "nominal",
    renormalise: Annotated[
        bool,
        typer.Option("--renormalise", help="Divide rows whose sum rounding keeps from 1 by that sum, and count them."),
    ] = False,
) -> "EvaluationOptions":
    from ml.tables.evaluate import EvaluationOptions

    return EvaluationOptions(n_bins, debias, weights, weights2, cluster, missing, binary, level, renormalise)


def _with_evaluation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of an evaluation in place of its ``options``."""
    signature, shared = inspect.signature(command), inspect.signature(_evaluation_options).parameters
    parameters = dict(signature.parameters)

    def run(**given: Any) -> None:
        command(options=_evaluation_options(**{name: given.pop(name) for name in shared}), **given)

    spliced = [one for name, own in parameters.items() for one in (shared.values() if name == "options" else [own])]
    run.__signature__ = signature.replace(parameters=spliced)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in spliced}
    run.__name__ = command.__name__
    return run


@commands.command(help=f"Evaluate predictions against label histograms (stage 4).\n{TABLES_HELP}")
@_with_evaluation_options
def evaluate(
    labels: LabelsFile,
    predictions: PredictionsFile,
    options: "EvaluationOptions",
    against: Against = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for reliability diagrams.")] = None,
    report: Annotated[Path | None, typer.Option(help="HTML page to write, as `audit` does.")] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Tables sorted by case_id and larger than memory: one pass.")
    ] = False,
    shard: Annotated[
        str | None, typer.Option(help="Only part i of n of sorted Parquet tables, such as 3/8, into the folder --out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of shards, which `evaluate-finish` joins.")] = None,
    as_json: Json = False,
) -> None:
    """Evaluate predictions against label histograms."""
    from ml.audit.evaluate_findings import audit_findings

    if stream or shard is not None or out is not None:
        kept = {"--plots": plots, "--report": report, "--against": against, "--missing": options.missing == "drop"}
        kept |= {"--binary": options.binary, "--level": options.level == "ordinal"}
        if options.renormalise and (shard is not None or out is not None):
            raise typer.BadParameter("--renormalise cannot be used with --shard: divide the rows by their sums before")
        for name in [name for name, value in kept.items() if value]:
            given = "--stream" if shard is None else "--shard"
            raise typer.BadParameter(f"{given} goes through the tables once and keeps no cases; leave {name} out")
        _in_one_pass(labels, predictions, options, shard, out, as_json)
        return
    answers = audit_findings(labels, predictions, options, against)
    _draw_diagrams(answers, plots)
    if report is not None:
        _write_audit_page(answers, labels, predictions, against, report)
    if answers[0].cases.finding is None:
        texts = [answers[0].evaluation.summary()]
        if answers[0].comparison is not None:
            texts.append(answers[0].comparison.summary())
        emit(answers[0].to_dict(), as_json, "\n\n".join(texts))
    else:
        documents = {str(answer.cases.finding): answer.to_dict() for answer in answers}
        emit({"findings": documents}, as_json, _findings_table(answers))


@commands.command(help=f"Write one page about predictions and labels that an auditor can file.\n{TABLES_HELP}")
@_with_evaluation_options
def audit(
    predictions: PredictionsFile,
    out: Annotated[Path, typer.Option("-o", "--out", help="HTML page to write.")],
    options: "EvaluationOptions",
    labels: LabelsOrExport = None,
    export: Export = None,
    form: ExportFormat = None,
    bad_rows: BadRows = "error",
    against: Against = None,
    as_json: Json = False,
) -> None:
    """Write the page: evaluation, agreement, skill, warnings, comparison."""
    from ml.audit.evaluate_findings import audit_findings

    file, table = _open_labels(labels, export, form, bad_rows, predictions, binary=options.binary)
    answers = audit_findings(table, predictions, options, against)
    digest = _write_audit_page(answers, file, predictions, against, out)
    findings = [answer.cases.finding for answer in answers if answer.cases.finding is not None]
    emit({"report": str(out), "sha256": digest, "findings": findings}, as_json, f"{out}\nSHA-256 {digest}")


def _open_labels(
    labels: Path | None,
    export: Path | None,
    form: "Format | None",
    bad_rows: Literal["error", "drop"],
    predictions: Path | None = None,
    *,
    binary: bool = False,
) -> "tuple[Path, TableSource]":
    """File of LABELS, and the table: the file, or what an export of another tool has of the predicted cases."""
    if export is None:
        if labels is None or form is not None:
            raise typer.BadParameter("give --labels, or EXPORT with or without --from")
        return labels, labels
    if labels is not None:
        raise typer.BadParameter("give --labels or EXPORT, not both")
    from ml.label_files import LabelFileError, read_class_folders, read_label_file, to_label_table
    from ml.tables.files import predicted_classes
    from ml.tables.reading import open_table, text_column

    case_ids, classes = list[str](), None
    if predictions is not None:
        table, place = open_table(predictions, "PREDICTIONS")
        case_ids = text_column(table, "case_id", place)
        classes = None if binary else predicted_classes(table, place)
    rows = list(read_class_folders(export) if form is None and export.is_dir() else read_label_file(export, form))
    try:
        found = to_label_table(rows, case_ids, classes)
    except LabelFileError as exc:
        raise LabelFileError(f"{export}: {exc}") from exc
    if found.bad_rows:
        examples = "; ".join(f"{row.place}: {row.reason}" for row in found.bad_rows[:_NAMED_ROWS])
        n = len(found.bad_rows)
        problem = f"{export}: {n:,} row{'' if n == 1 else 's'} without a label of a whole image: {examples}"
        if bad_rows == "error":
            raise LabelFileError(f"{problem}; --bad-rows drop leaves them out")
        say(f"warning: {problem}; left out")
    return export, found.columns


def _write_audit_page(
    answers: "Sequence[FindingAudit]", labels: Path, predictions: Path, against: Path | None, out: Path
) -> str:
    from ml.audit.page import FileRecord, ProvenanceRecord, write_page

    files = [FileRecord.of("LABELS", labels), FileRecord.of("PREDICTIONS", predictions)]
    if against is not None:
        files.append(FileRecord.of("PREDICTIONS compared with", against))
    digest = write_page(answers, ProvenanceRecord.now(files, shlex.join(["secondread", *sys.argv[1:]])), out)
    say(f"wrote {out}")
    return digest


def _draw_diagrams(answers: "Sequence[FindingAudit]", folder: Path | None) -> None:
    if folder is None:
        return
    from ml.charts.reliability import reliability_diagram, write_chart

    findings = _safe_names([str(answer.cases.finding) for answer in answers])
    for answer, own_folder in zip(answers, findings, strict=True):
        finding, evaluation = answer.cases.finding, answer.evaluation
        diagrams = [(row.name, row.bins, row.name, "probability") for row in evaluation.classes]
        diagrams.append(("all_classes", evaluation.class_bins, "All classes", "probability"))
        title = "Disagreement of two annotators"
        diagrams.append(("disagreement", evaluation.disagreement_bins, title, "disagreement"))
        for safe, (_, bins, title, what) in zip(_safe_names([name for name, *_ in diagrams]), diagrams, strict=True):
            path = (folder if finding is None else folder / own_folder) / f"reliability_{safe}.svg"
            write_chart(reliability_diagram(bins, title=title, what=what), path)
            say(f"wrote {path}")


def _safe_names(names: "Sequence[str]") -> list[str]:
    """Replace what is no letter, digit, - or _ for names of files, which stay different."""
    safe: list[str] = []
    for name in names:
        own = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
        while own in safe:
            own += "_"
        safe.append(own)
    return safe


def _in_one_pass(
    labels: Path, predictions: Path, options: "EvaluationOptions", shard: str | None, out: Path | None, as_json: bool
) -> None:
    from ml.metrics.evaluation import metrics_table
    from ml.scoring.evaluation_shards import evaluate_shard
    from ml.scoring.shards import parse_shard
    from ml.tables.reading import require_rows
    from ml.tables.streaming import Streaming, evaluate_stream

    if (shard is None) != (out is None):
        raise typer.BadParameter("--shard i/n needs --out, a folder of shards, and --out needs --shard")
    if shard is not None and options.debias != "pair":
        raise typer.BadParameter("a shard does not depend on --debias: give it to `evaluate-finish`")
    for table in (labels, predictions):
        require_rows(table)
    with progress_bars("evaluating") as observe:
        if shard is None or out is None:
            document = evaluate_stream(labels, predictions, options, observer=observe)
            emit(document, as_json, metrics_table(document))
            return
        done = evaluate_shard(Streaming(labels, predictions, options), out, parse_shard(shard), observe)
    shard_counts = {"shard": done.shard, "n_shards": done.n_shards, "n_cases": done.n_cases, "n_labels": done.n_labels}
    text = f"shard {done.shard} of {done.n_shards}: {done.n_cases:,} cases, {done.n_labels:,} labels in {done.path}"
    emit(shard_counts | {"file": str(done.path)}, as_json, text)


@commands.command("evaluate-finish")
def evaluate_finish(
    folder: Annotated[Path, typer.Argument(help="Folder of shards.")],
    debias: Form = "pair",
    as_json: Json = False,
) -> None:
    """Merge the shards of an evaluation."""
    from ml.metrics.evaluation import metrics_table
    from ml.scoring.evaluation_shards import finish_evaluation

    document = finish_evaluation(folder, debias)
    emit(document, as_json, metrics_table(document))


@commands.command()
def sort(
    table: Annotated[Path, typer.Argument(help="LABELS or PREDICTIONS, .csv, .csv.gz or .parquet, of any length.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for sorting, such as 4GB; larger tables use the disk (default: most of the memory)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Sort a table by case_id, for `evaluate --stream` and `evaluate --shard`."""
    from ml.tables.streaming import sort_table

    with progress_bars("sorting") as observe:
        rows = sort_table(table, out, memory=memory, observer=observe)
    emit({"rows": rows, "file": str(out)}, as_json, f"{rows:,} rows in {out}")


@commands.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="debias, coverage, mix-mnist, mix-cifar10 or cifar10h.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for results, from which an interrupted run resumes; reproduced/NAME.")
    ] = None,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; 3 where networks are trained.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short version, at most 20 s.")] = False,
    truth: Annotated[
        Literal["exact", "counts"], typer.Option(help="mix-…: exact probabilities or label counts.")
    ] = "exact",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    network: Annotated[
        str | None,
        typer.Option(
            help="cifar10h: compact instead of vgg16, without a GPU; mix-cifar10: vgg16-bn in one cycle of 24 epochs."
        ),
    ] = None,
    from_outputs: Annotated[
        Path | None,
        typer.Option(help="mix-…: folder with outputs-seed-….npz of an earlier run, from which to make the tables."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Reproduce a figure or table, with numbers next to the paper's."""
    from ml.reproduce.report import Setting
    from ml.reproduce.report import reproduce as run

    several = 3 if name in {"mix-mnist", "mix-cifar10", "cifar10h"} and not quick else 1
    folder = out or Path("reproduced") / name
    with progress_bars(name) as observe:
        document = run(
            Setting(
                name,
                folder,
                tuple(range(seed, seed + (seeds or several))),
                quick=quick,
                truth=truth,
                device=device,
                network=network,
                from_outputs=from_outputs,
                observer=lambda part, done, total: observe(done, total, part),
            )
        )
    emit(document, as_json, (folder / f"{name}.md").read_text())


@commands.command()
def agreement(
    labels: LabelsOrExport = None,
    export: Export = None,
    form: ExportFormat = None,
    bad_rows: BadRows = "error",
    cluster: Annotated[str | None, typer.Option(help="Column that names the patient.")] = None,
    level: Annotated[
        Literal["nominal", "ordinal"], typer.Option(help="ordinal: ordinal alpha and quadratically weighted kappa.")
    ] = "nominal",
    classes: Annotated[
        str | None, typer.Option(help="Classes in their order, lowest first, separated by commas; for --level ordinal.")
    ] = None,
    min_shared: Annotated[
        int, typer.Option(min=2, help="Cases that two annotators must share for a kappa of theirs.")
    ] = 5,
    seed: Annotated[int, typer.Option(help="Random seed for the test of class usage.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure how well annotators agree: overall, by pair, annotator, class and site."""
    from ml.agreement import AgreementOptions, agreement_by_finding

    order = None if classes is None else [name.strip() for name in classes.split(",")]
    _, table = _open_labels(labels, export, form, bad_rows)
    reports = agreement_by_finding(table, AgreementOptions(cluster, level, order, min_shared, seed))
    if None in reports:
        emit(reports[None].to_dict(), as_json, _agreement_table(reports[None]))
        return
    document = {"findings": {name: report.to_dict() for name, report in reports.items()}}
    emit(document, as_json, "\n\n".join(f"{name}\n{_agreement_table(report)}" for name, report in reports.items()))


def _interval(estimate: "Estimate") -> str:
    row = estimate.to_dict()
    if row["value"] is None:
        return "–"
    between = "" if row["low"] is None else f"  ({row['low']:z.3f} to {row['high']:z.3f})"
    return f"{row['value']:z.3f}{between}"


def _agreement_table(report: "AgreementReport") -> str:
    who = "annotators not named" if report.n_annotators is None else f"{report.n_annotators:,} annotators"
    ordinal = report.level == "ordinal"
    rows = [("Krippendorff alpha, ordinal" if ordinal else "Krippendorff alpha", _interval(report.krippendorff_alpha))]
    rows += _shorten([(f"  class {row.name}", _interval(row.krippendorff_alpha)) for row in report.classes])
    rows += _shorten(
        [(f"  site {row.site}" if row.site else "  no site", _interval(row.krippendorff_alpha)) for row in report.sites]
    )
    pairs = [("  " + " and ".join(pair.annotators), _interval(pair.cohen_kappa)) for pair in report.pairs]
    rows += [("weighted kappa" if ordinal else "Cohen kappa", ""), *_shorten(pairs)] if pairs else []
    annotators = [(f"  {row.annotator}", _interval(row.agreement_with_others)) for row in report.annotators]
    rows += [("agreement with the other annotators", ""), *_shorten(annotators)] if annotators else []
    if report.rater_marginals is not None:
        rows.append(("annotators use classes alike: p", f"{report.rater_marginals.p_value:.3f}"))
    width = 2 + max(len(name) for name, _ in rows)
    lines = [f"{report.n_cases:,} cases, {report.n_labels:,} labels, {who}; 95 % intervals"]
    lines += [f"{name:<{width}}{value}".rstrip() for name, value in rows]
    return "\n".join(lines + [f"warning: {text}" for text in report.warnings])


def _shorten(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if len(rows) <= _MAX_LINES:
        return rows
    return [*rows[:_MAX_LINES], (f"  … and {len(rows) - _MAX_LINES:,} more, all with --json", "")]


def _findings_table(answers: "Sequence[FindingAudit]") -> str:
    """Text table with one row per finding; all metrics are in the JSON document."""
    by_finding = {str(answer.cases.finding): answer for answer in answers}
    names = [name for name in _OVERVIEW if name in answers[0].evaluation.metrics]
    width = 2 + max(len(name) for name in (*by_finding, "finding"))
    lines = [f"{'finding':<{width}}{'cases':>8}{'labels':>9}" + "".join(f"{name:>11}" for name in names)]
    for finding, answer in by_finding.items():
        row = answer.evaluation
        values = "".join(f"{probability(finite(row.metrics[name].value), 4):>11}" for name in names)
        lines.append(f"{finding:<{width}}{row.n_cases:>8,}{row.n_labels:>9,}{values}")
    for finding, answer in by_finding.items():
        if answer.comparison is not None:
            lines += ["", f"{finding}: {answer.comparison.summary()}"]
    return "\n".join(
        lines + [f"warning: {name}: {text}" for name, one in by_finding.items() for text in one.evaluation.warnings]
    )
