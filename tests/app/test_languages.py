"""The pages in other languages: every sentence is in the catalogues, whole, and none is outside of them."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from babel.messages import Message
from jinja2 import nodes

from app.pages.render import ENVIRONMENT
from app.platform import languages
from tests.support import languages as sources

#: Names and codes that are the same in every language.
SAME = {"secondread", "UTC", "API", "JSON", "HTML", "CSV", "STARD-AI", "CLAIM", "Enter", "EL", "CL", "DL"}
#: Attributes that a person reads or hears.
_READ = {"alt", "title", "placeholder", "aria-label", "data-name", "data-called"}
#: Elements whose text is no sentence: code, keys, and what a machine reads.
_CODE = {"code", "kbd", "script", "style", "time", "pre"}
_VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
#: Blocks and macros may give attributes of a tag that is elsewhere.
_ATTRIBUTE = re.compile(r' [\w-]+="[^"]*"')
_WORD = re.compile(r"[^\W\d_]{2,}(?:-[^\W\d_]+)*")


class Reader(HTMLParser):
    """What a page says to people: texts and attributes, each with the line where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[int, str]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.said += [(self.getpos()[0], value) for name, value in attrs if name in _READ and value]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not _CODE & set(self._open):
            self.said.append((self.getpos()[0], _ATTRIBUTE.sub("", data)))


def words_in(html: str) -> list[tuple[int, str]]:
    """Words of a language in a page, with their lines."""
    reader = Reader()
    reader.feed(html)
    found = ((line, word) for line, text in reader.said for word in _WORD.findall(text))
    return [(line, word) for line, word in found if word not in SAME]


def _skeleton(node: nodes.Node) -> Iterator[str]:
    """The HTML of a template without what its expressions give."""
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.TemplateData):
            yield child.data
        elif isinstance(child, nodes.Expr):
            yield "·"
        else:
            yield from _skeleton(child)


_TRANSLATING = {"_", "gettext", "ngettext", "pgettext", "npgettext"}
_SENTENCE = re.compile(r"[A-Z][a-z]{2,}|[a-z]{3,} [a-z]{2,}")


def _constants(node: nodes.Node) -> Iterator[tuple[int, str]]:
    """Texts in the expressions of a template that nothing translates."""
    for child in node.iter_child_nodes():
        if isinstance(child, nodes.Call) and isinstance(child.node, nodes.Name) and child.node.name in _TRANSLATING:
            arguments = [keyword.value for keyword in child.kwargs]
            for argument in arguments:
                yield from _constants(nodes.Output([argument]))
        elif isinstance(child, nodes.Const) and isinstance(child.value, str):
            yield child.lineno, child.value
        elif not isinstance(child, nodes.Extends | nodes.Include | nodes.Import | nodes.FromImport | nodes.Pair):
            yield from _constants(child)
        elif isinstance(child, nodes.Pair):
            yield from _constants(nodes.Output([child.value]))


def _translated() -> list[Message]:
    template = sources.template_of(sources.sentences())
    return [message for message in template if message.id]


@pytest.mark.parametrize("language", sources.translated())
def test_a_catalogue_has_the_sentences_of_the_source_and_no_other(language: str) -> None:
    """`make languages` brings it up to date."""
    catalog = sources.read(language)
    assert {(m.context, m.id) for m in catalog if m.id} == {(m.context, m.id) for m in _translated()}
    assert not catalog.obsolete
    assert languages.file_of(language).read_bytes() == sources.compiled(catalog)


@pytest.mark.parametrize("path", sources.templates(), ids=lambda path: path.name)
def test_no_template_has_a_sentence_outside_of_the_catalogues(path: Path) -> None:
    tree = ENVIRONMENT.parse(path.read_text())
    assert words_in("".join(_skeleton(tree))) == []
    assert [(line, text) for line, text in _constants(tree) if _SENTENCE.search(text) and text not in SAME] == []
