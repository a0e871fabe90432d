"""Filling of the demo: release, cases and labels."""

import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from app.context import ServiceContext
from app.demo.people import Say, ensure_accounts, progress_bar, write_notice
from app.demo.real_cells import ensure_real_cases, ensure_shipped_release, serves_real_cells
from app.releases.service import add_release, get_champion_alias

if TYPE_CHECKING:
    from ml.training.learner import StepReport
    from ml.training.run_folder import RunFolder, TrainConfig

TRAINING_CELLS, EPOCHS = 1500, 7


def ensure_trained_release(context: ServiceContext, say: Say) -> None:
    """Train, calibrate and export a release on simulated cells, unless one is served."""
    with context.database.read() as session:
        if get_champion_alias(session) is not None:
            return
    source = context.settings.home / "demo" / "release"
    if not (source / "card.json").is_file():
        make_release(context.settings.home / "demo" / "run", source, say)
    add_release(context.database, context.keys.audit, source, context.folders)


def make_release(run: Path, out: Path, say: Say) -> None:
    """Train, calibrate and export the release of the simulated demo; an interrupted training goes on."""
    from ml.training.calibrate import calibrate_run
    from ml.training.export import export_run
    from ml.training.run_folder import RunFolder

    folder = RunFolder(run)
    _train_network(folder, say)
    say("demo: calibrating class and disagreement probabilities")
    calibrate_run(folder, method="temperature", alpha=True)
    say("demo: exporting the release")
    export_run(folder, out, name="demo cells")


def _demo_train_config(precision: str) -> "TrainConfig":
    from ml.training.run_folder import TrainConfig

    return TrainConfig(
        data="cells",
        data_options={"count": TRAINING_CELLS, "seed": 0},
        network="compact",
        epochs=EPOCHS,
        batch_size=64,
        learning_rate=2e-3,
        warmup_epochs=1,
        decay_epochs=(4, 6),
        patience=EPOCHS,
        seed=0,
        precision=precision,
        compiled=False,
        backbone_weights=None,
    )


def _preload_modules() -> None:
    """Import modules that are needed later; errors are left to the real import."""
    for name in ("ml.training.train", "torch._dynamo", "ml.training.export", "onnxscript"):
        with suppress(ImportError):
            import_module(name)


def _train_network(folder: "RunFolder", say: Say) -> None:
    """Simulate the cells and train on them, with a bar that tells how long it will take."""
    from ml.datasets.cells import load_cells

    say(f"demo: simulating {TRAINING_CELLS:,} stained white cells")
    # what trains and exports takes seconds to load, and other processes draw the cells
    loading = threading.Thread(target=_preload_modules)
    loading.start()
    dataset = load_cells(TRAINING_CELLS, seed=0)
    loading.join()
    from ml.training.train import choose_device, choose_precision, train

    device = choose_device("cpu")
    say(f"demo: training on {dataset.rows('train').size:,} of them, {EPOCHS} epochs")
    with progress_bar("training", None) as bar:

        def show(report: "StepReport") -> None:
            bar.update(report.epoch * report.steps + report.step, EPOCHS * report.steps)

        train(dataset, _demo_train_config(choose_precision("auto", device)), folder, device=device, observer=show)


def fill_demo(context: ServiceContext, say: Say, *, train: bool = False) -> None:
    """Add what the demo lacks; a HOME that serves a release already keeps it."""
    with context.database.read() as session:
        is_new = get_champion_alias(session) is None
    real = not train if is_new else serves_real_cells(context)
    if real and train:
        raise ValueError(
            "this HOME has the demo on real cells; the simulated one needs a HOME of its own, for example "
            "`SECONDREAD_HOME=.simulated secondread demo --train`"
        )
    if real:
        ensure_shipped_release(context, say)
    else:
        ensure_trained_release(context, say)
    with context.database.write() as session:
        ensure_accounts(session, context)
    if real:
        ensure_real_cases(context, say)
    else:
        from app.demo.simulated import ensure_simulated_cases

        ensure_simulated_cases(context, say)
    write_notice(context.settings.home, real=real)
