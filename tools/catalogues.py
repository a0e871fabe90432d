"""The sentences of the pages, found in their source: ``python -m tools.catalogues`` renews the catalogues.

A context tells what is looked up how: none for templates and Python, ``script`` for what the pages' scripts say,
``term`` for codes in words, ``said`` for messages of the domains: calls of ``Message`` and ``messages``, what problems
are made with, and their titles.
"""

import ast
import io
import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from babel.messages import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from jinja2.ext import babel_extract

import app.main  # noqa: F401
from app.http import errors, languages
from app.reports.report import TEMPLATES
from app.web.filters import TERMS
from app.web.render import FOLDER as SCRIPTS
from ml.messages import key_of

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "app" / "web"
#: The page about the API speaks English, as the API does; reports that are frozen are files for anybody.
ENGLISH = {"api.html", "frozen_report.html"}
_PYTHON = {"gettext", "ngettext", "gettext_noop", "_"}
_SCRIPT = re.compile(r'\bt\(\s*"((?:[^"\\]|\\.)*)"')


def _kinds(kind: type[errors.Problem]) -> Iterator[type[errors.Problem]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _kinds(inner)


#: Problems of every domain: the application has loaded them all.
_PROBLEMS = {kind.__name__: kind for kind in _kinds(errors.Problem)}
_MADE = {"Message", "NotQualified", "ArchiveError", *_PROBLEMS}
#: Statuses of the framework's own errors, whose phrases are titles.
_FRAMEWORK = (404, 405, 413, 422)
#: Folders whose problems reach no page.
_ELSEWHERE = {"cli", "demo", "maintenance"}

#: A sentence: where it stands, its context, what it says, and what it says of many.
Sentence = tuple[str, str | None, str, str | None]


def templates() -> list[Path]:
    """Templates of pages, with the sections that they share with reports."""
    found = [*(PAGES / "templates").glob("*.html"), *TEMPLATES.glob("*.html")]
    return sorted(path for path in found if path.name not in ENGLISH)


def styles() -> list[Path]:
    """Style sheets of pages and reports."""
    return sorted([*SCRIPTS.glob("*.css"), *(TEMPLATES.parent / "static").glob("*.css")])


def _of_templates() -> Iterator[Sentence]:
    options = {"newstyle_gettext": "true", "silent": "false", "trim_blocks": "true", "lstrip_blocks": "true"}
    for path in templates():
        found = babel_extract(io.BytesIO(path.read_bytes()), ["_", "gettext", "ngettext", "pgettext"], [], options)
        for _, function, message, _ in found:
            texts = [text for text in (message if isinstance(message, tuple) else (message,)) if text is not None]
            context = texts.pop(0) if function == "pgettext" else None
            yield path.name, context, texts[0], texts[1] if function == "ngettext" else None


def _of_python() -> Iterator[Sentence]:
    for path in sorted([*PAGES.glob("*.py"), *(ROOT / "app" / "reports").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _PYTHON:
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                if texts:
                    yield path.name, None, texts[0], texts[1] if node.func.id == "ngettext" else None


def _of_scripts() -> Iterator[Sentence]:
    for path in sorted(SCRIPTS.glob("*.js")):
        for found in _SCRIPT.finditer(path.read_text()):
            yield path.name, languages.SCRIPT, found[1], None


def _of_domains() -> Iterator[Sentence]:
    titles = [one.title for one in _PROBLEMS.values()]
    phrases = [HTTPStatus(status).phrase for status in _FRAMEWORK]
    yield from (("errors.py", languages.SAID, text, None) for text in dict.fromkeys([*titles, *phrases]))
    for path in sorted([*(ROOT / "app").rglob("*.py"), *(ROOT / "ml").rglob("*.py")]):
        made = {"Message"} if path.is_relative_to(ROOT / "ml") or path.parent.name in _ELSEWHERE else _MADE
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if node.func.id in made:
                    found = _texts(first)
                elif node.func.id == "messages" and isinstance(first, ast.Dict | ast.Tuple):
                    values = first.values if isinstance(first, ast.Dict) else first.elts
                    found = (text for value in values for text in _texts(value))
                else:
                    continue
                yield from ((path.name, languages.SAID, text, None) for text in found)


def _texts(node: ast.expr) -> Iterator[str]:
    """The text of an expression without formats of its values, of both branches where there are two."""
    if isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield key_of(node.value)


def _class_names() -> list[str]:
    """Names and headings of the classes of the demo."""
    classes = json.loads((ROOT / "app" / "demo" / "cells" / "release" / "card.json").read_text())["classes"]
    return list(dict.fromkeys(info[key] for info in classes for key in ("name", "group") if key in info))


def sentences() -> list[Sentence]:
    """Every sentence of the pages."""
    terms: list[Sentence] = [("terms.py", languages.TERM, text, None) for text in (*TERMS, *_class_names())]
    return [*_of_templates(), *_of_python(), *_of_scripts(), *terms, *_of_domains()]


def template_of(found: list[Sentence]) -> Catalog:
    """A catalogue without translations."""
    catalog = Catalog(project="secondread", charset="utf-8", fuzzy=False)
    for name, context, one, many in found:
        before = catalog.get(one, context)
        if many is None and before is not None and isinstance(before.id, tuple):
            continue
        form = "python-brace-format" if context in {languages.SAID, languages.SCRIPT} else "python-format"
        flags = [form] if re.search(r"\{\w+\}" if form.startswith("python-b") else r"%[(%]", one) else []
        catalog.add(one if many is None else (one, many), locations=[(name, 0)], context=context, flags=flags)
        added = catalog.get(one, context)
        added.flags = set(flags)
    return catalog


def read(language: str) -> Catalog:
    """The catalogue of a language as it is."""
    path = languages.get_catalogue_path(language, "po")
    with path.open("rb") as file:
        return read_po(file, locale=language)


def translated() -> list[str]:
    """Languages that have a catalogue."""
    return sorted(path.name for path in languages.FOLDER.iterdir() if path.is_dir())


def compiled(catalog: Catalog) -> bytes:
    """What the service reads."""
    made = io.BytesIO()
    write_mo(made, catalog)
    return made.getvalue()


def _main() -> None:
    template = template_of(sentences())
    for language in translated():
        catalog = read(language)
        catalog.update(template, no_fuzzy_matching=True, update_creation_date=False)
        catalog.obsolete.clear()
        for message in catalog:
            if message.id:
                message.locations = sorted(
                    {(name, 0) for name, _ in template.get(message.id, message.context).locations}
                )
        made = io.BytesIO()
        write_po(made, catalog, width=120, sort_by_file=True, omit_header=False, include_lineno=False)
        languages.get_catalogue_path(language, "po").write_bytes(made.getvalue())
        languages.get_catalogue_path(language).write_bytes(compiled(read(language)))
        missing = [message for message in catalog if message.id and not is_whole(message.string)]
        print(f"{language}: {len(catalog)} sentences, {len(missing)} without a translation")
        for message in missing[:20]:
            print("  ", message.id)


def is_whole(string: str | tuple[str, ...]) -> bool:
    """Whether there is a translation, of every plural."""
    return all(string) if isinstance(string, tuple) else bool(string)


if __name__ == "__main__":
    _main()
