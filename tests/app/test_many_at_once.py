"""More requests at once than there are threads and connections: none waits for what another one holds."""

import asyncio
import time
from typing import Any

import httpx2 as httpx
import pytest

from app.accounts import people
from tests.support.coroutines import run_async
from tests.support.service import Service, cell_png
from tests.support.waiting import patient

N_CALLERS, PER_CALLER = 12, 8


@pytest.mark.both_databases
def test_many_requests_at_once_are_answered_without_waiting_for_each_other(service: Service) -> None:
    """A request holds its connection until its commit, and must not need a thread that others hold meanwhile."""
    service.add_case("case", cell_png(), patient="p")
    with service.context.database.write() as session:
        audit = service.context.keys.audit
        keys = [people.add_key(session, audit, "viewer", [])[1] for _ in range(N_CALLERS)]

    async def ask(key: str, number: int) -> tuple[int, float]:
        transport: Any = httpx.ASGITransport(app=service.client.app, client=(f"192.0.2.{number}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            begun = time.monotonic()
            answer = await client.get("/v1/cases", headers={"Authorization": f"Bearer {key}"})
            return answer.status_code, time.monotonic() - begun

    async def flood() -> list[tuple[int, float]]:
        return await asyncio.gather(*(ask(key, n) for n, key in enumerate(keys) for _ in range(PER_CALLER)))

    answers = run_async(flood())
    assert {status for status, _ in answers} == {200}
    assert max(seconds for _, seconds in answers) < patient(10)
