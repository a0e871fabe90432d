"""Audit events of many writers on PostgreSQL: with a sealer, linked by each writer, and inserts without any event.

    python -m benchmarks.writers --save

Each writer is a process that inserts a row and commits, again and again; with an event it writes that too, in the same
transaction. «linked by the writer» is what a chain costs without a sealer: everybody waits for its head until the other
one has committed. A commit delay stands for a disk, or a second server, that takes its time. Figures are commits per
second; what counts is how they grow from one writer to eight, beside how bare inserts do in the same round.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
from app.audit.linking import ChainLinker, count_waiting_events
from pydantic import SecretStr
from rich.progress import Progress
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys, KeyRing, derive_keys
from app.audit.installation import claim_database
from app.database.engine import Database
from app.database.migration import upgrade_schema
from app.database.tables import AuditEvent
from app.settings import Settings
from tests.support.postgres import PostgresServer, find_binaries

KEY = b"the same key in every process of this run"
WAYS = ("bare", "sealed", "linked by the writer")
WRITERS, DELAYS_MS = (1, 8), (0, 5)
GOAL_SHARE, GOAL_GROWTH = 0.8, 3.0


def audit_keys() -> AuditKeys:
    return derive_keys(KeyRing.parse(KEY)).audit


def _event(session: Session, keys: AuditKeys) -> AuditEvent:
    return events.record_event(session, keys, actor="writer", action="note", object_id="row", details={"n": 1})


def _write(session: Session, keys: AuditKeys, way: str) -> None:
    session.execute(text("INSERT INTO notes (content) VALUES (:content)"), {"content": "x" * 200})
    if way == "sealed":
        _event(session, keys)
    elif way == "linked by the writer":
        head = events.lock_head(session, keys)
        event = _event(session, keys)
        assert head is not None
        events.append_event(head, event, keys)


def writer(url: str, way: str, delay_ms: int, seconds: float, barrier: Any, counts: Any) -> None:
    """Commit for some seconds; the number goes into ``counts``."""
    keys = audit_keys()
    database = Database(url, keys)

    def commit() -> None:
        with database.write() as session:
            session.execute(text(f"SET LOCAL commit_delay = {1000 * delay_ms}"))
            session.execute(text("SET LOCAL commit_siblings = 0"))
            _write(session, keys, way)

    for _ in range(20):
        commit()
    barrier.wait()
    end, n_commits = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        commit()
        n_commits += 1
    counts.put(n_commits)
    database.engine.dispose()


def sealing(url: str, stop: Any) -> None:
    """Link what waits, as the worker does, in a process of its own."""
    sealer = ChainLinker(url, audit_keys())
    sealer.start()
    stop.wait()
    sealer.stop()


def rate(url: str, way: str, n_writers: int, delay_ms: int, seconds: float) -> float:
    """Commits per second of some writers together."""
    context = multiprocessing.get_context("spawn")
    barrier, counts, stop = context.Barrier(n_writers), context.Queue(), context.Event()
    processes = [
        context.Process(target=writer, args=(url, way, delay_ms, seconds, barrier, counts)) for _ in range(n_writers)
    ]
    if way == "sealed":
        processes.append(context.Process(target=sealing, args=(url, stop)))
    for process in processes:
        process.start()
    total = sum(counts.get() for _ in range(n_writers))
    stop.set()
    for process in processes:
        process.join()
    return total / seconds


def measure(
    url: str, rounds: int, seconds: float, delays: tuple[int, ...] = DELAYS_MS, writers: tuple[int, int] = WRITERS
) -> dict[str, Any]:
    """Medians of interleaved rounds, and the longest tail that was seen at an end."""
    seen: dict[tuple[int, str, int], list[float]] = {}
    with Progress(transient=True) as bar:
        task = bar.add_task("writers", total=rounds * len(delays) * len(WAYS) * len(writers))
        for _ in range(rounds):
            for delay_ms in delays:
                for n_writers in writers:
                    for way in WAYS:
                        seen.setdefault((delay_ms, way, n_writers), []).append(
                            rate(url, way, n_writers, delay_ms, seconds)
                        )
                        bar.advance(task)
    return {
        f"{delay_ms} ms": {
            way: {str(n): statistics.median(seen[delay_ms, way, n]) for n in writers}
            | {"growth": statistics.median(_growth(seen, delay_ms, way, writers))}
            | {"share": statistics.median(_shares(seen, delay_ms, way, writers))}
            for way in WAYS
        }
        for delay_ms in delays
    }


_Seen = dict[tuple[int, str, int], list[float]]


def _growth(seen: _Seen, delay_ms: int, way: str, writers: tuple[int, int]) -> list[float]:
    few, many = (seen[delay_ms, way, n] for n in writers)
    return [after / before for before, after in zip(few, many, strict=True)]


def _shares(seen: _Seen, delay_ms: int, way: str, writers: tuple[int, int]) -> list[float]:
    pairs = zip(_growth(seen, delay_ms, way, writers), _growth(seen, delay_ms, "bare", writers), strict=True)
    return [own / bare for own, bare in pairs]


def show(figures: dict[str, Any]) -> None:
    print(f"{'commit delay':14}{'way':24}{'1 writer':>10}{'8 writers':>11}{'growth':>8}{'of bare':>9}")
    for delay, ways in figures.items():
        for way, row in ways.items():
            counts = "".join(f"{row[str(n)]:>{10 + index}.0f}" for index, n in enumerate(WRITERS))
            print(f"{delay:14}{way:24}{counts}{row['growth']:>8.2f}{row['share']:>9.2f}")
    sealed = figures["5 ms"]["sealed"]
    print(f"goals: {GOAL_SHARE} of the growth of bare inserts; {GOAL_GROWTH} times one writer with a delay of 5 ms")
    print(f"reached: {figures['0 ms']['sealed']['share']:.2f}; {sealed['growth']:.2f}")


def with_server(work: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """A PostgreSQL on disk that writes to it at each commit.

    Raises:
        SystemExit: there is none.
    """
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL is missing (Debian package postgresql)")
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        server = PostgresServer(binaries, Path(parent))
        try:
            # as it is started for tests nothing needs to reach the disk
            options = f"-p {server.port} -k {server.folder} -c listen_addresses=127.0.0.1"
            server.run(
                "pg_ctl", "-D", str(server.data), "-w", "-l", str(server.folder / "log"), "-o", options, "restart"
            )
            name = server.create()
            with psycopg.connect(server.url(name).replace("+psycopg", ""), autocommit=True) as connection:
                assert connection.execute("SHOW fsync").fetchone() == ("on",)
                connection.execute("CREATE TABLE notes (id bigserial PRIMARY KEY, content text NOT NULL)")
            settings = Settings(database_url=SecretStr(server.url(name)).get_secret_value())
            database = Database(settings.sqlalchemy_url, audit_keys())
            upgrade_schema(database.engine)
            claim_database(database, audit_keys())
            figures = work(settings.sqlalchemy_url)
            with database.read() as session:
                figures["waiting at the end"] = count_waiting_events(session).n_events
            database.engine.dispose()
            return figures
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two writers, shortly: whether it runs")
    options = parser.parse_args()
    if options.quick:
        with_server(lambda url: measure(url, 1, 0.3, (5,), (1, 2)))
        return
    figures = with_server(lambda url: measure(url, options.rounds, options.seconds))
    left = figures.pop("waiting at the end")
    show(figures)
    if options.save:
        out = Path(__file__).parent / "results" / f"{date.today()}_writers.json"
        document = {"rounds": options.rounds, "seconds": options.seconds, "commits_per_second": figures}
        out.write_text(json.dumps(document | {"left_waiting": left}, indent=1) + "\n")


if __name__ == "__main__":
    main()
