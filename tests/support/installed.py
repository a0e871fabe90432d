"""The package as others get it: built into a wheel and installed in an environment of its own, without the network."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path
from shutil import copyfile

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
CORE = ["numpy", "pyarrow", "rich", "scipy", "typer"]


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def build_distributions(folder: Path) -> Path:
    """Build the sdist from a copy of the tracked files, and the wheel from the sdist; gives the folder of both."""
    source, out = folder / "source", folder / "dist"
    for name in tracked_files():
        if not name.startswith("docs/images/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def with_dependencies(names: list[str]) -> dict[str, Distribution]:
    """Installed distributions of these names and of all that they need."""
    needed: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        found = distribution(waiting.pop())
        if found.name in needed:
            continue
        needed[found.name] = found
        for requirement in map(Requirement, found.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return needed


class LeanEnvironment:
    """What `pip install secondread-cells` gives: the wheel, and links to its core dependencies and to nothing else."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.site = next((folder / "lib").glob("python*/site-packages"))
        self.dependencies = with_dependencies(CORE)
        for dependency in self.dependencies.values():
            for top in {file.parts[0] for file in dependency.files or []} - {"..", "__pycache__"}:
                link = self.site / top
                if not link.exists():
                    link.symlink_to(Path(str(dependency.locate_file(top))))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)

    def python(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SECOND"))}
        command = [str(self.folder / "bin" / "python"), *arguments]
        return subprocess.run(
            command, cwd=cwd or self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def secondread(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """The console script's own line."""
        code = "import sys; from app.cli.main import main; sys.argv[0] = 'secondread'; main()"
        return self.python("-c", code, *map(str, arguments))
