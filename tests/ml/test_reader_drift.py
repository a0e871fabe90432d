"""Whether an annotator has changed: a band that may be looked at every week, and an alarm."""

import numpy as np
import pytest
import scipy.stats

from ml.annotators.drift import drift_paths, excess_log_loss, weekly_bands
from ml.metrics.betting_monitor import FLOOR, LARGEST
from ml.util.arrays import FloatArray, IntArray

K, PER_DAY = 8, 15


def year_of(
    rng: np.random.Generator, days: int, *, careless: float = 0.0, from_day: int = 0
) -> tuple[FloatArray, IntArray]:
    """Excess losses of who answers as predicted, and from a day on takes a class at random now and then."""
    n = days * PER_DAY
    probs, day = rng.dirichlet(np.full(K, 0.3), n), np.repeat(np.arange(days), PER_DAY)
    label = (rng.random(n)[:, None] > probs.cumsum(axis=1)).sum(axis=1).clip(0, K - 1)
    label = np.where((rng.random(n) < careless) & (day >= from_day), rng.integers(K, size=n), label)
    return excess_log_loss(probs, label), day


def test_the_excess_is_zero_on_average_for_somebody_who_answers_as_predicted_and_stays_in_its_range() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(K, 0.2), 50)
    every = np.stack([excess_log_loss(probs, np.full(50, label)) for label in range(K)], axis=1)
    assert (probs * every).sum(axis=1) == pytest.approx(0, abs=1e-12)
    assert every.max() <= LARGEST
    assert every.min() >= -np.log(K)
    certain = excess_log_loss(np.eye(K)[:1], np.array([1]))
    assert certain == pytest.approx(-np.log(FLOOR))


def test_the_bands_of_all_weeks_contain_their_expectation_together_and_are_no_band_of_everything() -> None:
    """Of 40 half-years at level .5 at most half may have a week outside; a band is at most 2.5 times Student.s."""
    rng, missed = np.random.default_rng(1), 0
    for _ in range(40):
        excess, day = year_of(rng, 56)
        bands = weekly_bands(excess, day // 7, K, level=0.5)
        missed += any(not band.low <= 0 <= band.high for band in bands)
        first = excess[day < 7]
        student = scipy.stats.t.ppf(1 - 0.25 / 2, len(first) - 1) * first.std(ddof=1) / np.sqrt(len(first))
        assert bands[0].high - bands[0].low < 2.5 * 2 * student
    assert missed <= 0.5 * 40


def test_bands_contain_the_mean_are_narrower_with_more_units_and_wider_from_week_to_week() -> None:
    rng = np.random.default_rng(2)
    excess, day = year_of(rng, 28)
    for band in weekly_bands(excess, day // 7, K):
        assert band.low < band.mean < band.high
    (all_in_one,) = weekly_bands(excess, np.zeros(len(excess), dtype=np.int64), K)
    (half,) = weekly_bands(excess[: len(excess) // 4], np.zeros(len(excess) // 4, dtype=np.int64), K)
    assert all_in_one.high - all_in_one.low < half.high - half.low
    same = np.tile(excess[:105], 5)
    widths = [band.high - band.low for band in weekly_bands(same, np.repeat(np.arange(5), 105), K)]
    assert (np.diff(widths) >= 0).all()
    assert widths[-1] > widths[0]


def test_who_becomes_careless_is_told_and_who_does_not_is_left_alone() -> None:
    """One of five takes a class at random in a fifth of the answers from day 60 on."""
    rng = np.random.default_rng(3)
    series = [year_of(rng, 150, careless=0.2 * (who == 2), from_day=60) for who in range(5)]
    paths = drift_paths([excess for excess, _ in series], [day for _, day in series], K)
    alarms = [path.alarm_day() for path in paths]
    assert [day is None for day in alarms] == [True, True, False, True, True]
    assert alarms[2] is not None
    assert 60 <= alarms[2] < 110


def test_habits_of_their_own_are_no_drift() -> None:
    """Who is careless from the first day on has an excess in each week and no alarm."""
    excess, day = year_of(np.random.default_rng(4), 150, careless=0.3)
    (path,) = drift_paths([excess], [day], K)
    assert path.alarm_day() is None
    assert weekly_bands(excess, day // 7, K)[0].low > 0


def test_what_was_seen_stays_when_weeks_are_added() -> None:
    excess, day = year_of(np.random.default_rng(5), 70, careless=0.3, from_day=40)
    early = np.flatnonzero(day < 49)
    assert weekly_bands(excess, day // 7, K)[:7] == weekly_bands(excess[early], day[early] // 7, K)
    (before,), (after,) = (drift_paths([excess[rows]], [day[rows]], K) for rows in (early, slice(None)))
    np.testing.assert_allclose(after.log_capital[: len(before.day)], before.log_capital)


@pytest.mark.parametrize("excess", [[-3.0], [9.0], [np.nan]])
def test_an_excess_out_of_its_range_is_refused(excess: list[float]) -> None:
    with pytest.raises(ValueError, match="excess"):
        weekly_bands(np.array(excess), np.zeros(1, dtype=np.int64), K)


def test_weeks_that_go_back_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        weekly_bands(np.zeros(2), np.array([1, 0]), K)
