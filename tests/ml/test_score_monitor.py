"""The alarm on the log score: a fair game under the null, the same however it is computed, and it does ring."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.metrics import betting_monitor
from ml.metrics.betting_monitor import (
    LARGEST,
    LEVEL,
    N_FIRST,
    CapitalPath,
    clipped_log_loss,
    compute_capital_path,
    daily_stakes,
)
from ml.util.arrays import FloatArray, IntArray


def day_by_day(n: int, per_day: int) -> IntArray:
    return np.arange(n) // per_day


def one_by_one(
    loss: FloatArray, day: IntArray, stake: FloatArray, low: float, high: float, tolerance: float, n_reference: int
) -> list[float]:
    """Capital at the end of each day, with one pot for each day's stake and share, unit by unit."""
    rising, falling = betting_monitor._RISING, betting_monitor._FALLING
    days, paid = sorted(set(day.tolist())), []
    reference, pots, seen = np.ones(len(falling)), [], 0
    for number, today in enumerate(days):
        pots.append(np.full(len(rising), stake[number] * reference.mean() / len(rising)))
        for raw in loss[day == today]:
            value = round(raw / 0.01) * 0.01
            pots = [pot * (1 - rising + rising * value / (high + tolerance)) for pot in pots]
            if seen < n_reference:
                reference = reference * (1 - falling + falling * (4.61 - value) / (4.61 - low))
            seen += 1
        paid.append(sum(float(pot.sum()) for pot in pots))
    return paid


@st.composite
def series(draw: st.DrawFn) -> tuple[FloatArray, IntArray, FloatArray]:
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n = draw(st.integers(1, 60))
    day = np.sort(rng.integers(0, draw(st.integers(1, 30)), n))
    loss = np.minimum(rng.gamma(draw(st.floats(0.1, 2)), 1.0, n), LARGEST)
    stake = rng.random(np.unique(day).size) * (rng.random(np.unique(day).size) < 0.8)
    return loss, day, stake


@given(series(), st.floats(0, 0.3), st.integers(0, 40))
@settings(max_examples=6, deadline=None)
def test_it_is_what_pots_of_each_days_stake_give_unit_by_unit(
    world: tuple[FloatArray, IntArray, FloatArray], tolerance: float, n_reference: int
) -> None:
    loss, day, stake = world
    path = compute_capital_path(loss, day, stake, tolerance=tolerance, n_reference=n_reference)
    cells = zip(*betting_monitor._cells(loss), strict=True)
    pots = [one_by_one(loss, day, stake, low, high, tolerance, n_reference) for low, high in list(cells)[::10]]
    assert (np.exp(path.log_capital) <= np.min(pots, axis=0) * (1 + 1e-9)).all()
    known = compute_capital_path(loss, day, stake, tolerance=tolerance, n_reference=n_reference, mean=0.8)
    expected = one_by_one(loss, day, stake, 0.8, 0.8, tolerance, n_reference)
    np.testing.assert_allclose(np.exp(known.log_capital), expected, rtol=1e-9)
    assert known.n_units.tolist() == [int((day <= today).sum()) for today in np.unique(day)]


@given(series(), st.floats(0.011, 4.59), st.integers(0, 40))
@settings(max_examples=6, deadline=None)
def test_not_to_know_the_reference_never_pays(
    world: tuple[FloatArray, IntArray, FloatArray], mean: float, n_reference: int
) -> None:
    """The capital that counts is at most that of whoever knows the mean, whatever it is."""
    loss, day, stake = world
    unknown = compute_capital_path(loss, day, stake, n_reference=n_reference).log_capital
    assert (
        unknown <= compute_capital_path(loss, day, stake, n_reference=n_reference, mean=mean).log_capital + 1e-9
    ).all()


@pytest.mark.parametrize(("tolerance", "fair"), [(0.0, True), (0.2, False)])
def test_under_the_null_nobody_wins_on_average(tolerance: float, *, fair: bool) -> None:
    """All 1,024 outcomes of ten units, each with its probability: the mean capital is what was put in, or less."""
    p, n, n_reference = 0.2, 10, 4
    day, stake = day_by_day(n, 2), np.array([0.0, 0.3, 0.1, 0.0, 0.6])
    mean = np.zeros(5)
    for outcome in product([0, 1], repeat=n):
        loss = np.array(outcome) * LARGEST
        path = compute_capital_path(loss, day, stake, tolerance=tolerance, n_reference=n_reference, mean=4.61 * p)
        mean += p ** sum(outcome) * (1 - p) ** (n - sum(outcome)) * np.exp(path.log_capital)
    if fair:
        np.testing.assert_allclose(mean, stake.cumsum(), rtol=1e-9)
    else:
        assert (mean[1:] < stake.cumsum()[1:]).all()


def test_the_capital_reaches_its_threshold_in_no_more_runs_than_the_level() -> None:
    """A game over 40 days with the level .3, and the reference known: Ville's inequality, with the error of 1,500."""
    rng = np.random.default_rng(0)
    day, stake, level, runs = day_by_day(400, 10), np.full(40, 1 / 40), 0.3, 1500
    rung = 0
    for _ in range(runs):
        loss = np.where(rng.random(400) < 0.1, 4.61, 0.1).clip(max=LARGEST)
        rung += (
            compute_capital_path(loss, day, stake, tolerance=0, n_reference=0, mean=0.551).alarm_day(level) is not None
        )
    assert rung / runs <= level + 3 * np.sqrt(level * (1 - level) / runs)
    assert rung > 0


