"""Requests that were sent to a real service and what it answered, by the name of the operation.

``python -m tests.support.api_examples HOME`` plays them again on a copy of the demo's HOME.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

FILE = Path(__file__).parent / "examples.json"


@dataclass(frozen=True)
class Example:
    """A request and its answer; of long lists in the answer only the first entries are kept.

    Attributes:
        path: with its query, as it was asked for.
        status: of the answer.
        request: body in JSON; None where none was sent, or another one.
        response: body in JSON; None where it is something else.
    """

    path: str
    status: int
    request: Any = None
    response: Any = None


def _read() -> dict[str, Example]:
    return {name: Example(**entry) for name, entry in json.loads(FILE.read_text()).items()} if FILE.exists() else {}


EXAMPLES = _read()


def path_values(template: str, example: Example) -> dict[str, str]:
    """Values of a path's parameters.

    >>> path_values("/v1/reads/{read_id}/labels", Example("/v1/reads/a%20b/labels", 201))
    {'read_id': 'a b'}
    """
    parts = zip(template.split("/"), urlsplit(example.path).path.split("/"), strict=True)
    return {name[1:-1]: unquote(value) for name, value in parts if name.startswith("{")}


def query_values(example: Example) -> dict[str, str]:
    """Values of the query's parameters.

    >>> query_values(Example("/v1/cases?limit=2&site=north", 200))
    {'limit': '2', 'site': 'north'}
    """
    return {name: values[0] for name, values in parse_qs(urlsplit(example.path).query).items()}
