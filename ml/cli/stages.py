"""Commands train, calibrate, export and predict; each imports what it needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ml.cli.shared import ChosenLevel, ChosenMethod, Device, Json, Pace, WithHead, emit, progress_bars, say, say_where

if TYPE_CHECKING:
    import torch

    from ml.calibration.calibrators import Level
    from ml.calibration.scaling import Method
    from ml.datasets.base import ImageDataset
    from ml.metrics.jackknife import EstimateDocument
    from ml.release.artifact import Release
    from ml.release.card import DisagreementDocument
    from ml.release.score import ImagePrediction
    from ml.training.learner import StepReport
    from ml.training.processes import Processes
    from ml.training.run_folder import TrainConfig

#: Seconds between two lines about a training: on a terminal, and in a log, which has one an epoch besides.
_BAR_SECONDS, _LOG_SECONDS = 0.5, 60.0
#: Epochs and largest rate of one cycle, unless given.
_CYCLE_EPOCHS, _CYCLE_RATE = 24, 0.1


class TrainingBar:
    """Training progress on stderr: epoch, loss, speed, time left."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.console = epochs, Console(stderr=True)
        self.pace = Pace(_BAR_SECONDS if self.console.is_terminal else _LOG_SECONDS)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> "TrainingBar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, report: "StepReport") -> None:
        """Show where training stands."""
        done, last = report.epoch * report.steps + report.step, report.step == report.steps
        self.bar.update(self.task, total=self.epochs * report.steps, completed=done)
        if not self.pace.line_is_due(done) and not last:  # reading waits for a GPU
            return
        line = (
            f"epoch {report.epoch + 1}/{self.epochs}  step {report.step}/{report.steps}  loss {report.loss:.4f}  "
            f"{report.images_per_second:,.1f} images/s  {self.pace.left(done, self.epochs * report.steps)} left"
        )
        self.bar.update(self.task, description=line)
        if not self.console.is_terminal:
            say(line)


commands = typer.Typer()


def data_options(
    data: str, cases: int | None, valid_labels: int | None, size: int | None, crop: int | None, seed: int
) -> dict[str, int]:
    """Arguments of the data set's loader; it refuses unknown ones."""
    from ml.datasets.base import is_built_in

    options = {"count": cases, "valid_labels": valid_labels, "size": size, "crop": crop}
    given = {name: value for name, value in options.items() if value is not None}
    seedless = is_built_in(data) and data in {"mix_mnist", "mix_cifar10", "pbc_nucleus"}
    return given if seedless else given | {"seed": seed}


def say_loading(data: str) -> None:
    """Report what is loaded, a folder rather than the data set of its name."""
    from ml.datasets.base import folder_note

    say(folder_note(data) or f"loading data set {data}")


