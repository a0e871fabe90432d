"""Years of simulated laboratories in which the champion's log score is looked at every morning.

Four classes. A network sees opinions through noise; what it says is calibrated, or twice as sure as it should be. From
a day on a share of the probability of each class may go to the next one.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from app.metrics.dataset import EvaluationDataset, stable_name_hash
from app.metrics.score_alarm import PatientUnits, split_units_by_site
from ml.distributions.families import softmax_probs
from ml.metrics.betting_monitor import N_REFERENCE, compute_capital_path, compute_rank_path, daily_stakes
from ml.util.arrays import FloatArray, IntArray

CLASSES, PER_DAY, YEAR = 4, 40, 365
_DAY, _START = 86_400, datetime(2025, 1, 1, tzinfo=UTC)
#: Sharpness of the network's probabilities, calibrated and twice as sure.
CALIBRATED, OVERCONFIDENT = 1.1, 2.2


@dataclass(frozen=True)
class World:
    """A laboratory.

    Attributes:
        name: in words.
        sharpness: of the network's probabilities.
        per_patient: cases of each patient, stored on one day.
        patient_spread: how far patients lie apart, standard deviation of the scores of the classes.
        sites: shares of the cases; each site's cases are harder than those of the one before.
        weeks_differ: by how much the cases of every other week are harder, share of the margin.
        slow: hard cases wait for days, nobody reads at weekends, one in a hundred is read when it is overdue.
    """

    name: str
    sharpness: float = CALIBRATED
    per_patient: int = 1
    patient_spread: float = 1.0
    sites: tuple[float, ...] = (1.0,)
    weeks_differ: float = 0.0
    slow: bool = False


WORLDS = (
    World("calibrated"),
    World("twice as sure as it should be", OVERCONFIDENT),
    World("three sites", OVERCONFIDENT, sites=(0.5, 0.3, 0.2)),
    World("patients of ten cells", OVERCONFIDENT, per_patient=10, patient_spread=2.0),
    World("harder cases every other week", OVERCONFIDENT, weeks_differ=0.1),
    World("much harder cases every other week", OVERCONFIDENT, weeks_differ=0.3),
    World("hard cases are read late", OVERCONFIDENT, slow=True),
)


def year(
    world: World,
    seed: int,
    days: int,
    changed_from: int | None = None,
    changed_sites: int = 99,
    moved: float = 0.1,
    per_day: int = PER_DAY,
) -> EvaluationDataset:
    """What a service would know of some days; the days count from ``_START``.

    Args:
        world: the laboratory.
        seed: of everything.
        days: how many.
        changed_from: day from which labels go to other classes; None for never.
        changed_sites: at how many of the sites, the last ones.
        moved: share of the probability of each class that then goes to the next one.
        per_day: cases of a day.
    """
    rng = np.random.default_rng([seed, 15])
    n = days * per_day
    day = np.arange(n) // per_day
    patient = np.arange(n) // world.per_patient
    site = rng.choice(len(world.sites), n // world.per_patient + 1, p=world.sites)[patient]
    scores = world.patient_spread * rng.normal(size=(patient[-1] + 1, CLASSES))[patient]
    scores += 2.2 * rng.normal(size=(n, CLASSES))
    harder = (1 - 0.08 * site) * (1 - world.weeks_differ * (day // 7 % 2))
    scores *= harder[:, None]
    opinions = softmax_probs(1.3 * scores)
    probs = softmax_probs(world.sharpness * (scores + 0.8 * rng.normal(size=scores.shape)))
    if changed_from is not None:
        here = (day >= changed_from) & (site >= len(world.sites) - changed_sites)
        opinions = np.where(here[:, None], (1 - moved) * opinions + moved * np.roll(opinions, 1, axis=1), opinions)
    label = (rng.random((n, 1)) > opinions.cumsum(axis=1)[:, :-1]).sum(axis=1)
    stored = _START.timestamp() + _DAY * day + 1_000.0 * (1 + np.arange(n) % per_day)
    numbers = np.array([stable_name_hash(f"site {k}") for k in range(len(world.sites))])
    many = len(world.sites) > 1
    return replace(
        EvaluationDataset.empty([str(k) for k in range(CLASSES)], n),
        case_id=np.random.default_rng([seed, 16]).integers(256, size=(n, 16), dtype=np.uint8),
        cluster=patient + 1,
        site=numbers[site] if many else np.zeros(n, dtype=np.int64),
        sites={int(number): f"site {k}" for k, number in enumerate(numbers)} if many else {},
        created_at=stored,
        class_probs=probs,
        first_class=label,
        first_answered_at=_answered(world, rng, stored, probs),
        first_due_at=stored + 7 * _DAY,
    )


def _answered(world: World, rng: np.random.Generator, stored: FloatArray, probs: FloatArray) -> FloatArray:
    """When each first read was answered, seconds since 1970."""
    if not world.slow:
        return stored + 600
    wait = rng.exponential(np.where(probs.max(axis=1) < 0.6, 2.0, 0.5))
    overdue = rng.random(len(stored)) < 0.01
    answered = stored + _DAY * np.where(overdue, 7 + 5 * rng.random(len(stored)), np.minimum(wait, 6.0))
    weekday = (answered // _DAY + 3) % 7  # 1 January 1970 was a Thursday
    return np.asarray(answered + _DAY * np.where(weekday >= 5, 7 - weekday, 0))


def series(columns: EvaluationDataset, days: int) -> dict[str | None, PatientUnits]:
    """Units of all and of each site, at the end of the last day."""
    at = datetime.fromtimestamp(_START.timestamp() + (days + 1) * _DAY, UTC)
    return split_units_by_site(columns, _START, at)


def alarm_days(found: dict[str | None, PatientUnits], *, on_loss: bool = False) -> list[int | None]:
    """Day of the alarm of each series, counted from the first day of the laboratory; None without one.

    ``on_loss`` is the alarm of before, which bets on the loss.
    """
    stakes = daily_stakes([units.day for units in found.values()])
    days = [
        compute_capital_path(units.loss, units.day, stake).alarm_day()
        if on_loss
        else compute_rank_path(units.surprise, units.day, stake, units.n_answers).alarm_day()
        for units, stake in zip(found.values(), stakes, strict=True)
    ]
    return [None if day is None else day - int(_START.timestamp()) // _DAY for day in days]


def z_test_day(units: PatientUnits, every: int, tolerance: float) -> int | None:
    """Day of the first of many z tests at .05 that finds the later units worse than the reference period.

    Args:
        units: of one series; of few, the first quarter is the reference period.
        every: days from one look to the next.
        tolerance: nats.
    """
    begin = units.day - int(_START.timestamp()) // _DAY
    n_reference = min(N_REFERENCE, len(begin) // 4)
    reference, later, day = units.loss[:n_reference], units.loss[n_reference:], begin[n_reference:]
    n = np.arange(1, later.size + 1)
    mean, square = np.cumsum(later) / n, np.cumsum(later**2) / n
    error = np.sqrt(reference.var() / n_reference + (square - mean**2) / n)
    last_of_day: npt.NDArray[np.bool_] = np.append(np.diff(day) > 0, [True])
    look = last_of_day & (day % every == 0) & (n >= 30)
    rung: IntArray = np.flatnonzero(look & (mean - reference.mean() - tolerance > 1.645 * error))
    return int(day[rung[0]]) if rung.size else None
