"""Quality of specimens: coverage, annotators, and shares by day as a chart like Levey and Jennings'."""

from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from app.accounts.service import GuardedRoute
from app.http.languages import gettext
from app.http.models import PageText
from app.releases.service import champion_since, class_names, existing_release
from app.reports.service import AxisTick, PlotMark, ReportPlot, connect_neighbours, format_day
from app.specimens.service import DailyShares, coverage_limits, daily_shares, learned_quality, reported_shares
from app.web.filters import change, probability
from app.web.page import ViewerPage

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
# standard deviations that the chart shows; days further out are drawn at its edge
_TOP = 4.5
_LEVELS = ((0, "expected"), (-2, "warning"), (2, "warning"), (-3, "out"), (3, "out"))


@router.get("/report/specimens")
def show_specimen_quality(
    page: ViewerPage,
    group: Annotated[PageText, Query(max_length=200)] = "",
    site: Annotated[PageText, Query(max_length=200)] = "",
    days: Annotated[Literal["30", "90"], Query()] = "30",
) -> Response:
    """Whether specimens are as they should be: their intervals, their annotators and their days."""
    learned = learned_quality(page.session)
    daily = daily_shares(page.session, page.context.clock(), page.zone, int(days), group=group, site=site)
    release = None if learned is None else existing_release(page.session, learned.release_id).name
    names = class_names(page.session) if champion_since(page.session) else {}
    return page.render(
        "specimen_quality.html",
        learned=learned,
        release=release,
        names=names,
        shown=daily,
        asked={"site": site, "days": days},
        plot=draw_days(daily),
        limits=coverage_limits,
        reported=reported_shares,
    )


def draw_days(shown: DailyShares) -> ReportPlot:
    """Standard deviations of each day from the expected share, with lines at 2 and 3."""
    width = (shown.last - shown.first).days + 1
    marks = []
    for row in shown.days:
        if row.z is not None:
            words = {"share": probability(100 * row.mean, 1), "z": change(row.z, 1), "n": row.n_specimens}
            title = gettext("%(day)s: mean share %(share)s%%, %(z)s SD, n = %(n)s", day=row.day, **words)
            across = 100 * ((row.day - shown.first).days + 0.5) / width
            marks.append(PlotMark(across, _down(row.z), None, None, title, kind=row.result))
    weeks = range(0, width, 7 if width <= 31 else 21)
    return ReportPlot(
        x_title=gettext("day"),
        y_title=gettext("standard deviations from the expected share"),
        x_ticks=[AxisTick(100 * (n + 0.5) / width, format_day(shown.first + timedelta(days=n))) for n in weeks],
        y_ticks=[AxisTick(_down(z), f"{change(z, 0)} SD" if z else "0") for z in range(-3, 4)],
        marks=marks,
        segments=connect_neighbours(marks),
        levels=[AxisTick(_down(z), kind) for z, kind in _LEVELS],
    )


def _down(z: float) -> float:
    return 50.0 - 50.0 * max(-_TOP, min(_TOP, z)) / _TOP