@commands.command()
def train(
    data: Annotated[str, typer.Option(help="cells, mix_mnist, mix_cifar10, cifar10h, pbc, pbc_nucleus, or a folder.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command resumes if interrupted.")],
    network: Annotated[str, typer.Option(help="compact, cnn3, vgg16 or vgg16-bn.")] = "compact",
    schedule: Annotated[
        Literal["steps", "one-cycle"],
        typer.Option(
            help="steps: Adam; the rate falls in steps. one-cycle: SGD with Nesterov momentum; the rate rises over a "
            "quarter of the steps and falls to zero."
        ),
    ] = "steps",
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs at most, each image once; left out: 13, of at least 600 steps in all (wide: 1,200), or 24 of "
            "one cycle.",
            min=1,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Images per step, of all processes together; left out: an eighth of the training images, 16 to 128.",
            min=1,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Adam learning rate (default 0.002 for compact, else 0.001), or the largest of one cycle (0.1)."
        ),
    ] = None,
    warmup_epochs: Annotated[int, typer.Option(help="steps: epochs over which the rate rises.")] = 1,
    decay: Annotated[
        str, typer.Option(help="steps: shares of the epochs after which the rate falls to a tenth.")
    ] = "0.6,0.85",
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Epochs without improvement before stopping; left out: 10, or all of one cycle."),
    ] = None,
    weight_averaging: Annotated[
        float, typer.Option(min=0, max=1, help="Keep a moving average of weights, such as 0.999; 0 does not.")
    ] = 0.0,
    shift: Annotated[int, typer.Option(min=0, help="Whole pixels by which training images are moved at most.")] = 0,
    class_balance: Annotated[
        float, typer.Option(min=0, max=1, help="Weight of rare classes in the loss: 0 none, 1 as if equally frequent.")
    ] = 0.0,
    augmentation: Annotated[
        Literal["flips", "light", "wide"] | None,
        typer.Option(
            help="flips: mirrors only; light: orientation and colour; wide: stain, magnification, focus and framing "
            "vary as well. Left out: wide for cells, which lie any way up."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for weights, order, augmentation and split.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, float32 or bf16.")] = "auto",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Use torch.compile.")] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads; fix them for identical results.")] = None,
    backbone_weights: Annotated[str | None, typer.Option(help="vgg16, vgg16-bn: file with pretrained weights.")] = None,
    cases: Annotated[int | None, typer.Option(help="cells: number of simulated cells.")] = None,
    valid_labels: Annotated[int | None, typer.Option(help="mix_…: labels per validation image, 1, 2 or 5.")] = None,
    size: Annotated[int | None, typer.Option(help="Folder: side of the network's input in px.")] = None,
    crop: Annotated[int | None, typer.Option(help="Folder: side of the central square to keep, in px.")] = None,
    as_json: Json = False,
) -> None:
    """Train a network on images and label histograms (stage 1); started by torchrun, several processes share it."""
    import torch

    from ml.datasets.base import load_dataset
    from ml.training.data import EPOCHS, augmentation_for, batch_for, passes_for
    from ml.training.networks import require_network
    from ml.training.processes import started_processes
    from ml.training.run_folder import TrainConfig
    from ml.training.train import choose_device, choose_precision

    require_network(network)
    if threads is not None:
        torch.set_num_threads(threads)
    options = data_options(data, cases, valid_labels, size, crop, seed)
    with started_processes() as processes:
        where = processes.device(choose_device(device))
        if processes.first:
            say_loading(data)
        with progress_bars("decoding images", shown=processes.first) as observer:
            dataset = load_dataset(data, options, observer)
        one_cycle = schedule == "one-cycle"
        n_images, n_epochs = dataset.rows("train").size, epochs or (_CYCLE_EPOCHS if one_cycle else EPOCHS)
        batch = batch_size or batch_for(n_images)
        rate = _CYCLE_RATE if one_cycle else 2e-3 if network == "compact" else 1e-3
        varied = augmentation or augmentation_for(dataset.orientation)
        config = TrainConfig(
            data=data,
            data_options=options,
            network=network,
            epochs=n_epochs,
            batch_size=batch,
            learning_rate=learning_rate or rate,
            warmup_epochs=0 if one_cycle else warmup_epochs,
            decay_epochs=() if one_cycle else _decay_epochs(decay, n_epochs),
            patience=patience or (n_epochs if one_cycle else 10),
            seed=seed,
            precision=choose_precision(precision, where),
            compiled=compiled,
            backbone_weights=backbone_weights,
            weight_averaging=weight_averaging,
            shift=shift,
            passes=1 if epochs else passes_for(n_images, batch, varied),
            class_balance=class_balance,
            augmentation=varied,
            schedule=schedule,
        )
        _train(dataset, config, out, where, processes, as_json)


def _train(
    dataset: "ImageDataset",
    config: "TrainConfig",
    out: Path,
    device: "torch.device",
    processes: "Processes",
    as_json: bool,
) -> None:
    from ml.release.card import baseline_verdict
    from ml.training.data import describe_shortages
    from ml.training.report import trained_beside_baseline
    from ml.training.run_folder import RunFolder
    from ml.training.train import train as run

    if not processes.first:
        run(dataset, config, RunFolder(out), device=device, processes=processes)
        return
    together = "" if processes.size == 1 else f", {processes.size} processes together"
    n_images = dataset.rows("train").size
    for note in dataset.notes:
        say(note)
    for sentence in describe_shortages(dataset):
        say(f"small: {sentence}")
    say(f"training {config.network} on {n_images:,} images, {device}, {config.precision}{together}")
    with TrainingBar(config.epochs) as bar:
        best = run(dataset, config, RunFolder(out), device=device, observer=bar.update, processes=processes)
    text = f"best epoch {best['epoch'] + 1}: validation loss {best['valid_loss']:.4f} nats per label, "
    text += f"agreement {best['valid_agreement']:.4f}\n"
    baseline = trained_beside_baseline(RunFolder(out))
    if baseline is not None:
        text += f"before calibration: {baseline_verdict(baseline)}\n"
    emit({**best, "baseline": baseline}, as_json, f"{text}run: {out}")


