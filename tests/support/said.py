"""Sentences that the domains make in English for every caller, found in their source as pages look them up.

They are what problems say, what the files below contain, and what some of their constants hold. A value in them becomes
``{name}``; a letter for the plural becomes ``{plural}``, which a translation may leave out.
"""

import ast
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from app.platform import errors

ROOT = Path(__file__).parents[2]
#: Of which every sentence is found.
_WHOLE = (
    *("app/annotators/words.py", "app/practice/words.py", "app/practice/feedback.py", "app/practice/service.py"),
    *("app/triage/rules.py", "app/predictions/answer_sets.py", "ml/readers/sentences.py"),
    *("app/evaluations/reader_drift.py", "app/evaluations/held_out.py", "app/evaluations/drift.py"),
    *("app/recalibration/needs.py", "app/recalibration/refusal.py", "app/recalibration/gating.py"),
    *("app/recalibration/judging.py", "app/recalibration/outside.py", "app/recalibration/reader_fit.py"),
    *("app/releases/training.py", "app/imports/archive.py", "app/imports/work.py"),
    "app/imports/checking.py",
    *("app/platform/faults.py", "app/auth/sign_in.py"),
)
#: Of which constants are found: the values of a dictionary, or a text.
_CONSTANTS = {
    "app/platform/principal.py": {"SCOPES"},
    "app/evaluations/report.py": {"WORDS"},
    "app/operations/audit_words.py": {"WORDS", "_JOBS"},
    "app/cases/blindness.py": {"_WORDS"},
    "app/cases/service.py": {"_UNKNOWN"},
    "app/auth/oidc.py": {"_NOT_BEGUN_HERE"},
    "app/triage/qualified.py": {"NOT_YET"},
}
#: Of which some functions are looked at.
_FUNCTIONS = {
    "ml/metrics/cautions.py": {"_impossible", "_unusable_bins"},
    "ml/metrics/harm.py": {"harm", "harms"},
    "ml/agreement/tables.py": {"agreement_of", "_without_names", "_with_annotators", "_pairs"},
    "ml/metrics/document.py": {"_warnings", "_too_few_readers"},
    "ml/metrics/selection_weights.py": {"warnings"},
    "ml/metrics/homogeneity_test.py": {"reader_warnings"},
    "app/evaluations/monitoring.py": {"_warning"},
    "app/evaluations/service.py": {"_dependence"},
    "app/evaluations/cohort.py": {"cohort_warnings"},
    "app/evaluations/readers_annex.py": {"sentences", "_sentences"},
}
_PAIRS = ("pair of annotators shares", "pairs of annotators share")
#: Made of pieces, or of somebody else's words.
_OTHERS = [
    ("rules.py", f"{score} {verdict} {{threshold}}{note}")
    for score in ("disagreement", "expected gain")
    for verdict in ("above", "at most")
    for note in ("", " (not calibrated)")
] + [
    ("audit_words.py", f"{{n}} {noun}")
    for noun in ("label", "labels", "further read", "further reads", "annotator", "annotators")
]
_OTHERS += [
    ("cautions.py", f"{what} {verdict} {constant}{so_far} ({{name}} {{value}}, {{low}} to {{high}})")
    for what, constant in (
        ("the class probabilities are", "the class frequencies"),
        ("the disagreement probability is", "a constant"),
    )
    for verdict, so_far in (("worse than", ""), ("no better than", " so far"))
]
_OTHERS += [("tables.py", f"{{few}} {what} fewer than {{min_shared}} cases: no kappa of theirs") for what in _PAIRS]
_OTHERS += [("preparing.py", "field: {why}")]
_OTHERS += [("errors.py", HTTPStatus(status).phrase) for status in (404, 405, 413, 422)]
#: What a form is told of itself.
_FORMS = ("app/auth/passwords.py", "app/auth/service.py", "app/pages/people_routes.py", "app/triage/schemas.py")
#: Nothing of these reaches a page.
_ELSEWHERE = ("app/cli/", "app/demo/", "app/operations/", "app/settings.py", "app/platform/migrations")
_PROBLEMS = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)
}
_WORDS = re.compile(r"[a-z]{2,} |[a-z]+ [a-z]{2,}|^ [a-z]|[a-z]{2,}[.:]$")


