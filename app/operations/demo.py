"""A service filled with simulated cells by the real pipeline: train, calibrate, export, upload, label.

Running it again changes nothing.
"""

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.auth import service as auth
from app.context import Context
from app.releases.adding import add_release
from app.releases.queries import champion
from app.tables import Account

#: Accounts of the demo and their roles.
PEOPLE = {"admin": "admin", "viewer": "viewer", "annotator-1": "annotator", "annotator-2": "annotator"}
TRAINING_CELLS, EPOCHS = 1500, 7
#: Account that uploads.
ROBOT = "demo"

Say = Callable[[str], None]


def ensure_release(context: Context, say: Say) -> None:
    """Train, calibrate and export a release on simulated cells, unless one is served."""
    with context.database.read() as session:
        if champion(session) is not None:
            return
    source = context.settings.home / "demo" / "release"
    if not (source / "card.json").is_file():
        _train(context.settings.home / "demo" / "run", source, say)
    add_release(context.database, context.keys.audit, source, context.settings.releases_folder)


def _train(run: Path, out: Path, say: Say) -> None:
    from ml.datasets.cells import load_cells
    from ml.training.calibrate import calibrate_run
    from ml.training.export import export_run
    from ml.training.run_folder import RunFolder, TrainConfig
    from ml.training.train import choose_device, choose_precision, train

    device = choose_device("cpu")
    config = TrainConfig(
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
        precision=choose_precision("auto", device),
        compiled=False,
        backbone_weights=None,
    )
    say(f"demo: simulating {TRAINING_CELLS:,} stained white cells")
    dataset = load_cells(TRAINING_CELLS, seed=0)
    folder = RunFolder(run)
    say(f"demo: training on {dataset.rows('train').size:,} of them, {EPOCHS} epochs")
    train(dataset, config, folder, device=device)
    say("demo: calibrating class and disagreement probabilities")
    calibrate_run(folder, method="temperature", alpha=True)
    say("demo: exporting the release")
    export_run(folder, out, name="demo cells")


def ensure_accounts(session: Session, context: Context) -> None:
    """Accounts of the demo, the uploading robot included, and an API key in HOME/demo/api_key."""
    present = set(session.execute(select(Account.name)).scalars())
    for name, role in {**PEOPLE, ROBOT: "service"}.items():
        if name not in present:
            auth.add_account(session, context.keys.audit, name, role)
    path = context.settings.home / "demo" / "api_key"
    if not path.is_file():
        _, token = auth.add_key(session, context.keys.audit, "admin", [])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(token + "\n")


def one_time_passwords(context: Context) -> dict[str, str | None]:
    """New one-time passwords of the people of the demo; None for those who have chosen a password, which they keep."""
    passwords: dict[str, str | None] = {}
    with context.database.write() as session:
        for account in session.execute(select(Account).where(Account.name.in_(PEOPLE))).scalars().all():
            chosen = account.password_hash is not None
            passwords[account.name] = (
                None if chosen else auth.issue_one_time_password(session, context.keys.audit, account.name)
            )
    return {name: passwords[name] for name in PEOPLE}
