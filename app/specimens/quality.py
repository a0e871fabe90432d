"""Quality of a laboratory's specimens: what the last night found, and shares by day against expectation."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

import numpy as np
from scipy.special import expit, logit
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.database.tables import Specimen, SpecimenKnowledge, SpecimenResult
from ml.metrics.jackknife import binomial_interval
from ml.specimens.laboratory import FEWEST_SPECIMENS

# days of a reference if too few specimens came before those that are shown, and specimens that are read, the newest
_REFERENCE_DAYS, _READ = 20, 5000


def learned_quality(session: Session) -> SpecimenKnowledge | None:
    """The newest check by the worker; None before the first."""
    newest = select(SpecimenKnowledge).order_by(SpecimenKnowledge.version.desc()).limit(1)
    row = session.execute(newest).scalar_one_or_none()
    return row if row is not None and any("check" in group for group in row.groups.values()) else None


def coverage_limits(n_covered: int, n_specimens: int) -> tuple[float, float] | tuple[None, None]:
    """Clopper and Pearson's limits of the share of intervals that cover; none without specimens."""
    if not n_specimens:
        return None, None
    low, high = binomial_interval(np.array([n_covered / n_specimens]), np.array([n_specimens]))
    return float(low[0]), float(high[0])


def reported_shares(true_share: float, tilt: float) -> tuple[float, float]:
    """Shares between which two thirds of the annotators report a true one: a standard deviation to either side."""
    low, high = expit(logit(true_share) + np.array([-tilt, tilt]))
    return float(low), float(high)


@dataclass(frozen=True)
class ReferenceShares:
    """Shares that days are compared with; ``before`` if all of them came before the days that are shown."""

    mean: float
    sd: float
    n_specimens: int
    first: date
    last: date
    before: bool


@dataclass(frozen=True)
class DayShare:
    """Mean share of a day's specimens, and how many standard deviations it is from the expected one."""

    day: date
    n_specimens: int
    mean: float
    z: float | None = None
    # "warning", "out 1-3s" or "out 2-2s"
    result: str = ""


@dataclass(frozen=True)
class DailyShares:
    """Shares of a reporting group by day, the newest last."""

    first: date
    last: date
    sites: list[str]
    groups: list[str]
    group: str | None
    n_specimens: int
    reference: ReferenceShares | None
    days: list[DayShare]


def daily_shares(
    session: Session, now: datetime, zone: tzinfo, n_days: int, *, group: str | None = None, site: str | None = None
) -> DailyShares:
    """Shares of the slides by day of collection, else of receipt; of the first group unless one is named."""
    at, live = func.coalesce(Specimen.collected_at, Specimen.created_at), Specimen.erased_at.is_(None)
    sites = session.execute(select(Specimen.site).where(live).distinct().order_by(Specimen.site)).scalars()
    earliest = datetime(1, 1, 2, tzinfo=UTC)  # in some time zones no moment before has a day
    read = select(at, SpecimenResult.document["groups"]).where(live, at.between(earliest, now))
    read = read.join(SpecimenResult, SpecimenResult.specimen_id == Specimen.id).order_by(at.desc()).limit(_READ)
    rows = session.execute(read.where(Specimen.site == site) if site else read).all()
    named = next(([one["group"] for one in row[1]] for row in rows if row[1]), [])
    chosen = group if group in named else next(iter(named), None)
    of_group = [(row[0].astimezone(zone).date(), one) for row in rows for one in row[1] if one["group"] == chosen]
    shares = [(day, float(one["slide"]["share"])) for day, one in of_group]
    last = now.astimezone(zone).date()
    first = last - timedelta(days=n_days - 1)
    reference = choose_reference(shares, first)
    days = [row for row in compare_days(shares, reference) if row.day >= first]
    return DailyShares(first, last, [one for one in sites if one], named, chosen, len(shares), reference, days)


def choose_reference(shares: Sequence[tuple[date, float]], first: date) -> ReferenceShares | None:
    """Specimens before the first day that is shown, else those of the first 20 days; None below 20 specimens."""
    chosen = [row for row in shares if row[0] < first]
    before = len(chosen) >= FEWEST_SPECIMENS
    if not before:
        earliest = sorted({day for day, _ in shares})[:_REFERENCE_DAYS]
        chosen = [row for row in shares if row[0] in earliest]
    if len(chosen) < FEWEST_SPECIMENS:
        return None
    days, values = zip(*chosen, strict=True)
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    return ReferenceShares(mean, sd, len(chosen), min(days), max(days), before)


def compare_days(shares: Sequence[tuple[date, float]], reference: ReferenceShares | None) -> list[DayShare]:
    """Every day with specimens, by Westgard's rules 1-3s and 2-2s; z = (mean − expected) √n / SD."""
    of_day: dict[date, list[float]] = defaultdict(list)
    for day, share in shares:
        of_day[day].append(share)
    days, before = [], 0.0
    for day, values in sorted(of_day.items()):
        row = DayShare(day, len(values), float(np.mean(values)))
        if reference is not None and reference.sd > 0:
            z = (row.mean - reference.mean) * row.n_specimens**0.5 / reference.sd
            in_a_row = min(z, before) > 2 or max(z, before) < -2
            result = "out 1-3s" if abs(z) > 3 else "out 2-2s" if in_a_row else "warning" if abs(z) > 2 else ""
            row, before = DayShare(day, row.n_specimens, row.mean, z, result), z
        days.append(row)
    return days
