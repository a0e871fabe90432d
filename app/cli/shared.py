"""Shared set-up of the service's commands: settings, context, privacy of files."""

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
    from app.context import ServiceContext


def keep_private() -> None:
    """Restrict new files of this process to its own user: they contain images, labels and keys."""
    os.umask(0o077)


def warn_of_open_home(home: Path) -> None:
    """Warn where other users of the machine can read HOME."""
    mode = home.stat().st_mode & 0o777
    if mode & 0o077:
        say(f"warning: other users of this machine can look into {home} (mode {mode:o}); run `chmod -R go= {home}`")


#: What NumPy has to build extensions and to test itself; no part of the service asks for it.
_TOOLS = ("f2py", "testing")


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause garbage collection in this block, and exempt the loaded objects from it afterwards."""
    # Some 400,000 objects are made that stay. Going through them again and again takes a fifth of a start, and whenever
    # the whole of them is looked at, everybody waits for a tenth of a second.
    gc.disable()
    try:
        with _without_numpy_tools():
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _without_numpy_tools() -> Iterator[None]:
    """Leave NumPy's tools unloaded although SciPy copies all of NumPy's names."""
    # What stands for them in the block is gone after it: NumPy itself loads them for whoever takes something of them
    # then, and lets no two threads do so at once, as this loader would.
    import numpy as np

    lazy_modules = {}
    for name in _TOOLS:
        spec = find_spec(f"numpy.{name}")
        if spec is None or spec.loader is None or spec.name in sys.modules:
            continue
        spec.loader = LazyLoader(spec.loader)
        lazy_modules[name] = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(lazy_modules[name])
        setattr(np, name, lazy_modules[name])
    try:
        yield
    finally:
        for name, module in lazy_modules.items():
            if type(module) is not ModuleType:  # nobody has loaded it
                del sys.modules[f"numpy.{name}"]
                delattr(np, name)


@contextmanager
def service_context(
    *, check_schema: bool = True, direct: bool = False, ring: "KeyRing | None" = None
) -> Iterator["ServiceContext"]:
    """Open the service's context from the environment."""
    from app.audit.installation import claim_database
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
            claim_database(context.database, context.keys.audit, say)
            _repeat_erasures(context)
        yield context
    finally:
        context.inference.close()
        context.database.engine.dispose()


def _repeat_erasures(context: "ServiceContext") -> None:
    if not context.settings.erasure_list.is_file():
        return
    from app.maintenance.erasure import repeat_listed_erasures

    n_erased = repeat_listed_erasures(context)
    if n_erased:
        say(f"{n_erased:,} patients who were erased after a backup are erased again, since it was brought back")
