"""Sandboxed subprocess for untrusted input: limited, without files or secrets."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG")
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
_NICE = 5
# address space that allocators reserve in blocks, however little is asked of them
_SLACK = 128 * 1024**2


class LimitError(Exception):
    """The process failed, or went beyond a limit."""

    def __init__(self, message: str, *, slow: bool = False) -> None:
        super().__init__(message)
        self.slow = slow


def run_limited(module: str, argument: str, *, data: bytes = b"", seconds: int) -> bytes:
    """Run a module that calls ``limit_this_process`` once it has been imported."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _ONE_THREAD
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", module, argument]
    try:
        done = subprocess.run(  # noqa: S603
            command, input=data, capture_output=True, timeout=seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise LimitError(f"took longer than {seconds} s", slow=True) from exc
    if done.returncode:
        raise LimitError(f"ended with status {done.returncode}", slow=done.returncode == -signal.SIGXCPU)
    return done.stdout


def limit_this_process(memory: int, seconds: int) -> None:
    """Limit memory and processor time of this process; forbid files."""
    os.nice(_NICE)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory + _SLACK
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for kind, value in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(kind, (value, value))
