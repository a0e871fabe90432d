"""The rules of the house, enforced: arrows, sizes, documentation, and a serving process without torch."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*(ROOT / "app").rglob("*.py"), *(ROOT / "ml").rglob("*.py")])
#: Made from the OpenAPI document, one method or model after the other: nobody reads or edits them as a file.
GENERATED = {ROOT / "secondread" / "client" / f"{name}.py" for name in ("models", "_operations", "_operations_async")}
DOOR = sorted({*(ROOT / "secondread").rglob("*.py")} - GENERATED)
EVERYTHING = sorted([*SOURCES, *DOOR, *(ROOT / "tests").rglob("*.py"), *(ROOT / "migrations").glob("*.py")])
MAX_FUNCTION, MAX_FILE, MAX_FOLDER = 60, 600, 20
#: Domains: other folders import `service.py` of each and nothing else.
DOMAINS = {
    "accounts",
    "annotators",
    "annotators.models",
    "annotators.practice",
    "annotators.reference_cells",
    "cases",
    "imports",
    "jobs",
    "labels",
    "metrics",
    "outcomes",
    "predictions",
    "predictions.open_inference",
    "recalibration",
    "releases",
    "reports",
    "specimens",
    "triage",
}
#: Modules that put the service together, and may import any module.
COMPOSITION = {"app.main", "app.worker", "app.context", "app.job_table"}
#: The only rooms that may import torch.
TORCH = ("ml.training", "ml.datasets", "ml.reproduce", "ml.cli", "ml.util.torchvision_ops")
HEAVY = {"torch", "torchvision", "onnx", "onnxscript"}


@functools.cache
def parse(path: Path) -> ast.Module:
    """Syntax tree of a file, read once."""
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Modules that a file imports anywhere, inside functions too."""
    found = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def test_ml_never_imports_app() -> None:
    assert not [str(path) for path in (ROOT / "ml").rglob("*.py") if {n.split(".")[0] for n in imports(path)} & {"app"}]


def test_the_client_stands_alone() -> None:
    """It is installed where neither the service nor the library's numbers are wanted."""
    for path in (ROOT / "secondread" / "client").glob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"app", "ml", "numpy", "fastapi"}, path


def _name(path: Path) -> str:
    """Dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _file_graph() -> dict[str, set[str]]:
    """Modules of the sources, each with those that it imports, inside functions too."""
    modules = {_name(path): path for path in SOURCES}
    return {name: (imports(path) & modules.keys()) - {name} for name, path in modules.items()}


def _room(module: str, packages: set[str]) -> str:
    """The folder of a module; a module at a root is a room of its own."""
    parent = module.rpartition(".")[0]
    return module if module in packages or parent in {"", "app", "ml"} else parent


def folder_graph() -> dict[str, set[str]]:
    packages = {_name(path) for path in SOURCES if path.name == "__init__.py"}
    rooms: dict[str, set[str]] = {}
    for module, imported in _file_graph().items():
        room = _room(module, packages)
        rooms.setdefault(room, set()).update({_room(other, packages) for other in imported} - {room})
    return rooms


def _circles(graph: dict[str, set[str]]) -> list[str]:
    """What remains when whatever imports nothing that remains is taken away, again and again."""
    left = {name: set(arrows) for name, arrows in graph.items()}
    while done := {name for name, arrows in left.items() if not arrows & left.keys()}:
        left = {name: arrows for name, arrows in left.items() if name not in done}
    return sorted(f"{name} -> {', '.join(sorted(arrows & left.keys()))}" for name, arrows in left.items())


def test_a_circle_is_seen() -> None:
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) != []
    assert _circles({"a": {"b"}, "b": {"c"}, "c": set(), "d": {"a"}}) == []


@pytest.mark.slow
@pytest.mark.ci
def test_no_circle_of_files_and_none_of_folders() -> None:
    assert _circles(_file_graph()) == []
    assert _circles(folder_graph()) == []


def _composes(module: str) -> bool:
    return module in COMPOSITION or module.startswith("app.cli")


def test_a_domain_is_reached_through_its_service_alone() -> None:
    graph, packages = _file_graph(), {_name(path) for path in SOURCES if path.name == "__init__.py"}
    offenders = []
    for module, imported in graph.items():
        if not module.startswith("app.") or _composes(module):
            continue
        for other in imported:
            room = _room(other, packages)
            private = room.removeprefix("app.") in DOMAINS and other not in {room, f"{room}.service"}
            if private and room != _room(module, packages):
                offenders.append(f"{module} -> {other}")
    assert sorted(offenders) == []


def _names_taken_from(faces: set[str], path: Path) -> set[tuple[str, str]]:
    """Face and name of what a file imports from faces, or takes from them as an attribute."""
    tree = parse(path)
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    taken = {(node.module, alias.name) for node in froms if node.module in faces for alias in node.names}
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in froms
        for alias in node.names
        if f"{node.module}.{alias.name}" in faces
    }
    for node in ast.walk(tree) if modules else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            taken.add((modules[node.value.id], node.attr))
    return taken


@pytest.mark.slow
@pytest.mark.ci
def test_what_a_face_imports_is_used_there_or_by_another_room() -> None:
    """A face lists what it offers by importing it, so the linter cannot find what is imported for nothing."""
    faces = {"app.database.tables", *(f"app.{domain}.service" for domain in DOMAINS)}
    unused, taken = [], set().union(*(_names_taken_from(faces, path) for path in EVERYTHING))
    for path in [path for path in SOURCES if _name(path) in faces]:
        tree, face = parse(path), _name(path)
        offered = {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        unused += [f"{face}.{name}" for name in sorted(offered - used) if (face, name) not in taken]
    assert unused == []


def allowed_arrows() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Arrows of docs/architecture.md: of every folder of `app` above the floor, and of the folders of the floor."""
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Arrows")[2].partition("\n## ")[0]
    tables = []
    for half in section.partition("| floor | imports |")[::2]:
        rows = re.findall(r"^\| `?([a-z_.]+)`? \| (.*?) \|$", half, re.MULTILINE)
        tables.append(
            {name: set(re.findall(r"[a-z_]+(?:\.[a-z_]+)*", cell)) for name, cell in rows if name != "folder"}
        )
    return tables[0], tables[1]


