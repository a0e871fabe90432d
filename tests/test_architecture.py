"""The rules of the house, enforced: arrows, sizes, documentation, and a serving process without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*(ROOT / "app").rglob("*.py"), *(ROOT / "ml").rglob("*.py")])
EVERYTHING = sorted([*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "migrations").glob("*.py")])
DOMAINS = ("cases", "reads", "releases", "evaluations")
MAX_FUNCTION, MAX_FILE = 40, 400
FREE_OF_TORCH = ("arrays", "preprocess", "distributions", "decisions", "metrics", "accumulator", "binning")
FREE_OF_TORCH += ("reliability", "estimate", "histograms", "calibration", "artifact", "predictor", "tables")
FREE_OF_TORCH += ("splits", "scaling", "fitting", "agreement", "score", "evaluate", "calibrate", "card", "run_folder")
FREE_OF_TORCH += ("concentration", "cluster_cells", "metric_document", "inputs", "u_statistics", "posteriors", "exact")
FREE_OF_TORCH += (
    "triage_curves",
    "optimal_concentration",
    "dawid_skene",
    "dropout_head",
    "augmented_views",
    "streaming",
)
FREE_OF_TORCH += ("streaming", "plots", "result_plots")


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_ml_never_imports_app() -> None:
    for path in (ROOT / "ml").rglob("*.py"):
        assert not [name for name in imports(path) if name.split(".")[0] == "app"], path


@pytest.mark.parametrize("domain", DOMAINS)
def test_domains_never_import_each_others_service(domain: str) -> None:
    for path in (ROOT / "app" / domain).glob("*.py"):
        others = {f"app.{other}.service" for other in DOMAINS if other != domain}
        assert not imports(path) & others, path


def test_ml_init_imports_nothing() -> None:
    assert not imports(ROOT / "ml" / "__init__.py")


def _modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_serving_process_has_no_torch() -> None:
    assert not _modules_after("import app.main") & {"torch", "torchvision", "onnx", "safetensors"}


def test_the_listed_modules_are_free_of_torch() -> None:
    loaded = _modules_after("; ".join(f"import ml.{name}" for name in FREE_OF_TORCH))
    assert not loaded & {"torch", "torchvision", "onnx", "safetensors"}


def test_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "scipy", "torch", "fastapi", "sqlalchemy", "pyarrow", "altair", "onnxruntime"}
    assert not _modules_after("import app.cli.main") & heavy


def test_one_place_commits_and_one_reads_the_environment() -> None:
    for path in (ROOT / "app").rglob("*.py"):
        text = path.read_text()
        if path.name not in {"database.py", "migrate.py"}:
            assert ".commit()" not in text, path
        assert "os.environ" not in text, path


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_size(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body; its docstring and its signature are not counted."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_are_short_and_public_ones_documented(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module says what it is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert _length(node) <= MAX_FUNCTION, f"{node.name} has {_length(node)} lines"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} is public and has no docstring"


def test_no_pickle_and_no_assert_in_the_sources() -> None:
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        assert not imports(path) & {"pickle", "joblib", "dill"}, path
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)], path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in ast.unparse(node), path
