"""Hooks of mkdocs for the documentation site: files outside of ``docs``, formulas, and what the search leaves out."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Folder of the site for files of the project that are not in ``docs``.
OUTSIDE = "source"
#: Folders that neither navigation nor search shows.
UNLISTED = ("decisions/", f"{OUTSIDE}/")
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(span|div)>', re.DOTALL)


def _locate(target: str, source: Path) -> Path:
    """The file that a link of a page means; of a folder its README."""
    path = Path(os.path.normpath(source.parent / unquote(target)))
    return path / "README.md" if path.is_dir() else path


def _address(path: Path) -> str:
    """Where a file of the project is within the site."""
    inside = path.is_relative_to(DOCS)
    return path.relative_to(DOCS).as_posix() if inside else f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of ``docs`` that pages link to, and those that these link to."""
    waiting = [Path(page.abs_src_path or "") for page in files.documentation_pages()]
    for source in waiting:
        for target in _LINK.findall(source.read_text()):
            path = _locate(target, source)
            if path.is_file() and files.get_file_from_path(_address(path)) is None:
                files.append(File.generated(config, _address(path), abs_src_path=str(path)))
                waiting += [path] if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to where the files are within the site."""
    if page.file.src_uri.startswith(UNLISTED):
        page.meta["search"] = {"exclude": True}
    source, folder = Path(page.file.abs_src_path or ""), Path(page.file.src_uri).parent

    def move(link: re.Match[str]) -> str:
        path = _locate(link[1], source)
        return os.path.relpath(_address(path), folder) if path.is_file() else link[1]

    return _LINK.sub(move, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write formulas as MathML, which browsers show without a script."""

    def render(formula: re.Match[str]) -> str:
        latex = formula["latex"].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return convert(latex, display="inline" if formula[1] == "span" else "block")

    return _FORMULA.sub(render, html)