def test_folders_import_what_the_tables_allow() -> None:
    above, floor = allowed_arrows()
    for folder, arrows in folder_graph().items():
        if folder.startswith("app.") and not _composes(folder):
            name = folder.removeprefix("app.")
            imported = {other.removeprefix("app.") for other in arrows if other.startswith("app.")}
            assert (imported if name in floor else imported - floor.keys()) == (floor | above)[name], folder


def test_pages_call_services_and_write_no_sql() -> None:
    taken = {module for path in (ROOT / "app" / "web").glob("*.py") for module in imports(path)}
    sql = {module for module in taken if module.startswith("sqlalchemy")}
    assert sql <= {"sqlalchemy.orm", "sqlalchemy.orm.Session"}


def test_every_operation_of_the_api_has_its_name_in_the_route() -> None:
    """The function may be renamed, and programs still call the operation by its name."""
    unnamed = []
    for path in SOURCES:
        if "APIRouter(" not in path.read_text() or path.is_relative_to(ROOT / "app" / "web"):
            continue
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.Call) or not re.fullmatch(r"\w*router\.[a-z]+", ast.unparse(node.func)):
                continue
            if not {"operation_id", "include_in_schema"} & {keyword.arg for keyword in node.keywords}:
                unnamed.append(f"{_name(path)}: {ast.unparse(node.args[0])}")
    assert unnamed == []


def test_a_folder_has_at_most_twenty_files() -> None:
    files = {path.parent.relative_to(ROOT).as_posix() for path in SOURCES}
    counted = {name: sum(path.name != "__init__.py" for path in (ROOT / name).glob("*.py")) for name in files}
    assert {name: count for name, count in counted.items() if count > MAX_FOLDER} == {}


def test_torch_stays_in_its_rooms() -> None:
    heavy = [_name(path) for path in SOURCES if {module.split(".")[0] for module in imports(path)} & HEAVY]
    # a release's graph is read in a process of its own, which loads nothing of the service
    assert [name for name in heavy if not name.startswith((*TORCH, "app.releases.onnx_safety"))] == []


def test_ml_init_imports_nothing() -> None:
    assert not imports(ROOT / "ml" / "__init__.py")


def _modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.slow
@pytest.mark.ci
def test_the_serving_process_has_no_torch() -> None:
    assert not _modules_after("import app.main") & {"torch", "torchvision", "onnx", "safetensors"}


@pytest.mark.slow
@pytest.mark.ci
def test_a_start_loads_what_every_request_may_need_and_no_more() -> None:
    """Reading tables, migrating and the job engine are rare; a worker runs networks only in some of its jobs."""
    rare = {"alembic", "mako", "pyarrow", "altair", "vl_convert", "onnx"}
    assert not _modules_after("import app.main, app.database.migration") & (rare | {"psycopg", "dbos", "ray"})
    assert not _modules_after("import app.worker") & (rare | {"onnxruntime", "jinja2", "ray"})


