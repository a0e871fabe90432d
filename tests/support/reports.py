"""The report's page as people see it once the worker has made it."""

from typing import Any

from sqlalchemy import select

from app.database.tables import PublishedReportRow
from app.reports.publishing import renew_report
from tests.support.service import Service


def make_reports(service: Service) -> None:
    """Make every report that was asked for, as the worker does."""
    with service.context.database.read() as session:
        keys = list(session.execute(select(PublishedReportRow.key)).scalars())
    for key in keys:
        renew_report(service.context, key, service.context.database.write)


def report_page(service: Service, who: str = "viewer", path: str = "/report", **params: Any) -> str:
    """The page after the worker has made what it asks for."""
    first = service.get(who, path, params=params)
    assert first.status_code == 200, first.text
    make_reports(service)
    made = service.get(who, path, params=params)
    assert made.status_code == 200, made.text
    return str(made.text)
