"""The command line in processes that begin with its imports behind them.

A start of ``secondread serve`` is two seconds of imports. A server of multiprocessing makes them once for a whole run
and forks a process per command, which then is a process like any other: own signals, files, environment, exit status.
What is tested of the installed console script itself does not go through here.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_FORKSERVER = multiprocessing.get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["tests.support.preloaded"])


def _become(command: Sequence[str], code: str, environment: Mapping[str, str], folder: str, out: str, err: str) -> None:
    """Run a command line in this fresh process; ``code`` runs first."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for path, descriptor in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0)  # where a command has it; uvicorn hands its number on
    sys.argv = list(command)
    # a worker that has lost its lock starts anew by this line
    sys.orig_argv = [sys.executable, "-c", "from app.cli.main import main; main()", *command[1:]]
    from app.cli.main import main

    exec(code, {"__name__": "__main__"})
    main()


class ForkedCommand:
    """A running ``secondread``, with the part of :class:`subprocess.Popen` that tests use."""

    def __init__(
        self, arguments: Sequence[object], environment: Mapping[str, str], folder: Path, out: Path, err: Path, code: str
    ) -> None:
        self.args = ["secondread", *map(str, arguments)]
        values = (self.args, code, dict(environment), str(folder), str(out), str(err))
        self._process = ForkServerProcess(target=_become, args=values)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status once it is over, -n after signal n."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Exit status, waited for."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is over."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
