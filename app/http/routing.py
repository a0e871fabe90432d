"""Walks over the routes of an application, however they were included."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Mount


def walk_routes(app: FastAPI) -> Iterator[APIRoute]:
    """Every route of the application, however it was included."""
    pending: list[Any] = list(app.routes)
    while pending:
        route = pending.pop(0)
        if isinstance(route, APIRoute):
            yield route
        elif not isinstance(route, Mount):
            pending.extend(getattr(getattr(route, "original_router", route), "routes", []))
