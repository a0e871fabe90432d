"""Which code of the service selects from the table of labels, where hidden repeats are, and not from counted labels."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

ROOT = Path(__file__).parents[2]
#: Everything of the service that uses the table of labels, each with the reason; all else selects from counted labels.
SEES_REPEATS = {
    "app.labels.submission.store_label": "stores every label, whatever for",
    "app.labels.leases._history_statement": "the chain that a new label continues, for its purpose",
    "app.labels.leases._load_histories": "the same of many cells, for labels of outside annotators",
    "app.labels.queries.own_chain": "an annotator's answers to one read, which may be of a repeat",
    "app.labels.queries.authored_label": "a label that its annotator changes, which may answer a repeat",
    "app.labels.queries.is_answered_by_label": "finds the repeat of such a label",
    "app.labels.queries.has_answered_late": "what an annotator is shown of their own answer",
    "app.labels.corrections.list_correctable_answers": "an annotator's list of what they may correct",
    "app.labels.annotator_day._first_answers_statement": "an annotator's list of what they have answered",
    "app.cases.blindness.has_committed": "whether an annotator has answered a case as they name it",
    "app.annotators.history.ended_reads": "an annotator's own reading times: they know how many cases they have read",
    "app.annotators.history.repeated_answers": "consistency: a repeat against the first answer",
}
#: Modules of these.
SENDERS = {name.rpartition(".")[0] for name in SEES_REPEATS}
# it digests every row of every covered table
_AUDIT = "app.audit."
# what stands between a query and the database
_LAYERS = ("app.database.", "app.audit.chain.")
_ON_LABELS = re.compile(r"(?:\b(?:FROM|JOIN|INTO|UPDATE)|,)\s+\"?labels\b(?!\"?\.)", re.IGNORECASE)
_IN_TEXT = re.compile(r"(?:FROM|JOIN|INTO|UPDATE) +labels\b")

#: Modules that sent such a statement in this process, and statements of those that may not.
seen_senders: set[str] = set()
bypasses: list[str] = []


def list_uses() -> Iterator[str]:
    """Top-level names of the service's modules whose code, annotations aside, uses the table of labels."""
    for path in sorted((ROOT / "app").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module.startswith("app.database.tables"):
            continue
        for statement in ast.parse(path.read_text()).body:
            if any(map(_is_use, _walk_code(statement))):
                yield f"{module}.{_name_of(statement)}"


def _walk_code(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a piece of code without those of annotations."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _walk_code(child)


def _is_use(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and _IN_TEXT.search(node.value) is not None
    if isinstance(node, ast.alias):  # under another name it would not be recognised
        return node.name == "Label" and node.asname is not None
    return "Label" in (getattr(node, "id", None), getattr(node, "attr", None))


def _name_of(statement: ast.stmt) -> str:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", statement)
    return str(getattr(target, "name", getattr(target, "id", f"line {statement.lineno}")))


def _find_sender() -> str | None:
    """Module of the service that sends the current statement; None where a test does."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("tests."):
            return None
        if module.startswith("app.") and not module.startswith(_LAYERS):
            return module
        frame = frame.f_back
    return None


def _watch(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    if _ON_LABELS.search(statement) is None or statement.startswith("CREATE "):  # by the migration
        return
    if (sender := _find_sender()) is None:
        return
    seen_senders.add(sender)
    if sender not in SENDERS and not sender.startswith(_AUDIT):
        bypasses.append(f"{sender}: {statement}")


def watch_label_queries() -> None:
    """Look at every statement that an engine of this process sends from now on."""
    event.listen(Engine, "before_cursor_execute", _watch)
