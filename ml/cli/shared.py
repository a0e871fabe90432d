"""What every command shares: output as text or JSON, and one line for an error that a person can fix."""

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(
        envvar="SECONDREAD_DEVICE",
        help="Where the network runs: cuda and nothing else, cpu, or auto, which takes cuda where it can be used.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def emit(document: Any, as_json: bool, text: str) -> None:
    """Print a result: the JSON document, or its text for people."""
    sys.stdout.write((json.dumps(document, indent=2, ensure_ascii=False) if as_json else text) + "\n")


def say(message: str) -> None:
    """Write a line for people on stderr."""
    sys.stderr.write(message + "\n")


def say_where(device: Literal["auto", "cpu", "cuda"]) -> None:
    """Say so where ``auto`` runs networks on the CPU though the ONNX Runtime for GPUs is installed."""
    from ml.release.device import fallen_back

    fault = fallen_back(device)
    if fault is not None:
        say(f"warning: the network runs on the CPU, since CUDA cannot be used: {fault}")


def _explain(exc: Exception) -> str | None:
    """One line for an error that a person can fix, None for a defect."""
    if isinstance(exc, ModuleNotFoundError):
        from ml.cli.extras import missing_extra

        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        return missing_extra(exc.name or "", command)
    return str(exc) if isinstance(exc, ValueError | OSError) else None


def run_command(command: typer.Typer, explain: Callable[[Exception], str | None] = lambda exc: None) -> None:
    """Run the command line; a failure is one line on stderr and exit status 1.

    Args:
        command: the command line.
        explain: one line for further errors that a person may meet, None for a defect.

    Raises:
        SystemExit: always, with the exit status.
    """
    try:
        command()
    except KeyboardInterrupt as exc:
        say("secondread: interrupted")
        raise SystemExit(130) from exc
    except Exception as exc:
        line = _explain(exc) or explain(exc)
        if line is None:
            raise
        say("secondread: " + " ".join(line.split()))
        raise SystemExit(1) from exc
