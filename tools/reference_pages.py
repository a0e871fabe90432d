"""Pages of the reference: commands, settings, routes and limits, written from the code.

    python -m tools.reference_pages        writes what has changed

A test compares the pages with the code.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from annotated_types import Ge, Le

from app.cli.main import secondread
from app.http.limiter import COUNTED_LIMITS, WAITING_LIMITS, Limit
from app.settings import Settings

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_COMMANDS = """# Commands

Every command with its options, generated from the code by `python -m tools.reference_pages`. `secondread
COMMAND --help` shows the same. [Installation](installation.md) describes exit statuses, output and databases.

"""
_SETTINGS = """# Settings

Settings are environment variables, generated from `app/settings.py` by `python -m tools.reference_pages`.
`secondread serve --help` lists them too. A versioned policy, not a setting, configures triage.

Secret settings can be files instead: set `SECONDREAD_SECRETS` to a folder with one file per setting, named as the
variable in lower case, such as `secondread_database_url`. The environment comes first. For traces, the service reads
OpenTelemetry's variables `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`.

"""
_ROUTES = """# Routes

Every operation of the API, generated from the [OpenAPI document](openapi.json) by `python -m tools.reference_pages`.
[HTTP](http.md) explains scopes, retries and errors. The service shows each operation with an example at `/v1/docs`.
If a row names two scopes, either is enough.
"""
_LIMITS = """# Limits

Every limit of a server process, generated from `app/http/limiter.py` by `python -m tools.reference_pages`. If several
processes serve one port, each has these limits. `GET /readyz?verbose` adds them to its answer as `limits`, with their
present use: `in_use` is that of the caller or address that uses most, and `waiting` counts all that wait. The limits
of a picture are under [Images](images.md).

## Limits at which a request waits

A request takes a place, or waits in a line in the order of arrival. A request that finds the line full, or waits too
long, is refused with `Retry-After`. Bytes of bodies, pictures and documents: what fits passes a larger request that
waits, until that one has let pass as much as there is in all.

"""
_COUNTED = "\n## Counted or measured limits\n\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| ---", "|---").replace("--- |", "---|")


def _plain(text: str) -> str:
    """A sentence of the command line as Markdown: options and columns as code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    code = re.compile(r"(?<![\w`])(--[a-z][\w-]*|[\w:/]*<\w+>[\w:/]*)")
    return "".join(part if part[:1] == "`" else code.sub(r"`\1`", part) for part in parts).replace("|", r"\|")


