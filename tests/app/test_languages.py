"""The pages in other languages: every sentence is in the catalogues, whole, and none is outside of them."""

import json
import re
import uuid
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest
from jinja2 import nodes
from sqlalchemy import select

from app.database.tables import Case, ReleaseRow
from app.database.tables.values import PracticePurpose
from app.http import languages
from app.http.principal import ROLE_SCOPES
from app.imports.schemas import Status
from app.labels.schemas import DeclineReason
from app.metrics.schemas import Partition
from app.releases.queries import reading_classes
from app.triage.rules import Arm
from app.web.filters import TERMS
from app.web.render import ENVIRONMENT
from ml import messages
from tests.support.reports import report_page
from tests.support.service import PEOPLE, Service, cell_png, collect
from tools import catalogues as sources

#: Names and codes that are the same in every language.
SAME = {"secondread", "UTC", "API", "JSON", "HTML", "CSV", "Enter", "EL", "CL", "DL"}
#: Attributes that a person reads or hears.
_READ = {"alt", "title", "placeholder", "aria-label", "data-name", "data-called", "data-opens", "data-closes"}
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


def texts_in(html: str) -> list[tuple[int, str]]:
    """Texts of a page, with their lines."""
    reader = Reader()
    reader.feed(html)
    return reader.said


def words_in(html: str) -> list[tuple[int, str]]:
    """Words of a language in a page, with their lines."""
    found = ((line, word) for line, text in texts_in(html) for word in _WORD.findall(text))
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
_SENTENCE = re.compile(r"[A-Z][a-z]{2,}|[a-z]{2,} [a-z]{2,}")


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


@pytest.mark.parametrize("path", sources.styles(), ids=lambda path: path.name)
def test_no_style_sheet_says_anything(path: Path) -> None:
    """It would be in English on every page; a page gives what it shows in an attribute."""
    said = re.findall(r'content:\s*"([^"]*)"', path.read_text())
    assert [text for text in said if _WORD.search(text)] == []


@pytest.mark.slow
@pytest.mark.parametrize("language", sources.translated())
def test_a_catalogue_has_the_sentences_of_the_source_and_no_other(language: str) -> None:
    """`make languages` brings it up to date."""
    catalog = sources.read(language)
    translated = sources.template_of(sources.sentences())
    assert {(m.context, m.id) for m in catalog if m.id} == {(m.context, m.id) for m in translated if m.id}
    assert not catalog.obsolete
    assert languages.get_catalogue_path(language).read_bytes() == sources.compiled(catalog)


@pytest.mark.parametrize("path", sources.templates(), ids=lambda path: path.name)
def test_no_template_has_a_sentence_outside_of_the_catalogues(path: Path) -> None:
    tree = ENVIRONMENT.parse(path.read_text())
    assert words_in("".join(_skeleton(tree))) == []
    assert [(line, text) for line, text in _constants(tree) if _SENTENCE.search(text) and text not in SAME] == []


_VALUES = {None: re.compile(r"%(?:\(\w+\)s|%)"), "brace": re.compile(r"\{\w+\}")}
_TAG = re.compile(r"<[^>]*>")
#: Letters that English says twice, and an optional plural, of which another language needs nothing.
_LEFT_OUT = {"{plural}"}


def _values(context: str | None, text: str) -> set[str]:
    braces = context in {languages.SAID, languages.SCRIPT}
    return set(_VALUES["brace" if braces else None].findall(text)) - _LEFT_OUT


@pytest.mark.parametrize("language", sorted(set(languages.LANGUAGES) - {languages.SOURCE}))
def test_every_sentence_is_translated_with_the_same_values(language: str) -> None:
    wrong = []
    for message in sources.read(language):
        if not message.id:
            continue
        texts = message.string if isinstance(message.string, tuple) else (message.string,)
        one, many = message.id if isinstance(message.id, tuple) else (message.id, message.id)
        allowed = [_values(message.context, one), _values(message.context, many)]
        for text in texts:
            same = _values(message.context, text) in allowed and sorted(_TAG.findall(text)) == sorted(_TAG.findall(one))
            quoted = '"' in text and '"' not in one  # it may stand in an attribute
            if not text or message.fuzzy or not same or quoted:
                wrong.append((message.id, text))
    assert wrong == []


def test_no_sentence_of_a_catalogue_is_in_the_language_of_another() -> None:
    german, japanese = (
        {(m.context, m.id): m.string for m in sources.read(language) if m.id} for language in ("de", "ja")
    )
    same = [key for key, text in german.items() if japanese[key] == text]
    texts = [german[key] if isinstance(german[key], str) else " ".join(german[key]) for key in same]
    words = [
        (key[1], _WORD.findall(_TAG.sub("", re.sub(r"\{\w+\}", "", text))))
        for key, text in zip(same, texts, strict=True)
    ]
    assert [(one, found) for one, found in words if found and set(found) - set(_WORD.findall(str(one)))] == []