def said_in_domains() -> list[tuple[str, str]]:
    """Every sentence with the name of its file."""
    found: dict[tuple[str, str], None] = {}
    for path in sorted((ROOT / "app").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in _CONSTANTS or not name.startswith(_ELSEWHERE):
            found |= {(path.name, text): None for text in _of_problems(ast.parse(path.read_text()), name in _FORMS)}
    for name in _WHOLE:
        found |= {(Path(name).name, text): None for text in _of_file(ast.parse((ROOT / name).read_text()))}
    for name, constants in _CONSTANTS.items():
        tree = ast.parse((ROOT / name).read_text())
        found |= {(Path(name).name, text): None for text in _of_constants(tree, constants)}
    for name, functions in _FUNCTIONS.items():
        tree = ast.parse((ROOT / name).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name in functions:
                found |= {(Path(name).name, text): None for text in _of_file(ast.Module([node], []))}
    titles = {("errors.py", one.title): None for one in _PROBLEMS.values() if hasattr(one, "title")}
    return [*titles, *_OTHERS] + [(name, text) for name, text in found if _WORDS.search(text)]


def _of_problems(tree: ast.Module, forms: bool) -> Iterator[str]:
    wanted = {*_PROBLEMS, "NotQualified"} | ({"ValueError"} if forms else set())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in wanted and node.args:
            yield from _texts(node.args[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if called == "say":
                yield from _texts(node.args[0])


def _of_constants(tree: ast.AST, names: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id in names for target in targets):
            values = node.value.values if isinstance(node.value, ast.Dict) else [node.value]
            for value in values:
                yield from _texts(value)


def _of_file(tree: ast.Module) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    told = {id(node.body[0]) for node in ast.walk(tree) if isinstance(node, documented) and node.body}
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Expr) and id(node) in told and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.JoinedStr | ast.Constant):
            yield from _texts(node)
        pending += list(ast.iter_child_nodes(node)) if not isinstance(node, ast.JoinedStr) else _inside(node)


def _inside(node: ast.JoinedStr) -> list[ast.AST]:
    """What a sentence takes from elsewhere, which may be pieces of sentences."""
    return [value.value for value in node.values if isinstance(value, ast.FormattedValue)]


def _texts(node: ast.AST) -> Iterator[str]:
    """The sentence of an expression, of both branches where there are two."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield _without_formats(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield _pattern(node)


def _without_formats(text: str) -> str:
    """A text for ``str.format`` with nothing but names in its braces."""
    return re.sub(r"\{(\w+):[^}]*\}", r"{\1}", text)


def _pattern(node: ast.JoinedStr) -> str:
    names: dict[str, str] = {}
    text = ""
    for piece in node.values:
        if isinstance(piece, ast.Constant):
            text += str(piece.value)
        elif isinstance(piece, ast.FormattedValue):
            text += f"{{{_name(piece.value, names)}}}"
    return text


def _name(node: ast.expr, names: dict[str, str]) -> str:
    """A name for a value: that of what it is read from, once in a sentence."""
    source = ast.unparse(node)
    if isinstance(node, ast.IfExp) and "''" in source:
        name = "plural"
    else:
        words = [
            word for word in re.findall(r"[A-Za-z]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", source)) if word not in _CALLS
        ]
        name = words[-1].lower() if words else "value"
    plain, number = name, 2
    while names.get(name, source) != source:
        name, number = f"{plain}{number}", number + 1
    names[name] = source
    return name


_CALLS = {"len", "str", "sorted", "join", "format", "if", "else", "f", "self", "get", "r"}