def _prose(text: str) -> str:
    """Help of a command as Markdown; indented paragraphs are blocks."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        shown = all(line.startswith("  ") for line in lines)
        paragraphs.append("\n".join(["```text", *(line[2:] for line in lines), "```"]) if shown else _plain(paragraph))
    return "\n\n".join(paragraphs)


def _walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    for part in sorted(inner):
        yield from _walk(inner[part], f"{name} {part}")
    if not inner:
        yield name, command


def _describe_command(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    usage = command.get_usage(context).removeprefix("Usage: ")
    rows: dict[str, list[list[str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(context):
        names, meaning = parameter.get_help_record(context) or ("--help", "")  # a hidden option has none
        value = "".join(re.findall(r" ?<([^>]*)>", names))
        names = re.sub(r" ?<[^>]*>", "", names)
        meaning, _, more = meaning.partition("  [")
        facts = more.rstrip("]").replace("default: ", "")
        cells = [f"`{names}`", value.replace("|", ", "), _plain(facts), _plain(meaning)]
        rows[parameter.param_type_name] += [] if names == "--help" else [cells]
    tables = [_table((kind, "value", "default", "meaning"), rows[kind]) for kind in rows if rows[kind]]
    tables += ["It reads the [settings](settings.md) of the service.\n"] if command.epilog else []
    return "\n".join(
        [f"## {name}\n", f"```text\n{' '.join(usage.split())}\n```\n", _prose(command.help) + "\n", *tables]
    )


def render_commands() -> str:
    """Every command of the command line."""
    commands = list(_walk(typer.main.get_command(secondread), "secondread"))
    first = [re.match(r"(?s)(.*?[.:;])(\s|$)", command.help)[1] for _, command in commands]  # type: ignore[index]
    index = [
        [f"[`{name}`](#{name.replace(' ', '-')})", _plain(text.rstrip(".:;"))]
        for (name, _), text in zip(commands, first, strict=True)
    ]
    return _COMMANDS + "\n".join(
        [_table(("command", "purpose"), index), *(_describe_command(*each) for each in commands)]
    )


def render_settings() -> str:
    """Every setting of the service."""
    rows = []
    for name, info in Settings.model_fields.items():
        low = [part.ge for part in info.metadata if isinstance(part, Ge)]
        high = [part.le for part in info.metadata if isinstance(part, Le)]
        bounds = f"; {low[0]:,} to {high[0]:,}" if low and high else f"; at least {low[0]:,}" if low and low[0] else ""
        value = json.dumps(info.default) if isinstance(info.default, list) else str(info.default)
        default = "unset" if info.default is None else f"`{value}`"
        rows.append([f"`SECONDREAD_{name.upper()}`", default, _plain(f"{info.description}{bounds}")])
    return _SETTINGS + _table(("setting", "default", "meaning"), rows)


def render_routes() -> str:
    """Every operation of the OpenAPI document, by tag."""
    document = json.loads((FOLDER / "openapi.json").read_text())
    text = _ROUTES
    for tag in document["tags"]:
        rows = []
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    named = [item for each in operation["security"] for item in each.items()]
                    scopes = dict.fromkeys(f"`{scope}`" for _, scopes in named for scope in scopes)
                    who = ", ".join(scopes) or ("the metrics token" if named else "public")
                    rows.append([f"`{method.upper()} {path}`", who, operation["summary"]])
        text += (
            f"\n## {tag['name'].capitalize()}\n\n{tag['description']}\n\n{_table(('route', 'scope', 'purpose'), rows)}"
        )
    return text


def _describe_size(limit: Limit) -> str:
    if limit.size is None:
        return limit.chosen
    for size, unit in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")) if limit.unit == "bytes" else ():
        if limit.size % size == 0:
            return f"{limit.size // size} {unit}{limit.chosen}"
    return f"{limit.size:,} {limit.unit if limit.size != 1 else limit.unit.removesuffix('s')}{limit.chosen}"


def _describe_wait(limit: Limit) -> str:
    return f"{limit.wait_seconds:g}" if limit.wait_seconds else "–" if limit.queue == 0 else "as long as it takes"


def _describe_setting(limit: Limit) -> str:
    return f"`{limit.setting}`" if limit.setting else "–"


def render_limits() -> str:
    """Every limit of a server process."""
    head = ("limit", "places", "for each", "may wait", "seconds", "refused with", "setting")
    waiting = [
        (
            limit.name,
            _describe_size(limit),
            limit.per,
            "any number" if limit.queue is None else str(limit.queue),
            _describe_wait(limit),
            limit.answer,
            _describe_setting(limit),
        )
        for limit in WAITING_LIMITS
    ]
    counted = [
        (limit.name, _describe_size(limit), limit.per, limit.answer, _describe_setting(limit))
        for limit in COUNTED_LIMITS
    ]
    second = _table(("limit", "value", "for each", "beyond it", "setting"), counted)
    return _LIMITS + _table(head, waiting) + _COUNTED + second


#: Each page with the function that writes it.
PAGES: dict[str, Callable[[], str]] = {
    "commands.md": render_commands,
    "settings.md": render_settings,
    "routes.md": render_routes,
    "limits.md": render_limits,
}


if __name__ == "__main__":
    for page, render in PAGES.items():
        text = render()
        if not (FOLDER / page).exists() or (FOLDER / page).read_text() != text:
            (FOLDER / page).write_text(text)
            print(f"docs/reference/{page}")