def test_codes_that_pages_show_are_terms() -> None:
    kinds = (Arm, DeclineReason, Status, PracticePurpose, Partition)
    codes = [*ROLE_SCOPES, *(code for kind in kinds for code in get_args(kind))]
    assert {code.replace("_", " ") for code in codes} - set(TERMS) == set()


_ACCENTS = str.maketrans("aeiounscyzAEIOUNSCYZ", "âéïöûñšçýžÂÉÏÖÛÑŠÇÝŽ")


def accented(text: str) -> str:
    """A sentence with an accent on some letters of each word, and its values and tags as they are.

    >>> accented("Case %(number)s <b>now</b>")
    'Çâšé %(number)s <b>ñöw</b>'
    """
    pieces = re.split(r"(%\(\w+\)s|%%|\{\w+\}|<[^>]*>|&\w+;)", text)
    return "".join(piece if place % 2 else piece.translate(_ACCENTS) for place, piece in enumerate(pieces))


@pytest.fixture
def pseudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A language in which every word of the catalogues has an accent."""
    catalog = sources.template_of(sources.sentences())
    for message in catalog:
        if message.id:
            several = isinstance(message.id, tuple)
            message.string = tuple(map(accented, message.id)) if several else accented(message.id)
    monkeypatch.setattr(languages, "FOLDER", tmp_path)
    monkeypatch.setattr(languages, "LANGUAGES", {**languages.LANGUAGES, "xx": "xx"})
    languages.get_catalogue_path("xx").parent.mkdir(parents=True)
    languages.get_catalogue_path("xx").write_bytes(sources.compiled(catalog))
    languages.load_catalogue.cache_clear()
    yield
    languages.load_catalogue.cache_clear()
    languages._script_words.cache_clear()


#: What the laboratory has named in these tests, and codes and programs that are shown as such.
NAMES = {
    *PEOPLE,
    *("case", "anonymous", "hospital", "north", "tiny", "English", "Deutsch", "sRGB", "Krippendorff", "tests"),
    *("command", "line", "service", "gate", "worker", "test", "Mononuclear", "Granulocytes"),
    *("agreement", "accuracy", "skill", "paired", "minus", "gini"),  # names of metrics
    *("first", "policy", "made", "with", "database"),  # the reason that came with the first policy
}
PAGES = {
    "admin": (
        *("/worklist", "/report", "/policy", "/releases", "/jobs", "/imports", "/readers", "/references", "/people"),
        *(
            "/report/appendix",
            "/report/specimens",
            "/audit",
            "/practice",
            "/help",
            "/flagged",
            "/annotators/r1",
            "/report?partition=all",
            "/account",
        ),
        "/nowhere",
    ),
    "anna": ("/worklist", "/me", "/settled", "/practice", "/help", "/display", "/references"),
    None: ("/login",),
}


#: Short numbers of cases may be letters only.
_NUMBER = re.compile("[A-F]+")


def is_english(word: str) -> bool:
    return word.isascii() and len(word) > 3 and not _NUMBER.fullmatch(word)


@pytest.mark.slow
@pytest.mark.usefixtures("pseudo")
def test_pages_of_a_running_service_have_no_english_word_left(service: Service) -> None:
    collect(service, [cell_png(number) for number in range(9)], patients=True)
    report_page(service, "admin", partition="all")
    report_page(service, "admin")
    with service.context.database.read() as session:
        named = [text for info in reading_classes(session) for text in (info.name, info.code)]
        named += session.execute(select(ReleaseRow.name)).scalars()
        case = list(session.execute(select(Case.id)).scalars())[3]
        release = session.execute(select(ReleaseRow.id)).scalars().one()
    names = {word.lower() for text in [*named, *NAMES] for word in _WORD.findall(text)}
    asked = [(who, path) for who, paths in PAGES.items() for path in paths]
    asked += [("admin", f"/cases/{case}"), ("admin", f"/releases/{release}")]
    wanted = {"Accept": "text/html", "Accept-Language": "xx"}
    shown = {f"{who} {path}": service.get(who, path, headers=dict(wanted)) for who, path in asked}
    shown["read"] = service.post("anna", "/reads/next", headers=dict(wanted))
    assert shown["read"].url.path.startswith("/cases/")
    assert [page for page, answer in shown.items() if 'lang="xx"' not in answer.text] == []
    # words without an accent, though they are long enough to have one
    left = [(page, *said) for page, answer in shown.items() for said in words_in(answer.text) if is_english(said[1])]
    assert [found for found in left if found[2].lower() not in names] == []
    # classes by their names
    codes = re.compile("|".join(code for code in named if "_" in code))
    assert [page for page, answer in shown.items() for _, text in texts_in(answer.text) if codes.search(text)] == []


def test_a_language_is_asked_for_by_the_browser_chosen_at_the_sign_in_and_kept_by_an_account(service: Service) -> None:
    def speaks(who: str | None, **headers: str) -> str:
        path = "/login" if who is None else "/help"
        page = service.get(who, path, headers={"Accept": "text/html", **headers}).text
        return str(re.findall('<html lang="(..)">', page)[0])

    german = {"Accept-Language": "de-CH, en;q=0.5"}
    assert [speaks(None), speaks(None, **german), speaks("anna", **german)] == ["en", "de", "de"]
    assert speaks(None, **{"Accept-Language": "tlh, fr;q=0.3"}) == "en"
    service.client.post("/login/language", data={"language": "ja"})
    assert [speaks(None, **german), speaks("anna", **german)] == ["ja", "ja"]
    service.post("anna", "/account/language", data={"language": "de"})
    assert [speaks("anna"), speaks("ben")] == ["de", "ja"]
    service.post("anna", "/account/language", data={"language": "tlh"})
    assert speaks("anna") == "ja"


def test_the_api_and_its_problems_speak_english(service: Service) -> None:
    asked = {"Accept-Language": "de"}
    assert service.get("admin", f"/v1/cases/{uuid.uuid4()}", headers=asked).json()["detail"] == "there is no such cell"
    page = service.get("admin", f"/cases/{uuid.uuid4()}", headers={"Accept": "text/html", **asked})
    assert "<p>Es gibt kein solches Zellbild.</p>" in page.text
    told = service.post("anna", f"/reads/{'0' * 32}.{'0' * 32}/label", data={"label": "x"}, headers=asked).json()
    assert "andere Person" in told["detail"]


@pytest.mark.parametrize("language", sources.translated())
def test_scripts_find_their_words_in_the_page(service: Service, language: str) -> None:
    page = service.get("anna", "/help", headers={"Accept": "text/html", "Accept-Language": language}).text
    (words,) = re.findall(r'<script type="application/json" id="words">(.*?)</script>', page)
    said = {message.id for message in sources.read(language) if message.context == languages.SCRIPT}
    assert json.loads(words).keys() == said


def test_what_a_domain_says_is_found_with_its_values_and_names_stay_as_they_are() -> None:
    german = languages.load_catalogue("de")
    read = messages.Message("this read is {state}; request the next one", state=messages.Term("open"))
    account = messages.Message("there is no account {name}", name="open")
    assert languages.translated(read, german).startswith("diese Beurteilung ist offen;")
    assert languages.translated(account, german) == "es gibt kein Konto open"
    code = "{max_leases} cells are assigned to you; answer, skip or return one first"
    found = languages.translated(messages.Message(code, max_leases=7), german)
    assert found == german.pgettext(languages.SAID, code).format(max_leases=7)
    assert languages.translated("at most 12 cases are leased", german) == "at most 12 cases are leased"
    both = messages.joined("; ", [messages.Message("sign in first"), messages.Message("there is no such cell")])
    assert languages.translated(both, german).startswith("melden Sie sich erst an; ")
    chosen = messages.Message("{n} chose {code}", n=2, code=messages.Term("Irregular"))
    assert languages.translated(chosen, german) == "2 wählten Unregelmäßig"


@pytest.mark.parametrize(
    ("language", "share", "gain"),
    [
        ("en", "disagreement above 20%", "0.0131"),
        ("de", "Dissens über 20 %", "0,0131"),
        ("ja", "不一致が 20% 超", "0.0131"),
    ],
)
def test_a_page_writes_numbers_of_messages_as_its_language_does(
    monkeypatch: pytest.MonkeyPatch, language: str, share: str, gain: str
) -> None:
    monkeypatch.setattr(languages, "get_page_language", lambda: language)
    threshold = messages.Message("disagreement above {threshold}", threshold=messages.Share("0.20"))
    assert (threshold, languages.translate_sentence(threshold)) == ("disagreement above 0.20", share)
    found = messages.Message("expected gain above {threshold}", threshold=messages.Number("0.0131"))
    assert gain in languages.translate_sentence(found)
    change = messages.Message("{k} {before:.0%} → {after:.0%}", k="a.b", before=0.061, after=0.5)
    assert languages.translate_sentence(change) == ("a.b 6 % → 50 %" if language == "de" else "a.b 6% → 50%")