def _decay_epochs(decay: str, epochs: int) -> tuple[int, ...]:
    try:
        return tuple(max(1, round(float(share) * epochs)) for share in decay.split(",") if share.strip())
    except ValueError as exc:
        raise typer.BadParameter(f"--decay must be numbers like 0.6,0.85, got {decay!r}") from exc


@commands.command()
def calibrate(
    run: Annotated[Path | None, typer.Argument(help="Finished run folder; none with --logits.")] = None,
    method: ChosenMethod = "temperature",
    alpha: WithHead = True,
    level: ChosenLevel = "nominal",
    mc_dropout: Annotated[
        int | None, typer.Option(min=1, help="Members of a Monte-Carlo dropout ensemble, usually 20.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for the 80/20 split and the dropout masks.")] = 0,
    logits: Annotated[
        Path | None,
        typer.Option(help="Instead of a run, outputs of your model: case_id, logit:<class> or prob:<class>."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="With --logits: LABELS table; half of its patients evaluate.")
    ] = None,
    features: Annotated[Path | None, typer.Option(help="With --logits: table with case_id and feature:<name>.")] = None,
    cluster: Annotated[
        str | None, typer.Option(help="With --logits: column of LABELS that names the patient (default: `patient`).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --logits: .json file of the calibration to write.")] = None,
    as_json: Json = False,
) -> None:
    """Fit temperature and concentration head on cached outputs (stage 2), or on a table of outputs."""
    if (run is None) == (logits is None):
        raise typer.BadParameter("give either a run folder or --logits TABLE")
    if logits is not None:
        if labels is None or out is None or mc_dropout is not None:
            raise typer.BadParameter("--logits needs --labels and --out, and takes no --mc-dropout")
        from ml.training.adopt import AdoptRequest, calibrate_tables

        request = AdoptRequest(
            logits,
            labels=labels,
            features=features,
            cluster=cluster,
            seed=seed,
            method=method,
            alpha=alpha,
            level=level,
        )
        fitted = calibrate_tables(request, out)
        for sentence in fitted["warnings"]:
            say(f"warning: {sentence}")
        lines = metric_lines(fitted["held_out"], fitted["n_held_out"])
        lines += on_disagreement(fitted["disagreement"], fitted["constant_concentration"])
        emit(fitted, as_json, "\n".join([*lines, f"calibration {out}"]))
    elif run is not None:
        _calibrate_run(run, method, alpha, level, mc_dropout, seed, as_json)


def metric_lines(held_out: "dict[str, dict[str, EstimateDocument]]", n_held_out: int) -> list[str]:
    """Metrics by step of a calibration, as a table."""
    lines = [f"{n_held_out:,} held-out cases".ljust(26) + "  ".join(f"{m:>9}" for m in _CARD_COLUMNS)]
    for step, metrics in held_out.items():
        cells = ("        –" if metrics[m]["value"] is None else f"{metrics[m]['value']:9.4f}" for m in _CARD_COLUMNS)
        lines.append(f"{step:<26}" + "  ".join(cells))
    return lines


def _calibrate_run(
    run: Path, method: "Method", alpha: bool, level: "Level", mc_dropout: int | None, seed: int, as_json: bool
) -> None:
    from ml.release.card import refinement_sentence
    from ml.training.calibrate import calibrate_run
    from ml.training.run_folder import RunFolder

    report = calibrate_run(RunFolder(run), method=method, alpha=alpha, level=level, seed=seed, mc_dropout=mc_dropout)
    lines = metric_lines(report["held_out"], report["n_held_out"])
    if alpha and not report["disagreement_calibrated"]:
        lines.append("no concentration head: no case of the calibration part has two labels")
    refined = refinement_sentence(report["fit"])
    lines += [refined] if refined else []
    lines += on_disagreement(report.get("disagreement"), report["constant_concentration"])
    emit(report, as_json, "\n".join(lines))


def on_disagreement(judged: "DisagreementDocument | None", constant_concentration: bool = False) -> list[str]:
    """Lines on the disagreement probability of a calibration, and on its verdict."""
    from ml.release.card import CONSTANT_CONCENTRATION, second_order_sentence

    pairs = judged.get("second_order") if judged is not None else None
    lines = [*([CONSTANT_CONCENTRATION] if constant_concentration else []), *_on_verdict(judged)]
    return lines if pairs is None else [*lines, second_order_sentence(pairs)]


