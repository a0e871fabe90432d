"""The command line in the test's own process: the same entry point, without a start of Python."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from app.cli.main import main


def run_here(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run ``secondread`` with these arguments; what it printed and its exit status, as of a process.

    For commands of the library. What concerns the process itself (signals, files it leaves open, what it imports) is
    tested with :class:`tests.support.process.Installation` or the installed script.
    """
    command = ["secondread", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with patch.object(sys, "argv", command), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
            status = 0
        except SystemExit as exit_:
            status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())
