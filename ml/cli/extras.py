"""Which extra brings a package that is not installed: the core is lean, and most commands need more."""

import re
from importlib.metadata import PackageNotFoundError, requires

#: What to install for a command, best first; the first that brings the missing package is named.
_FOR_COMMAND = {
    "adapt": ("cpu", "train"),
    "audit": ("report",),
    "calibrate": ("train",),
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
#: Packages that are imported by another name than they are installed by.
_DISTRIBUTIONS = {"argon2": "argon2-cffi", "PIL": "pillow", "vl_convert": "vl-convert-python"}


def missing_extra(module: str, command: str) -> str | None:
    """One line saying what to install for a module that a command could not import.

    Args:
        module: as it was imported, ``PIL.Image``.
        command: of the command line, or the empty string.

    Returns:
        The line; None where no extra brings the module, which is a defect.
    """
    top = module.split(".")[0]
    package = _normal(_DISTRIBUTIONS.get(top, top))
    bringing = {extra for extra, packages in _packages_of_extras().items() if package in packages}
    for extras in (*_FOR_COMMAND.get(command, ()), *_FOR_OTHERS):
        if bringing & set(extras.split(",")):
            alternative = " (gpu in place of cpu for an NVIDIA GPU)" if "cpu" in extras.split(",") else ""
            what = f"`{command}` needs" if command else "this needs"
            return f"{what} the package {package!r}: pip install 'secondread[{extras}]'{alternative}"
    return None


def _packages_of_extras() -> dict[str, set[str]]:
    """Packages of each extra, as the installed distribution declares them."""
    try:
        declared = requires("secondread") or []
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
        if _normal(name) == "secondread":
            included.append((extra, of_it))
    for extra, other in included:
        packages[extra] |= packages.get(other, set())
    return packages


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
