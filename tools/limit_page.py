"""The page of all limits, made from the table in ``app/http/limiter.py``.

    python -m tools.limit_page        writes docs/reference/limits.md

A test says when that is due.
"""

from pathlib import Path

from app.http.limiter import COUNTED_LIMITS, WAITING_LIMITS, Limit

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "limits.md"
_BEGINNING = """# Limits

Every limit of a server process, made from the table in `app/http/limiter.py` by `python -m tools.limit_page`. Several
processes of one port have these limits each. `GET /readyz?verbose` adds them to its answer as `limits`, with their
present use: `in_use` is that of the caller or address that uses most, and `waiting` counts all that wait. The limits
of a picture are under [Images](../reference.md#images).

## Limits at which a request waits

A request takes a place, or waits in a line in the order of arrival. A request that finds the line full, or waits too
long, is refused with `Retry-After`. Bytes of bodies, pictures and documents: what fits passes a larger request that
waits, until that one has let pass as much as there is in all.

| limit | places | for each | may wait | seconds | refused with | setting |
|---|---|---|---|---|---|---|
"""
_SECOND = """
## Counted or measured limits

| limit | value | for each | beyond it | setting |
|---|---|---|---|---|
"""


def _describe_size(limit: Limit) -> str:
    if limit.size is None:
        return limit.chosen
    for size, unit in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")) if limit.unit == "bytes" else ():
        if limit.size % size == 0:
            return f"{limit.size // size} {unit}{limit.chosen}"
    return f"{limit.size:,} {limit.unit if limit.size != 1 else limit.unit.removesuffix('s')}{limit.chosen}"


def _describe_setting(limit: Limit) -> str:
    return f"`{limit.setting}`" if limit.setting else "–"


def render_limit_page() -> str:
    """The page as Markdown."""
    waiting = [
        (
            limit.name,
            _describe_size(limit),
            limit.per,
            "any number" if limit.queue is None else str(limit.queue),
            f"{limit.wait_seconds:g}" if limit.wait_seconds else "–" if limit.queue == 0 else "as long as it takes",
            limit.answer,
            _describe_setting(limit),
        )
        for limit in WAITING_LIMITS
    ]
    counted = [
        (limit.name, _describe_size(limit), limit.per, limit.answer, _describe_setting(limit))
        for limit in COUNTED_LIMITS
    ]
    tables = ["".join(f"| {' | '.join(row)} |\n" for row in rows) for rows in (waiting, counted)]
    return f"{_BEGINNING}{tables[0]}{_SECOND}{tables[1]}"


if __name__ == "__main__":
    PAGE.write_text(render_limit_page())
