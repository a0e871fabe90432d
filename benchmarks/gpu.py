"""What needs a CUDA device: training, serving and its tests, in steps that resume. `make gpu` runs it.

    python -m benchmarks.gpu                    # what is not done yet, for nine minutes at most
    python -m benchmarks.gpu --list             # the steps and how far they are
    python -m benchmarks.gpu --step serving     # one of them
    python -m benchmarks.gpu --limit-minutes 60

A call stops by itself before its limit; the same call goes on from there, epochs and all. Exit status: 0 everything is
done, 75 call again, 1 something failed or no CUDA device can be used. States lie in ``build/gpu`` and are keyed by what
is done on which kind of device; results go into ``benchmarks/results``. Nothing is fetched: the data are read from
``SECONDREAD_DATASETS``.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.gpu_state import (
    MORE_TO_DO,
    Setting,
    State,
    Step,
    attempt,
    read_state,
    write_state,
)
from ml.training.deadline import Deadline

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LIMIT_MINUTES = 9.0
_STEPS = "benchmarks.gpu_steps"
#: Kept for a step to write what it has, and to start the next one; and after which a process that ends by no means is
#: killed.
_RESERVE, _GRACE = 10.0, 25.0


def cuda_problem(device: torch.device) -> str | None:
    """Why a device cannot be used, with what to do; None where it can: it has added two numbers."""
    if device.type != "cuda":
        return None
    if not torch.backends.cuda.is_built():
        return (
            f"this PyTorch ({torch.__version__}) was built for CPUs: install the one for CUDA, or name a Python that "
            "has it with `make gpu GPU_PYTHON=python3`"
        )
    if not torch.cuda.is_available():
        return (
            "PyTorch finds no CUDA device: see that `nvidia-smi` lists one, that the driver is as new as CUDA "
            f"{torch.version.cuda}, that a container was given its GPU (`--gpus all`), and that CUDA_VISIBLE_DEVICES "
            "does not hide it"
        )
    try:
        if float(torch.ones(1, device=device) + torch.ones(1, device=device)) == 2.0:
            return None
    except RuntimeError as exc:
        return f"the CUDA device does not compute: {' '.join(str(exc).split())[:300]}"
    return "the CUDA device computes wrongly"


def _say(line: str) -> None:
    print(line, flush=True)


def _shown(step: Step, state: State) -> str:
    times = f"{state.seconds:.0f} s" if state.attempts else ""
    more = f" in {state.attempts} attempts" if state.attempts > 1 else ""
    return f"{step.name:<24} {state.status:<11} {times}{more}{': ' if state.reason and times else ''}{state.reason}"


def show(steps: Sequence[Step], setting: Setting) -> None:
    """Print the steps and how far they are."""
    _say(f"device: {setting.device_name}; states in {setting.state}")
    for step in steps:
        _say(_shown(step, read_state(step, setting)))
        _say(f"{'':<24} {step.what}")


def run(steps: Sequence[Step], setting: Setting, *, module: str = _STEPS, again: bool = False) -> int:
    """Run what is not done, each step in a process of its own, until the deadline; gives the exit status.

    Args:
        steps: in their order.
        setting: of the call.
        module: whose ``STEPS`` they are.
        again: what is done as well.
    """
    failed, left = [], []
    for step in steps:
        state = read_state(step, setting)
        if state.status == "done" and not again:
            _say(f"{step.name}: done before")
            continue
        if state.reason and state.status == "not begun":
            _say(f"{step.name}: {state.reason}; it begins again with what it finds")
        if not setting.deadline.allows(step.least):
            left.append(step.name)
            continue
        _say(f"{step.name}: {step.what}")
        state = in_own_process(step, setting, module)
        _say(_shown(step, state))
        if state.status in {"failed", "killed"}:
            failed.append(step.name)
        if state.status in {"unfinished", "killed"}:
            left.append(step.name)
    if left:
        _say(f"left for the next call: {', '.join(left)}")
    if failed:
        _say(f"failed: {', '.join(failed)}; failure.txt in their folders in {setting.state} says where")
    return 1 if failed else MORE_TO_DO if left else 0


def in_own_process(step: Step, setting: Setting, module: str) -> State:
    """Run a step in a process of its own, and give how far it came."""
    seconds = setting.deadline.left - _RESERVE
    command = [sys.executable, "-m", "benchmarks.gpu", "--alone", step.name, "--seconds", str(seconds)]
    command += ["--device", str(setting.device), "--state", str(setting.state), "--steps", module]
    command += ["--results", str(setting.results)] if setting.results is not None else []
    command += ["--tiny"] if setting.tiny else []
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            status = process.wait(seconds + _GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
    state = read_state(step, setting)
    if status != 0 and state.status in {"begun", "not begun"}:
        state = replace(state, status="killed", reason=f"its process ended with status {status}")
        write_state(step, setting, state)
    return state


def _setting(options: argparse.Namespace) -> Setting:
    device = torch.device(options.device)
    results = None if device.type != "cuda" else options.results
    return Setting(device, options.state.resolve(), results, options.tiny, Deadline(60 * options.limit_minutes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show the steps and how far they are")
    parser.add_argument("--step", help="run this one alone")
    parser.add_argument("--again", action="store_true", help="run what is done as well")
    parser.add_argument("--limit-minutes", type=float, default=LIMIT_MINUTES, help="of this call")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu with --tiny")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "gpu", help="folder to resume from")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for results, of CUDA devices only")
    parser.add_argument("--tiny", action="store_true", help="sizes of seconds: whether everything runs")
    parser.add_argument("--steps", default=_STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    setting = _setting(options)
    steps: dict[str, Step] = {step.name: step for step in import_module(options.steps).STEPS}
    if options.alone:
        attempt(steps[options.alone], replace(setting, deadline=Deadline(options.seconds)))
        return 0
    if options.step is not None and options.step not in steps:
        parser.error(f"there is no step {options.step!r}; there are {', '.join(steps)}")
    chosen = [steps[options.step]] if options.step else list(steps.values())
    problem = cuda_problem(setting.device)
    if problem is not None:
        print(f"no CUDA device can be used: {problem}", file=sys.stderr)
        if options.list:
            show(chosen, replace(setting, device=torch.device("cpu")))
        return 1
    if options.list:
        show(chosen, setting)
        return 0
    return run(chosen, setting, module=options.steps, again=options.again)


if __name__ == "__main__":
    raise SystemExit(main())
