"""What is expensive is made once for all processes of a run."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def build_once(tmp_path_factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Folder or file of this name, built by whichever process of pytest-xdist asks first.

    Args:
        tmp_path_factory: of the asking process.
        name: of the result, unique in a run.
        build: makes the path that it is given; one that fails leaves nothing behind.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    path = root / "shared" / name
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_name(f"{name}.lock")):
        if not path.exists():
            partial = path.with_name(f"{name}.{os.getpid()}.part")
            build(partial)
            partial.rename(path)
    return path
