"""Texts for users read as native English: constructions that give a translation away are counted, and stay rare."""

import ast
import html
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import typer
from babel.messages.pofile import read_po

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
STYLE = DOCS / "style.md"
#: Hits per 1,000 words that are allowed; two hits are always.
LIMIT = 5
#: Texts above the limit, with their present number of hits. A number may only fall, and a text that keeps to the limit
#: leaves the table.
STILL_ALLOWED: dict[str, int] = {}

_SUBJECTS = "it|they|one|none|nobody|somebody|there|that|this|no|few|cases?|labels?|annotators?|a release|the release"
_START = r"(?:^|(?<=[.:;!] ))"
#: What gives a translation away, in any case but for the last two, which begin a sentence. docs/style.md has an example
#: of each.
PATTERNS = [
    *(
        re.compile(pattern, re.IGNORECASE)
        for pattern in (
            r"\b(?:say|says|said|tell|tells|told)\b",
            rf"\bwhere (?:{_SUBJECTS})\b",
            r"\b(?:nobody|somebody|whoever|whatever|whom)\b",
            r"\b(?:stands?|lies?) (?:in|on|at|for|next|there|beside)\b",
            r"\bgo(?:es)? on\b|\bcomes? (?:into?|to|from|back|with|first|later)\b",
            r"\b(?:that|which) (?:is|are|was|were|has been|have been) \w+(?:ed|en)\b",
            r"\b(?:ones?|those|that) (?:that|who|whose|which)\b",
            r"\bby (?:hand|itself|few|which|whom)\b",
            r"\b(?:anew|besides?|in place of|meanwhile|all the same|likewise|thereby|therein|hitherto)\b",
            r"\b(?:is|are|was|were|be|been) made\b",
            r"\bof (?:one's|his|her|its|their|your) own\b",
            r"\b(?:of (?:now|then|before)|as (?:it|they) stands?|just now|until then|from then on)\b",
            r"\b(?:no|any|not) more\b",
            r"\bsome (?:\d[\d,]*|hundred|thousand|dozen|minutes|hours|seconds)\b",
            r"\b(?:surely|surer|surest)\b",
        )
    ),
    re.compile(_START + r"(?:What|Who|Whoever|Whether) [a-z' ]+(?![^.]*\?)", re.MULTILINE),
    re.compile(_START + r"Of [a-z]", re.MULTILINE),
]


def find_hits(text: str) -> list[str]:
    """Each hit with the words around it."""
    return [
        " ".join(text[max(0, hit.start() - 30) : hit.end() + 30].split())
        for pattern in PATTERNS
        for hit in pattern.finditer(text)
    ]


def keep_prose(text: str) -> str:
    """Markdown or HTML without code, comments, markup and addresses of links."""
    text = re.sub(r"```.*?```|<!--.*?-->", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\]\([^)]*\)|<[^>]+>", " ", text)
    return html.unescape(re.sub(r"[\[\]|*#_!>]+", " ", text))


def documents() -> list[Path]:
    pages = [path for path in sorted(DOCS.rglob("*.md")) if "decisions" not in path.parts]
    return [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")), *pages]


def sentences_of_pages() -> str:
    """Message ids of the catalogues, which contain every sentence of pages and messages."""
    found = []
    for path in sorted((ROOT / "app").rglob("de/LC_MESSAGES/*.po")):
        with path.open("rb") as file:
            ids = [message.id for message in read_po(file) if message.id]
        found += [text for texts in ids for text in ([texts] if isinstance(texts, str) else texts)]
    return "\n".join(found)


def help_of_commands() -> str:
    from app.cli.main import secondread

    found: list[str] = []

    def add(command: click.Command) -> None:
        found.append(command.help or "")
        found.extend(getattr(parameter, "help", None) or "" for parameter in command.params)
        for inner in getattr(command, "commands", {}).values():
            add(inner)

    add(typer.main.get_command(secondread))
    return "\n".join(found)


def errors_of(folder: str) -> str:
    """Sentences of raised errors and of messages: the literals within them."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_message = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Message"
            if is_message or isinstance(node, ast.Raise):
                parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                found.append(" ".join(part for part in parts if isinstance(part, str)))
    return "\n".join(found)


def texts_of_the_api() -> str:
    def walk(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            yield from (node[key] for key in ("summary", "description") if isinstance(node.get(key), str))
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from walk(inner)

    return "\n".join(walk(json.loads((DOCS / "reference" / "openapi.json").read_text())))


def docstrings_of_the_library() -> str:
    import secondread

    public = [secondread, *(getattr(secondread, name) for name in secondread.__all__)]
    objects = [*public, *(getattr(each, name) for each in public for name in getattr(each, "__all__", ()))]
    found = []
    for each in {id(each): each for each in objects}.values():
        methods = [value for name, value in vars(each).items() if name[0] != "_"] if inspect.isclass(each) else []
        found += [inspect.getdoc(part) or "" for part in [each, *methods] if callable(part) or inspect.ismodule(part)]
    return re.sub(r"^ *(?:>>>|\.\.\. ).*$|``[^`]*``", "", "\n".join(found), flags=re.MULTILINE)


TEXTS: dict[str, Callable[[], str]] = {
    **{path.relative_to(ROOT).as_posix(): path.read_text for path in documents()},
    "pages": sentences_of_pages,
    "help of commands": help_of_commands,
    "errors of app": lambda: errors_of("app"),
    "errors of ml": lambda: errors_of("ml"),
    "OpenAPI": texts_of_the_api,
    "docstrings of the library": docstrings_of_the_library,
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_reads_as_english(name: str) -> None:
    text = keep_prose(TEXTS[name]())
    hits = find_hits(text)
    limit = max(2, LIMIT * len(re.findall(r"[A-Za-z']+", text)) // 1000)
    allowed = STILL_ALLOWED.get(name, limit)
    assert len(hits) <= allowed, f"{len(hits)} hits, {allowed} allowed (docs/style.md):\n" + "\n".join(hits)
    assert name not in STILL_ALLOWED or len(hits) > limit, (
        f"{name} keeps to the limit now: take it out of STILL_ALLOWED"
    )


@pytest.mark.parametrize(("name", "limit"), [("README.md", 600), ("CHANGELOG.md", 1200)])
def test_a_first_page_is_short(name: str, limit: int) -> None:
    assert len(re.findall(r"[A-Za-z']+", keep_prose((ROOT / name).read_text()))) <= limit


def test_texts_that_are_still_allowed_exist() -> None:
    assert set(STILL_ALLOWED) <= set(TEXTS)


def test_each_example_of_the_style_page_is_counted_and_its_rewrite_is_not() -> None:
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \|$", STYLE.read_text(), re.MULTILINE)
    assert [bad for bad, _ in rows if not find_hits(bad)] == []
    assert [good for _, good in rows if find_hits(good)] == []
    assert [pattern.pattern for pattern in PATTERNS if not any(pattern.search(bad) for bad, _ in rows)] == []
