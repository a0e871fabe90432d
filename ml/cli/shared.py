"""Options, extras and errors that commands share."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import typer

if TYPE_CHECKING:
    from rich.progress import TaskID

    from ml.metrics.jackknife import EstimateDocument

#: Extras for a command, best first.
_FOR_COMMAND = {
    "adapt": ("cpu", "train"),
    "adopt": ("cpu", "train,cpu"),
    "audit": ("report",),
    "calibrate": ("cpu", "train"),
    "demo": ("serve,cpu", "serve,train,cpu"),
    "export": ("train",),
    "predict": ("cpu",),
    "quantize": ("train,cpu",),
    "reproduce": ("charts", "train"),
    "score": ("cpu", "ray"),
    "serve": ("serve,cpu",),
    "sort": ("duckdb",),
    "train": ("train",),
}
_FOR_OTHERS = ("charts", "report", "serve", "train", "cpu", "oidc")
#: Name of this distribution; the package is imported as ``secondread``.
_OWN = "secondread-cells"
#: Packages that are imported by another name than they are installed by.
_DISTRIBUTIONS = {"argon2": "argon2-cffi", "PIL": "pillow", "vl_convert": "vl-convert-python"}


def missing_extra(module: str, command: str) -> str | None:
    """Advice on what to install for a module that is missing."""
    top = module.split(".")[0]
    package = _normal(_DISTRIBUTIONS.get(top, top))
    bringing = {extra for extra, packages in _packages_of_extras().items() if package in packages}
    for extras in (*_FOR_COMMAND.get(command, ()), *_FOR_OTHERS):
        if bringing & set(extras.split(",")):
            alternative = " (gpu in place of cpu for an NVIDIA GPU)" if "cpu" in extras.split(",") else ""
            what = f"`{command}` needs" if command else "this needs"
            return f"{what} the package {package!r}: pip install '{_OWN}[{extras}]'{alternative}"
    return None


def _packages_of_extras() -> dict[str, set[str]]:
    try:
        declared = requires(_OWN) or []
    except PackageNotFoundError:
        return {}
    packages: dict[str, set[str]] = {}
    included: list[tuple[str, str]] = []
    for requirement in declared:
        parts = re.match(r"""([\w.-]+)(?:\[(\w+)\])?.*\bextra == ["'](\w+)["']""", requirement)
        if parts is None:
            continue
        name, of_it, extra = parts.groups()
        packages.setdefault(extra, set()).add(_normal(name))
        if _normal(name) == _OWN:
            included.append((extra, of_it))
    for extra, other in included:
        packages[extra] |= packages.get(other, set())
    return packages


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def version_line() -> str:
    """Version and, if available, the commit."""
    import subprocess
    from pathlib import Path

    import secondread

    package = Path(secondread.__file__).parent
    written, commit = package / "commit.txt", ""
    if written.is_file():
        commit = written.read_text().strip()[:12]
    elif (package.parent / ".git").exists():
        command = ["git", "-C", str(package.parent), "rev-parse", "--short=12", "HEAD"]
        with suppress(OSError):  # git is not installed
            commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    return f"secondread {secondread.__version__}" + (f" ({commit})" if commit else "")


Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(
        envvar="SECONDREAD_DEVICE",
        help="Device of the network: cuda only, cpu, or auto (cuda if available).",
    ),
]
ChosenMethod = Annotated[
    Literal["none", "temperature", "vector", "matrix"], typer.Option(help="none, temperature, vector or matrix.")
]
WithHead = Annotated[bool, typer.Option("--alpha/--no-alpha", help="Fit the concentration head.")]
ChosenLevel = Annotated[
    Literal["nominal", "ordinal"],
    typer.Option(help="ordinal: classes are grades of one scale; a label may also raise its neighbours."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def emit(document: Any, as_json: bool, text: str) -> None:
    """Print a result: the JSON document, or its text for people."""
    sys.stdout.write((json.dumps(document, indent=2, ensure_ascii=False) if as_json else text) + "\n")


def say(message: str) -> None:
    """Write a line for people on stderr."""
    sys.stderr.write(message + "\n")


class Observer(Protocol):
    """Progress observer: part of the work, done, and total or None."""

    def __call__(self, done: int, total: int | None = None, part: str | None = None) -> None:
        """Show it."""


class Pace:
    """How long work lasts, and when the next line about it is due."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.began = seconds, time.monotonic()
        self.first: int | None = None
        self.due = self.began + seconds

    def line_is_due(self, done: int) -> bool:
        """Whether so many seconds have passed since the last line."""
        self.first = done - 1 if self.first is None else self.first  # the steps before are an earlier process's
        if time.monotonic() < self.due:
            return False
        self.due = time.monotonic() + self.seconds
        return True

    def left(self, done: int, total: int) -> timedelta:
        """Time left, by the steps since the beginning."""
        spent = time.monotonic() - self.began
        return timedelta(seconds=round(spent / max(done - (self.first or 0), 1) * (total - done)))


@contextmanager
def progress_bars(what: str, *, shown: bool = True) -> Iterator[Observer]:
    """Show a progress bar on a terminal for each part of the work, else a line a minute."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console, tasks, paces = Console(stderr=True), dict[str, "TaskID"](), dict[str, Pace]()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, disable=not (shown and console.is_terminal)) as bars:

        def observe(done: int, total: int | None = None, part: str | None = None) -> None:
            name = part or what
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)
            pace = paces.setdefault(name, Pace(60.0))
            if pace.line_is_due(done) and shown and total and not console.is_terminal:
                say(f"{name}: {done:,}/{total:,}  {pace.left(done, total)} left")

        yield observe


def figure(metric: "EstimateDocument", sign: str = "", digits: int = 4) -> str:
    """A metric with its interval; a dash where it has no value."""
    value, low, high = metric["value"], metric["low"], metric["high"]
    if value is None:
        return "–"
    if low is None or high is None:
        return f"{value:{sign}.4f}"
    return f"{value:{sign}.4f} ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"


def say_where(device: Literal["auto", "cpu", "cuda"]) -> None:
    """Report a CPU fallback despite the ONNX Runtime for GPUs."""
    from ml.release.device import fallen_back

    fault = fallen_back(device)
    if fault is not None:
        say(f"warning: the network runs on the CPU, since CUDA cannot be used: {fault}")


def _explain(exc: Exception) -> str | None:
    """One line for an error that a person can fix, else None."""
    if isinstance(exc, ModuleNotFoundError):
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        return missing_extra(exc.name or "", command)
    return str(exc) if isinstance(exc, ValueError | OSError) else None


def run_command(command: typer.Typer, explain: Callable[[Exception], str | None] = lambda exc: None) -> None:
    """Run the command line; a failure is one line on stderr and exit status 1."""
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