@pytest.mark.slow
def test_the_service_leaves_the_tools_of_numpy_alone_and_whoever_wants_them_has_them() -> None:
    begin = (
        "from app.cli.shared import paused_garbage_collection\n"
        "with paused_garbage_collection(): import app.main, scipy.special\n"
    )
    ask = "import sys; print([name for name in sys.modules if name.startswith(('numpy.f2py.', 'numpy.testing.'))])\n"
    at_once = """if True:
    import threading
    def want():
        from numpy.testing import assert_array_equal
        assert_array_equal(1, 1)
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    """
    use = "\nimport numpy as np; np.testing.assert_array_equal(1, 1); print(np.f2py.get_include.__name__)"
    done = subprocess.run([sys.executable, "-c", begin + ask + at_once + use], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr, done.returncode) == ("[]\nget_include\n", "", 0)


def test_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "scipy", "torch", "fastapi", "sqlalchemy", "pyarrow", "altair", "onnxruntime"}
    assert not _modules_after("import app.cli.main") & heavy


def test_one_place_commits_and_one_reads_the_environment() -> None:
    for path in (ROOT / "app").rglob("*.py"):
        text = path.read_text()
        if path not in {ROOT / "app" / "database" / name for name in ("engine.py", "migration.py")}:
            assert ".commit()" not in text, path
        if path != ROOT / "app" / "cli" / "server.py":  # it sets what the processes of one port are to read
            assert "os.environ" not in text, path


def test_no_file_is_too_long() -> None:
    assert [f"{path}: {n}" for path in EVERYTHING if (n := len(path.read_text().splitlines())) > MAX_FILE] == []


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body; its docstring and its signature are not counted."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def _undocumented_or_long(path: Path) -> list[str]:
    tree, name = parse(path), _name(path)
    offenders = [] if ast.get_docstring(tree) else [f"{name}: a module says what it is for"]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) > MAX_FUNCTION:
            offenders.append(f"{name}.{node.name} has {_length(node)} lines")
    for node in tree.body:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node):
            offenders.append(f"{name}.{node.name} is public and has no docstring")
    return offenders


def test_functions_are_short_and_public_ones_documented() -> None:
    assert [line for path in (*SOURCES, *DOOR) for line in _undocumented_or_long(path)] == []


#: Types of a document that do not say what it contains.
OPEN = {f"{kind}[str, {value}]" for kind in ("dict", "Mapping") for value in ("Any", "object")}
#: Where a document is truly open, and why; every other one is a dataclass, a pydantic model or a ``TypedDict``.
OPEN_DOCUMENTS = {
    "app.cases.ingest.upload_schema": "OpenAPI, as FastAPI takes it",
    "app.http.errors.list_problem_responses": "OpenAPI, as FastAPI takes it",
    "app.http.openapi": "OpenAPI, as FastAPI makes it",
    "app.reports.report.chart_csv": "rows of any chart",
    "app.web.report._Rows": "rows of any chart",
    "app.web.report._estimate_columns": "columns are named after what is estimated",
    "app.metrics.schemas.EvaluationOut.document": "as it was frozen, by whatever version",
    "app.releases.schemas.ReleaseDetailOut.card": "as it was written, by whatever version",
    "app.specimens.schemas.SignedVersionOut.document": "as it was signed, by whatever version",
    "app.specimens.measuring.differing_decisions": "as it was signed, by whatever version",
    "app.jobs.service.submit_job": "parameters of any kind of job: its function validates them",
    "app.jobs.queries.JobView.parameters": "of any kind of job",
    "app.jobs.handle.JobResult": "of any kind of job: each function declares its own",
    "app.jobs.handle.RunningJob.parameters": "of any kind of job: its function validates them",
    "app.jobs.schemas.JobOut": "parameters and result of any kind of job",
    "app.predictions.open_inference.service": "requests as they came: every value is checked where it is read",
    "app.audit.events.AuditEventOut.details": "each action has its own",
    "app.audit.proof.ProofLine": "a line of any kind, as the checker of proofs takes it",
    "app.audit.chain.verify_proof": "lines of a file that anybody may have written; it stands alone",
    "app.audit.chain.events.record_event": "each action has its own details",
    "app.database.engine.insert_if_absent": "columns of any table",
    "app.database.engine.insert_new": "columns of any table",
    "app.database.revisions.compare_and_swap": "columns of any table",
    "app.predictions.remote": "what another server says: every value is checked where it is read",
    "app.predictions.wire_format": "messages as they came: every value is checked where it is read",
    "app.maintenance.export_documents": "documents of other tools, as these define them",
    "ml.label_files.json_exports": "what another tool wrote: every value is checked where it is read",
    "ml.util.files.read_json": "JSON of any kind: whoever reads it says of which",
    "ml.documents": "documents of any dataclass: its fields say which keys and types",
    "ml.dataframes._named_rows": "arguments of a caller by name, tables of any library",
    "ml.release.card.RecalibrationDocument.gate": "the service's own (app.releases), which ml does not know",
    "ml.reproduce.report": "each reproduction has its own rows and entries, typed where they are made",
    "ml.tables.reading.TableSource": "a caller's mapping of columns",
    "ml.tables.reading._of_columns": "a caller's mapping of columns",
}


