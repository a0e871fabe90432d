"""What makes a run quicker and changes no test: memory for what is thrown away, and no import in search of examples."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

_TESTS = Path(__file__).parents[1]


def fast_folder() -> str:
    """Memory where there is plenty, for the databases and folders of a run: no commit waits for a disk."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 4 * 1024**3
    return str(shared) if roomy else tempfile.gettempdir()


# set TMPDIR to use a disk
os.environ.setdefault("TMPDIR", fast_folder())
tempfile.tempdir = None
# collecting tests imports everything and frees almost nothing
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again, but do not look at what was imported each time."""
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out a module of the packages that has no example: to import it takes time, in each process of a run."""
    if collection_path.suffix != ".py" or collection_path.is_relative_to(_TESTS):
        return None
    return None if b">>> " in collection_path.read_bytes() else True
