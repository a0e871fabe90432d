"""The whole ``secondread`` command: the offline half of ``ml.cli`` and the service's commands."""

from ml.cli import app, run_command


def main() -> None:
    """Entry point of the command line."""
    run_command(app)
