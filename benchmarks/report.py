"""What the page *Report* costs over many labelled cases on PostgreSQL: CPU of a request, and of the worker's job."""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import select

from app.accounts import people as auth
from app.audit.installation import claim_database
from app.context import ServiceContext
from app.database.migration import upgrade_schema
from app.database.tables import PublishedReportRow
from app.main import create_app
from app.metrics.snapshot import write_snapshot
from app.releases.queries import class_codes
from app.reports.publishing import renew_report
from app.settings import Settings
from benchmarks.snapshot import fill
from tests.support.postgres import PostgresServer, find_binaries
from tests.support.service import put_release

PAGES = ("/report", "/policy", "/report/numbers/triage.csv")


def cpu_seconds(call: Callable[[], Any]) -> float:
    """CPU time of this process, without the database's."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def measure(settings: Settings, release: Path, n: int) -> dict[str, float]:
    """CPU seconds by what was done."""
    app = create_app(settings)
    context: ServiceContext = app.state.context
    upgrade_schema(context.database.engine)
    claim_database(context.database, context.keys.audit)
    with context.database.write() as session:
        row = put_release(session, context.keys.audit, release, settings.releases_folder)
        release_id, classes = row.id, class_codes(row)
        auth.add_account(session, context.keys.audit, "lead", "admin")
        key = auth.add_key(session, context.keys.audit, "lead", [])[1]
    fill(context, release_id, classes, n)
    write_snapshot(context.database, context.folders, release_id, classes)
    found: dict[str, float] = {}
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as client:

        def get(path: str) -> None:
            client.get(path).raise_for_status()

        get("/help")
        found["the page before there is a report"] = cpu_seconds(lambda: get("/report"))
        with context.database.read() as session:
            asked = session.execute(select(PublishedReportRow.key)).scalar_one()
        found["the worker's job"] = cpu_seconds(lambda: renew_report(context, asked, context.database.write))
        for path in PAGES:
            found[f"GET {path}"] = statistics.median(cpu_seconds(lambda path=path: get(path)) for _ in range(7))  # type: ignore[misc]
    context.database.engine.dispose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", type=Path, help="a release folder, for example .secondread/demo/release")
    parser.add_argument("--cases", type=int, nargs="+", default=[200, 100_000])
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    arguments = parser.parse_args()
    binaries = find_binaries()
    if binaries is None:
        sys.exit("PostgreSQL is missing (Debian package postgresql)")
    server, figures = PostgresServer(binaries), {}
    try:
        for n in arguments.cases:
            with tempfile.TemporaryDirectory() as home:
                url = server.url(server.create())
                settings = Settings(home=Path(home), database_url=url, min_free_bytes=0, allowed_hosts=["testserver"])
                for name, value in measure(settings, arguments.release, n).items():
                    figures[f"{name}, {n:,} cases (CPU s)"] = round(value, 3)
    finally:
        server.stop()
    for name, value in figures.items():
        print(f"{value:10.3f}  {name}")
    if arguments.save:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_report.json"
        path.write_text(json.dumps({"machine": f"2 cores, {platform.machine()}", "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
