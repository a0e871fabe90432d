"""What the service's commands share: the parts of the service that the environment describes."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import LazyLoader, find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ml.cli.shared import say

if TYPE_CHECKING:
    from app.audit.chain.keys import KeyRing
    from app.context import Context


def keep_private() -> None:
    """Make the files of this process for its own user only: they contain images, labels and keys."""
    os.umask(0o077)


def warn_of_open_home(home: Path) -> None:
    """Say so where other users of the machine can look into HOME."""
    mode = home.stat().st_mode & 0o777
    if mode & 0o077:
        say(f"warning: other users of this machine can look into {home} (mode {mode:o}); run `chmod -R go= {home}`")


#: What NumPy has to build extensions and to test itself; no part of the service asks for it.
_TOOLS = ("f2py", "testing")


@contextmanager
def loading() -> Iterator[None]:
    """Load what a process keeps, in this block: nothing looks for garbage meanwhile, nor later among what was loaded.

    Some 400,000 objects are made that stay. Going through them again and again takes a fifth of a start, and whenever
    the whole of them is looked at, everybody waits for a tenth of a second.
    """
    gc.disable()
    try:
        with _without_tools():
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _without_tools() -> Iterator[None]:
    """Leave NumPy's tools unloaded though SciPy copies every name of NumPy, tools too.

    What stands for them in the block is gone after it: NumPy itself loads them for whoever takes something of them
    then, and lets no two threads do so at once, as this loader would.
    """
    import numpy as np

    found = {}
    for name in _TOOLS:
        spec = find_spec(f"numpy.{name}")
        if spec is None or spec.loader is None or spec.name in sys.modules:
            continue
        spec.loader = LazyLoader(spec.loader)
        found[name] = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(found[name])
        setattr(np, name, found[name])
    try:
        yield
    finally:
        for name, module in found.items():
            if type(module) is not ModuleType:  # nobody has loaded it
                del sys.modules[f"numpy.{name}"]
                delattr(np, name)


@contextmanager
def parts(*, check_schema: bool = True, direct: bool = False, ring: "KeyRing | None" = None) -> Iterator["Context"]:
    """Parts of the service that the environment describes.

    Args:
        check_schema: make the tables of a new HOME, refuse an older schema; off for the commands that upgrade.
        direct: for a worker, which needs the database itself and not a transaction pooler before it.
        ring: the keys; those of the settings where left out.

    Raises:
        ValueError: the database has an older schema, or belongs to another key.
    """
    from app.audit.installation import claim
    from app.context import build_context
    from app.database.migration import create_if_new
    from app.settings import read_settings

    keep_private()
    settings = read_settings()
    if direct and settings.database_direct_url is not None:
        settings.database_url = settings.database_direct_url
    settings.home.mkdir(parents=True, exist_ok=True)
    context = build_context(settings, ring)
    try:
        if check_schema:
            create_if_new(context.database.engine)
            claim(context.database, context.keys.audit, say)
            _erase_again(context)
        yield context
    finally:
        context.inference.close()
        context.database.engine.dispose()


def _erase_again(context: "Context") -> None:
    """Nothing is done with a backup that was brought back before those are erased again who were erased after it."""
    if not context.settings.erasure_list.is_file():
        return
    from app.maintenance.erasure import erase_again_as_listed

    n_erased = erase_again_as_listed(context)
    if n_erased:
        say(f"{n_erased:,} patients who were erased after a backup are erased again, since it was brought back")
