"""Quality of a laboratory's specimens: what the last night found, and shares by day against expectation."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from typing import Any, Literal

import numpy as np
from scipy.special import expit, logit
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.database.tables import Specimen, SpecimenKnowledge, SpecimenResult
from ml.metrics.jackknife import binomial_interval
from ml.specimens.laboratory import FEWEST_SPECIMENS

#: Share whose reports by several annotators are the example.
EXAMPLE_SHARE = 0.1
# days of a reference if too few specimens came before those that are shown, and specimens that are read, the newest
_REFERENCE_DAYS, _READ = 20, 5000
_WARNING, _OUT = 2.0, 3.0


@dataclass(frozen=True)
class CoveredCount:
    """How many intervals cover the truth, with the exact interval of their share; of a band of the true share."""

    n_specimens: int
    n_covered: int
    low: float = 0.0
    high: float = 1.0

    @property
    def interval(self) -> tuple[float, float] | tuple[None, None]:
        """Clopper and Pearson's limits; none without specimens."""
        if not self.n_specimens:
            return None, None
        ends = binomial_interval(np.array([self.n_covered / self.n_specimens]), np.array([self.n_specimens]))
        return float(ends[0][0]), float(ends[1][0])


@dataclass(frozen=True)
class GroupQuality:
    """What completely read specimens and double reads taught about a reporting group."""

    group: str
    covered: CoveredCount
    bands: list[CoveredCount]
    # None below 20 specimens
    overdispersion: float | None
    shift: float | None
    # σ_b and its limits
    tilt: float | None
    tilt_interval: tuple[float, float] | None

    @property
    def reported(self) -> tuple[float, float]:
        """Shares between which two thirds of the annotators report that of the example."""
        low, high = expit(logit(EXAMPLE_SHARE) + np.array([-1, 1]) * (self.tilt or 0.0))
        return float(low), float(high)


@dataclass(frozen=True)
class LearnedQuality:
    """What the last change of what specimens teach found, under the predictions of a release."""

    at: datetime
    release_id: uuid.UUID
    groups: list[GroupQuality]


def learned_quality(session: Session) -> LearnedQuality | None:
    """The newest check by the worker; None before the first."""
    newest = select(SpecimenKnowledge).order_by(SpecimenKnowledge.version.desc()).limit(1)
    row = session.execute(newest).scalar_one_or_none()
    groups = [] if row is None else [_group_quality(known) for known in row.groups.values() if "check" in known]
    return LearnedQuality(row.created_at, row.release_id, groups) if row is not None and groups else None


def _group_quality(known: dict[str, Any]) -> GroupQuality:
    check, limits = known["check"], known["tilt_interval"]
    enough = check["n_specimens"] >= FEWEST_SPECIMENS
    return GroupQuality(
        group=check["group"],
        covered=CoveredCount(check["n_specimens"], check["n_covered"]),
        bands=[CoveredCount(b["n_specimens"], b["n_covered"], b["low"], b["high"]) for b in check["by_share"]],
        overdispersion=check["overdispersion"] if enough else None,
        shift=check["shift"] if enough else None,
        tilt=known["tilt"],
        tilt_interval=None if limits is None else (limits[0], limits[1]),
    )


@dataclass(frozen=True)
class ReferenceShares:
    """Shares that days are compared with."""

    mean: float
    sd: float
    n_specimens: int
    first: date
    last: date
    # whether all of them came before the days that are shown
    before: bool


@dataclass(frozen=True)
class DayShare:
    """Mean share of a day's specimens, and how many standard deviations it is from the expected one."""

    day: date
    n_specimens: int
    mean: float
    z: float | None = None
    result: Literal["", "warning", "1-3s", "2-2s"] = ""


@dataclass(frozen=True)
class DailyShares:
    """Shares of a reporting group by day, the newest last."""

    first: date
    last: date
    sites: list[str]
    groups: list[str]
    group: str | None = None
    n_specimens: int = 0
    reference: ReferenceShares | None = None
    days: list[DayShare] = field(default_factory=list)


def daily_shares(
    session: Session, now: datetime, zone: tzinfo, n_days: int, *, group: str | None = None, site: str | None = None
) -> DailyShares:
    """Shares of the slides by day of collection, else of receipt; of the first group unless one is named."""
    at = func.coalesce(Specimen.collected_at, Specimen.created_at)
    live = Specimen.erased_at.is_(None)
    sites = select(Specimen.site).where(live, Specimen.site.is_not(None)).distinct().order_by(Specimen.site)
    found = select(at, SpecimenResult.document["groups"]).where(live, at <= now)
    found = found.join(SpecimenResult, SpecimenResult.specimen_id == Specimen.id).order_by(at.desc()).limit(_READ)
    rows = session.execute(found.where(Specimen.site == site) if site else found).all()
    named = next(([one["group"] for one in row[1]] for row in rows if row[1]), [])
    chosen = group if group in named else next(iter(named), None)
    shares = [
        (row[0].astimezone(zone).date(), float(one["slide"]["share"]))
        for row in reversed(rows)
        for one in row[1]
        if one["group"] == chosen
    ]
    last = now.astimezone(zone).date()
    first = last - timedelta(days=n_days - 1)
    reference = choose_reference(shares, first)
    days = [row for row in compare_days(shares, reference) if row.day >= first]
    known_sites = [one for one in session.execute(sites).scalars() if one]
    return DailyShares(first, last, known_sites, named, chosen, len(shares), reference, days)


def choose_reference(shares: Sequence[tuple[date, float]], first: date) -> ReferenceShares | None:
    """Specimens before the first day that is shown, else those of the first 20 days; None below 20 specimens."""
    chosen = [row for row in shares if row[0] < first]
    before = len(chosen) >= FEWEST_SPECIMENS
    if not before:
        earliest = sorted({day for day, _ in shares})[:_REFERENCE_DAYS]
        chosen = [row for row in shares if row[0] in earliest]
    if len(chosen) < FEWEST_SPECIMENS:
        return None
    days, values = [day for day, _ in chosen], np.array([share for _, share in chosen])
    return ReferenceShares(
        float(values.mean()), float(values.std(ddof=1)), len(chosen), min(days), max(days), before=before
    )


def compare_days(shares: Sequence[tuple[date, float]], reference: ReferenceShares | None) -> list[DayShare]:
    """Every day with specimens, by Westgard's rules 1-3s and 2-2s; z = (mean − expected) √n / SD."""
    of_day: dict[date, list[float]] = defaultdict(list)
    for day, share in shares:
        of_day[day].append(share)
    days: list[DayShare] = []
    for day, values in sorted(of_day.items()):
        mean, n = float(np.mean(values)), len(values)
        if reference is None or reference.sd == 0:
            days.append(DayShare(day, n, mean))
            continue
        z = (mean - reference.mean) * n**0.5 / reference.sd
        z_before = days[-1].z or 0.0 if days else 0.0
        result: Literal["", "warning", "1-3s", "2-2s"] = "warning" if abs(z) > _WARNING else ""
        if abs(z) > _OUT:
            result = "1-3s"
        elif min(z, z_before) > _WARNING or max(z, z_before) < -_WARNING:
            result = "2-2s"
        days.append(DayShare(day, n, mean, z, result))
    return days