def _open_documents(node: ast.AST, where: str) -> list[str]:
    """Names of the functions, classes and variables in whose types or bodies an open document stands."""
    places = []
    for child in ast.iter_child_nodes(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{where}.{child.name}"
        elif isinstance(child, ast.AnnAssign):
            inside = f"{where}.{ast.unparse(child.target)}"
        elif isinstance(child, ast.Assign):
            inside = f"{where}.{ast.unparse(child.targets[0])}"
        if isinstance(child, ast.Subscript) and ast.unparse(child) in OPEN:
            places.append(inside)
        places += _open_documents(child, inside)
    return places


def _reason(place: str) -> str | None:
    """Why an open document may stand here: the name of an entry of ``OPEN_DOCUMENTS``, or a rule."""
    if place.startswith("app.database.tables."):
        return "columns of JSON"
    if {"to_dict", "from_dict"} & set(place.split(".")):
        return "the JSON view of an object whose fields are typed"
    return next((name for name in OPEN_DOCUMENTS if f"{place}.".startswith(f"{name}.")), None)


def test_documents_are_typed() -> None:
    places = {place for path in SOURCES for place in _open_documents(parse(path), _name(path))}
    assert sorted(place for place in places if _reason(place) is None) == []
    assert OPEN_DOCUMENTS.keys() - {_reason(place) for place in places} == set(), "reasons that nothing needs"


def test_an_open_document_is_seen() -> None:
    code = "class A:\n    rows: list[dict[str, Any]]\n    def f(self) -> Mapping[str, object] | None:\n        pass\n"
    assert _open_documents(ast.parse(code), "m") == ["m.A.rows", "m.A.f"]
    assert _open_documents(ast.parse("class A(TypedDict):\n    rows: dict[str, int]\n"), "m") == []


#: Where the service looks at the machine's clock, and why; everything else asks the context or its session, or is given
#: the time.
CLOCKS = {
    "app.accounts.single_sign_on": "the library that signs cookies dates them by it",
    "app.context": "the clock of a service that is given no other",
    "app.jobs.executor": "DBOS dates schedules by it",
    "app.imports.archive_storage": "the file system dates files by it",
    "app.main": "the clock of a service that is given no other",
    "app.maintenance.cache": "the file system dates files by it",
    "app.storage.blobs": "the file system dates files by it",
    "app.storage.bucket": "the object store dates objects by it",
    "app.database.engine": "the clock of a database that is given no other",
    "app.audit.chain.keys": "a key is made by a command that has no service",
    "app.database.tables": "the name by which others import it",
    "app.database.tables.base": "the clock itself",
}
_LOOKS = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "time.time", "time.time_ns"}


def _looks_at_the_clock(code: str) -> bool:
    """Whether code names what gives the time of day; clocks that only count seconds are another matter."""
    for node in ast.walk(ast.parse(code)):
        names = {f"{node.module}.{alias.name}" for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
        if names & {"app.database.tables.utc_now", "app.database.tables.base.utc_now", "time.time", "time.time_ns"}:
            return True
        if isinstance(node, ast.Attribute) and ".".join(ast.unparse(node).split(".")[-2:]) in _LOOKS:
            return True
    return False


def test_a_clock_is_an_argument() -> None:
    looking = {_name(path) for path in (ROOT / "app").rglob("*.py") if _looks_at_the_clock(path.read_text())}
    assert looking == CLOCKS.keys()
    replaced = re.compile(r"setattr\([^)\n]*\bnow\"")
    assert [path for path in (ROOT / "tests").rglob("*.py") if replaced.search(path.read_text())] == []


def test_a_look_at_the_clock_is_seen() -> None:
    assert _looks_at_the_clock("from app.database.tables import Case, utc_now")
    assert _looks_at_the_clock("import datetime\nx = datetime.datetime.now()")
    assert not _looks_at_the_clock("from app.database.tables import time_of\nx = context.clock(), time.monotonic()")


def test_no_pickle_and_no_assert_in_the_sources() -> None:
    for path in SOURCES:
        tree = parse(path)
        assert not imports(path) & {"pickle", "joblib", "dill"}, path
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)], path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in ast.unparse(node), path
