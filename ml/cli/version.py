"""The version of this program, with the commit that it was made from where that is known."""

import subprocess
from pathlib import Path

import secondread


def version_line() -> str:
    """Version and commit as ``secondread --version`` prints them."""
    commit = known_commit(Path(secondread.__file__).parent)
    return f"secondread {secondread.__version__}" + (f" ({commit})" if commit else "")


def known_commit(package: Path) -> str | None:
    """First characters of the commit: written at build time, or that of the checkout; None where neither is there."""
    written = package / "commit.txt"
    if written.is_file():
        return written.read_text().strip()[:12] or None
    if not (package.parent / ".git").exists():
        return None
    command = ["git", "-C", str(package.parent), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:  # git is not installed
        return None
    return done.stdout.strip() or None
