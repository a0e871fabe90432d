"""The documentation as a site: each page has its place and its length, and the site loads nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.pages import DOCS, ROOT
from tests.test_style import keep_prose
from tools.site_pages import on_page_content

#: Words of a page of a folder, and of single pages; more need a second page.
FOLDERS = {"lead": 350, "integrate": 350, "model": 350, "operate": 350, "contribute": 350, "explanation": 600}
PAGES = {
    "README.md": 250,
    "tutorial.md": 700,
    "concepts.md": 500,
    "glossary.md": 400,
    "comparison.md": 400,
    "faq.md": 400,
    "metrics.md": 2800,
}
#: What a newcomer asks, with the page that answers it and words of the answer.
QUESTIONS = {
    "calibrate a model": ("model/calibrate-your-own.md", "secondread"),
    "laboratory's viewer": ("integrate/lab-viewer.md", "HTTP calls"),
    "skill": ("metrics.md", "Skill"),
    "upgrade": ("operate/upgrade.md", "secondread db upgrade"),
    "cluster": ("operate/kubernetes.md", "kubectl"),
}


def listed_pages(nav: Any) -> list[str]:
    """Pages of the navigation in its order."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in listed_pages(part)]


def count_words(path: Path) -> int:
    return len(re.findall(r"[A-Za-z']+", keep_prose(path.read_text())))


def test_every_page_has_one_place_in_the_navigation() -> None:
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if "decisions" not in path.parts]
    pages += [path.relative_to(DOCS).with_suffix(".md").as_posix() for path in DOCS.rglob("*.ipynb")]
    assert sorted(listed_pages(config["nav"])) == sorted(pages)
    assert max(len(next(iter(section.values()))) for section in config["nav"]) <= 20


def test_a_page_fits_its_budget() -> None:
    budgets = {path: words for folder, words in FOLDERS.items() for path in (DOCS / folder).glob("*.md")}
    budgets |= {DOCS / name: words for name, words in PAGES.items()}
    counted = {path.relative_to(DOCS).as_posix(): (count_words(path), words) for path, words in budgets.items()}
    assert {name: pair for name, pair in counted.items() if pair[0] > pair[1]} == {}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_common_question_is_answered_one_click_from_the_home_page(question: str) -> None:
    page, answer = QUESTIONS[question]
    home = (DOCS / "README.md").read_text()
    links = dict(re.findall(r"^- \[([^]]*)\]\(([^)#]*)", home, re.MULTILINE))
    assert [target for asked, target in links.items() if question in asked] == [page]
    assert answer in (DOCS / page).read_text()


def test_a_formula_becomes_mathml() -> None:
    html = '<p><span class="arithmatex">\\(a &lt; \\hat{b}\\)</span></p><div class="arithmatex">\\[\\sum_k x_k\\]</div>'
    shown = on_page_content(html, None, None, None)  # type: ignore[arg-type]
    assert re.findall(r'<math [^>]*display="(\w+)"', shown) == ["inline", "block"]
    assert "arithmatex" not in shown
    assert "\\" not in shown


@pytest.mark.slow
@pytest.mark.ci
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//|<link[^>]* href="(?:https?:)?//')
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 100
    assert [str(page) for page in pages if loaded.search(page.read_text())] == []
    index = json.loads((tmp_path / "search" / "search_index.json").read_text())
    found = {entry["location"].split("#")[0] for entry in index["docs"]}
    assert {page for page in found if page.startswith(("decisions/", "source/"))} == set()
    assert {"operate/upgrade.html", "reference/library.html"} <= found
    assert "<math" in (tmp_path / "reference" / "tables.html").read_text()