@given(series(), st.integers(0, 40), st.integers(0, 59), st.floats(0, LARGEST))
@settings(max_examples=6, deadline=None)
def test_a_larger_loss_after_the_reference_period_never_lowers_the_capital(
    world: tuple[FloatArray, IntArray, FloatArray], n_reference: int, which: int, larger: float
) -> None:
    loss, day, stake = world
    n_reference = max(n_reference, N_FIRST)  # the cells follow from the first units
    worse = loss.copy()
    if n_reference <= which < len(loss):
        worse[which] = max(worse[which], larger)
    before, after = (
        compute_capital_path(values, day, stake, n_reference=n_reference).log_capital for values in (loss, worse)
    )
    assert (after >= before - 1e-9).all()


def test_what_comes_later_changes_nothing_that_was_said() -> None:
    rng = np.random.default_rng(1)
    loss, day = rng.gamma(0.5, 1, 900).clip(max=LARGEST), day_by_day(900, 7)
    whole = compute_capital_path(loss, day, daily_stakes([day])[0])
    for n in (7, 49, 56, 70, 350, 700):
        part = compute_capital_path(loss[:n], day[:n], daily_stakes([day[:n]])[0])
        np.testing.assert_allclose(part.log_capital, whole.log_capital[: n // 7], rtol=1e-9)


def brute_force_stakes(series: list[IntArray]) -> tuple[list[dict[int, float]], float]:
    """Day by day: every known series gets its part, and puts it in with its next units."""
    stakes: list[dict[int, float]] = [{} for _ in series]
    waiting, paid = [0.0] * len(series), 0.0
    for today in range(max(int(days.max(initial=0)) for days in series) + 1):
        known = [number for number, days in enumerate(series) if (days < today).sum() >= N_FIRST]
        for number in known:
            waiting[number] += 1 / 365 / len(known)
            paid += 1 / 365 / len(known)
        for number, days in enumerate(series):
            if today in days:
                stakes[number][today], waiting[number] = waiting[number], 0.0
    return stakes, paid


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
@settings(max_examples=6, deadline=None)
def test_a_day_gives_one_stake_that_the_series_of_that_day_share(seeds: list[int]) -> None:
    series = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        first, n = int(rng.integers(0, 60)), int(rng.integers(0, 200))
        series.append(np.sort(rng.integers(first, first + 50, n)))
    expected, paid = brute_force_stakes(series)
    found = daily_stakes(series)
    for days, stakes, wanted in zip(series, found, expected, strict=True):
        np.testing.assert_allclose(stakes, [wanted[int(day)] for day in np.unique(days)], atol=1e-12)
    assert sum(float(stakes.sum()) for stakes in found) <= paid + 1e-12 <= (112 / 365) + 1e-9


def test_no_unit_and_one_unit_are_a_path_without_an_alarm() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert daily_stakes([nothing])[0].size == 0
    assert len(compute_capital_path(np.zeros(0), nothing, np.zeros(0)).day) == 0
    one = np.array([17])
    path = compute_capital_path(np.array([LARGEST]), one, daily_stakes([one])[0])
    assert (path.day.tolist(), path.n_units.tolist(), path.alarm_day()) == ([17], [1], None)
    assert path.log_capital.tolist() == [-np.inf]


def test_bad_input_is_refused_and_named() -> None:
    day = np.array([1, 2])
    with pytest.raises(ValueError, match=r"loss must lie in \[0, 4\.6"):
        compute_capital_path(np.array([1.0, 5.0]), day, np.zeros(2))
    with pytest.raises(ValueError, match="order of their days"):
        compute_capital_path(np.ones(2), day[::-1], np.zeros(2))
    with pytest.raises(ValueError, match="2 days, and 1 stakes"):
        compute_capital_path(np.ones(2), day, np.zeros(1))


def test_the_loss_is_the_log_of_the_probability_of_the_label_and_bounded() -> None:
    probs = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.004, 0.996, 0.0]])
    found = clipped_log_loss(probs, np.array([1, 0, 0]))
    np.testing.assert_allclose(found, [np.log(2), 0.0, LARGEST])


def test_a_change_rings_and_the_same_score_does_not() -> None:
    """Forty cells a day; after 40 days a tenth of the labels goes to improbable classes."""
    rng = np.random.default_rng(5)
    day = day_by_day(3600, 40)
    loss = np.where(rng.random(3600) < 0.1, 3.0, 0.15)
    assert path_of(loss, day).alarm_day() is None
    worse = np.where((day >= 40) & (rng.random(3600) < 0.1), 3.0, loss)
    found = path_of(worse, day).alarm_day()
    assert found is not None
    assert 40 <= found <= 60
    assert path_of(worse, day).alarm_day(LEVEL / 1000) > found


def path_of(loss: FloatArray, day: IntArray) -> CapitalPath:
    return compute_capital_path(loss, day, daily_stakes([day])[0])
