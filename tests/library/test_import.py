"""`import secondread`: what it offers, what it loads, and what it says when its own packages are hidden."""

import ast
import doctest
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import secondread

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_there_for_people_and_for_type_checkers() -> None:
    tree = ast.parse((ROOT / "secondread" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        (node.module, alias.name) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    lazy = {(home, name) for home, names in secondread._HOMES.items() for name in names}
    assert typed == lazy
    assert sorted({name for _, name in typed} | {"__version__"}) == sorted(secondread.__all__)
    for home, name in typed - {("secondread", name) for name in secondread._HOMES["secondread"]}:
        assert getattr(secondread, name) is getattr(sys.modules[str(home)], name)
    assert set(secondread.__all__) <= set(dir(secondread))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = secondread.nonsense


def test_every_public_function_and_class_has_an_example_that_runs_as_it_is_pasted() -> None:
    names = set(secondread.__all__) - set(secondread._HOMES["secondread"]) - {"__version__"}
    finder, without = doctest.DocTestFinder(), set(names)
    for name in sorted(names):
        for example in finder.find(getattr(secondread, name), name, globs={}):
            assert doctest.DocTestRunner().run(example).failed == 0, example.name
            without -= {example.name} if example.examples else set()
    assert without == set()


def test_the_reference_of_the_library_has_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "library.md").read_text()
    # `evaluate` has the name of its module, which a documentation of `secondread.evaluate` would show
    shown = re.findall(r"^(?:::: |    options: {heading: )secondread\.(\w+)", text, re.MULTILINE)
    assert sorted([*shown, "__version__"]) == sorted(secondread.__all__)
    assert "`secondread.__version__`" in text


def test_completion_installs_itself_in_the_shell_and_completes(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = f"{Path(sys.executable).parent / 'secondread'} --install-completion; true"
    # the shell that asks is found by looking at the parent process
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert "bash completion installed" in done.stdout, done.stderr
    assert "secondread" in (tmp_path / ".bashrc").read_text()
    asked = {"_SECONDREAD_COMPLETE": "complete_bash", "COMP_WORDS": "secondread agr", "COMP_CWORD": "1"}
    command = str(Path(sys.executable).parent / "secondread")
    done = subprocess.run([command], env=environment | asked, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "agreement", done.stderr


def test_importing_it_loads_nothing_of_ours_yet() -> None:
    code = "import sys, secondread; print([n for n in sys.modules if n.split('.')[0] in ('ml', 'numpy', 'app')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["ml.py", "app.py", "ml/__init__.py", "app/__init__.py", "ml/other.py"])
def test_a_strangers_file_of_our_name_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("raise SystemExit('the stranger was run')\n")
    code = f"import sys; sys.path.insert(1, {str(ROOT)!r}); import secondread"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    if name == "ml/other.py":  # a folder without __init__.py gives way to a package
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: secondread's own package {name.split('/')[0].removesuffix('.py')!r}")
    assert str(path) in last
    assert "the stranger was run" not in done.stderr


#: Which extras a folder may import from, by the longest prefix that fits; the core is always there.
_ALLOWED = {
    "secondread": set[str](),
    "secondread/charts.py": {"charts"},
    "secondread/client": {"client"},
    "app": {"serve", "cpu"},
    "app/accounts/single_sign_on.py": {"serve", "oidc"},
    "app/storage/bucket.py": {"serve", "s3"},
    "app/http/observability.py": {"serve", "otel"},
    "migrations": {"serve"},
    "ml": set[str](),
    "ml/audit": {"report", "charts"},
    "ml/calibration/optimise.py": {"train", "serve"},
    "ml/charts": {"charts"},
    "ml/cli/stages.py": {"train"},
    "ml/datasets": {"train"},
    "ml/images": {"cpu", "train"},
    "ml/release": {"cpu"},
    "ml/reproduce": {"train", "charts"},
    "ml/scoring": {"cpu", "ray"},
    "ml/tables/streaming.py": {"duckdb"},
    "ml/util/torchvision_ops.py": {"train"},
    "ml/training": {"train", "charts"},
    "ml/training/quantize.py": {"train", "cpu"},
}


def _declared() -> dict[str, set[str]]:
    """Distributions of the core ("") and of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: {canonicalize_name(Requirement(text).name) for text in group} for extra, group in groups.items()}


def _third_party(path: Path) -> set[str]:
    """Top-level names of other people's packages that a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"app", "ml", "migrations", "secondread"}


@pytest.mark.slow
def test_every_package_that_is_imported_is_declared_where_it_is_needed() -> None:
    declared, known = _declared(), packages_distributions()
    undeclared = []
    for top in ("secondread", "app", "ml", "migrations"):
        for path in sorted((ROOT / top).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            extras = _ALLOWED[max((prefix for prefix in _ALLOWED if place.startswith(prefix)), key=len)]
            allowed = set().union(declared[""], *(declared[extra] for extra in extras))
            for module in _third_party(path):
                if not {canonicalize_name(name) for name in known.get(module, [module])} & allowed:
                    undeclared.append(f"{place}: {module}")
    assert undeclared == []


@pytest.mark.slow
@pytest.mark.ci
def test_every_declared_package_is_imported_somewhere() -> None:
    known, declared = packages_distributions(), _declared()
    used = {
        canonicalize_name(name)
        for top in ("secondread", "app", "ml", "migrations")
        for path in (ROOT / top).rglob("*.py")
        for module in _third_party(path)
        for name in known.get(module, [module])
    }
    # drivers and helpers that others load: of SQLAlchemy, of forms, of altair, of torch, of GPUs, of zones
    loaded_by_others = {"psycopg", "python-multipart", "vl-convert-python", "onnxscript", "onnxruntime-gpu", "tzdata"}
    loaded_by_others |= {"torchvision", "requests", "secondread-cells", "uvicorn"}
    shipped = set().union(*(packages for extra, packages in declared.items() if extra not in {"dev", "bench", "docs"}))
    assert sorted(shipped - used - loaded_by_others) == []


def test_the_citation_has_the_present_version_and_the_licence_of_the_code() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == secondread.__version__
    assert citation["license"] in project["license"]
    assert citation["keywords"] == project["keywords"]
    assert citation["authors"] == [{"name": "The secondread contributors"}]


def test_every_requirement_is_pinned_once() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = [canonicalize_name(Requirement(line).name) for line in lines]
    assert sorted({name for name in pinned if pinned.count(name) > 1}) == []
    wanted = set().union(*(packages for extra, packages in _declared().items() if extra not in {"bench", "gpu"}))
    assert sorted(wanted - set(pinned) - {"secondread-cells"}) == []
    versions = {canonicalize_name(Requirement(line).name): line.partition("==")[2] for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group in (project["dependencies"], *project["optional-dependencies"].values()):
        for requirement in map(Requirement, group):
            version = versions.get(canonicalize_name(requirement.name))
            assert version is None or requirement.specifier.contains(version, prereleases=True), str(requirement)


def test_every_dotted_name_of_the_documents_can_be_imported() -> None:
    texts = [ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts)]
    # but for files, and the attribute of a span
    pattern = re.compile(r"\b(?:secondread|ml)(?:\.(?!(?:md|py|po|csv|json|toml|db|request_id)\b)[A-Za-z_]\w*)+")
    named = {name: path.name for path in texts for name in pattern.findall(path.read_text())}
    assert "secondread.metrics" in named
    assert [f"{path}: {name}" for name, path in sorted(named.items()) if not _can_be_imported(name)] == []


def _can_be_imported(name: str) -> bool:
    """Whether a dotted name is a module, something in a module, or an attribute of that."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            value = getattr(value, attribute, None)
        return value is not None
    return False
