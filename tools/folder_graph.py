"""The graph of folders as Mermaid text; `python -m tools.folder_graph` writes it into docs/architecture.md."""

import re
from pathlib import Path

from tests.test_architecture import folder_graph

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
_BLOCK = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Every room that a room imports, directly or not."""
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        room = waiting.pop()
        if room not in reached:
            reached.add(room)
            waiting += graph[room]
    return reached


def mermaid() -> str:
    """The fenced block: an arrow says "imports"; arrows that follow from others are left out."""
    graph = folder_graph()
    lines = ["```mermaid", "flowchart TD"]
    for room in sorted(graph):
        implied = set().union(*(_reached(graph, other) for other in graph[room]))
        lines += [f"    {room} --> {other}" for other in sorted(graph[room] - implied)]
    return "\n".join([*lines, "```"])


def with_graph(text: str) -> str:
    """The page with the graph of today."""
    return _BLOCK.sub(mermaid(), text)


if __name__ == "__main__":
    PAGE.write_text(with_graph(PAGE.read_text()))