def _on_verdict(judged: "DisagreementDocument | None") -> list[str]:
    if judged is None:
        return ["the disagreement probability was not judged: no held-out case has two labels"]
    if judged["constant"] is not None:
        return [
            "the disagreement probability is worse than a constant on held-out cases: the release has "
            f"{judged['constant']:.4f} of every case"
        ]
    if judged["verdict"] == "better":
        return ["the disagreement probability is better than a constant"]
    end = " so far" if judged["verdict"] == "no better so far" else ""
    return [f"the disagreement probability is {judged['verdict'].removesuffix(' so far')} than a constant{end}"]


#: Images of another data set that are tried out.
_OTHER_IMAGES = 500
_CARD_COLUMNS = ("agreement", "L", "skill", "EL", "CE", "L_D", "skill_D", "CE_D")


@commands.command()
def export(
    run: Annotated[Path, typer.Argument(help="Calibrated run folder; with --triton also a release folder.")],
    out: Annotated[Path | None, typer.Option(help="New release folder.")] = None,
    fused: Annotated[bool, typer.Option("--fused", help="Also write one graph with the final probabilities.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the release (default: the run's name).")] = None,
    shifts: Annotated[
        bool, typer.Option("--shifts/--no-shifts", help="Try standard shifts of held-out images out, for the card.")
    ] = True,
    other: Annotated[
        str | None, typer.Option(help="Another data set, by name or folder, to be tried out with the shifts.")
    ] = None,
    triton: Annotated[
        Path | None, typer.Option(help="Model repository of Triton to put the release's network into.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a release: ONNX network, calibration and card, after a parity check (stage 3)."""
    from ml.release.artifact import read_release
    from ml.release.triton import write_repository

    if triton is not None and out is None:
        release = read_release(run)
        model = write_repository(release, triton)
        document = {"model": model, "network_sha256": release.network_sha256}
        emit(document, as_json, f"model {model} in {triton}")
        return
    if out is None:
        raise typer.BadParameter("--out is missing: the release folder to make")
    from ml.charts.reliability import write_chart
    from ml.charts.results import shift_chart
    from ml.datasets.base import load_dataset
    from ml.training.export import export_run
    from ml.training.release_checks import ShiftTrial
    from ml.training.run_folder import RunFolder

    say("exporting to ONNX")
    pixels = None if other is None else load_dataset(other, {}).pixels[:_OTHER_IMAGES]
    with progress_bars("standard shifts", shown=shifts) as observe:
        trial = ShiftTrial(pixels, observe) if shifts else None
        release = export_run(RunFolder(run), out, fused=fused, name=name, shifts=trial)
    if rows := release.card.get("shifts", []):
        write_chart(shift_chart(rows), run / "shifts.svg")
        say(f"standard shifts: {run / 'shifts.svg'}")
    emit(release.card, as_json, _export_text(release, out))
    if triton is not None:
        say(f"model {write_repository(release, triton)} in {triton}")


def _export_text(release: "Release", out: Path) -> str:
    text, parity = f"release {release.card['name']} in {out}", release.card["parity"]
    if parity is not None:
        text += (
            f"\nparity on {parity['n']} images: probabilities within {parity['max_probability_difference']:.1e}, "
            f"logits within {parity['max_relative_logit_difference']:.1e}"
        )
    return text + "".join(f"\n{line}" for line in on_disagreement(release.card.get("disagreement")))


@commands.command()
def predict(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    images: Annotated[list[Path], typer.Argument(help="PNG, JPEG or TIFF files.")],
    tta: Annotated[int | None, typer.Option(min=1, help="Augmented views per image, usually 20.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed for the augmented views.")] = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict images with a release."""
    from ml.release.score import predict_files

    say_where(device)
    rows = predict_files(release, images, tta=tta, seed=seed, device=device)
    lines = []
    for row in rows:
        probs = row["class_probs"]
        leader = max(probs, key=probs.__getitem__)
        lines.append(f"{row['image']}: {leader} {probs[leader]:.3f}, {_disagreement_words(row)}")
    emit(rows, as_json, "\n".join(lines))


def _disagreement_words(row: "ImagePrediction") -> str:
    if row["disagreement_prob"] is None:
        return f"out of distribution ({', '.join(row['reasons'])}): no disagreement probability"
    marked = "" if row["disagreement_calibrated"] else " (not calibrated)"
    if row["disagreement_constant"]:
        marked = " (a constant)"
    if row["out_of_distribution"] is None:
        marked += "; image not checked: the release has no out-of-distribution check"
    return f"experts would disagree {row['disagreement_prob']:.3f}{marked}"
