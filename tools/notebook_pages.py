"""Hook of mkdocs: each notebook of ``docs`` is a page with its stored outputs."""

import base64
import html
import json
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"(\]\((?!https?:)[^)#\s]+)\.ipynb\b")


def render_notebook(notebook: dict[str, Any]) -> str:
    """Markdown of a notebook in nbformat 4.5: text, code, printed lines and pictures."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        language = "sh" if source.startswith("%%bash") else "python"
        parts += [f"```{language}\n{source}\n```", *(_render_output(output, source) for output in cell["outputs"])]
    return "\n\n".join(parts) + "\n"


def _render_output(output: dict[str, Any], source: str) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    alternative = html.escape(f"Result of {source.splitlines()[-1]}")
    for kind in ("image/svg+xml", "image/png"):
        if kind in data:
            content = "".join(data[kind])
            encoded = base64.b64encode(content.encode()).decode() if kind == "image/svg+xml" else content.strip()
            # an image element, since several inline SVGs would share their ids
            return f'<p><img alt="{alternative}" src="data:{kind};base64,{encoded}"></p>'
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, which itself stays for download."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        content = render_notebook(json.loads(file.content_string))
        files.append(File.generated(config, f"{file.src_uri.removesuffix('.ipynb')}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links from notebooks to their pages."""
    return _LINK.sub(r"\1.md", markdown)
