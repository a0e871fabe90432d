"""The alarm on the log score, and the sets for the next answer."""

from itertools import permutations, product
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.conformal import answer_scores, answer_sets, calibrate, fewest_patients, judge_sets, patient_masses, scores
from ml.metrics import betting_monitor
from ml.metrics.betting_monitor import (
    LARGEST,
    LARGEST_SURPRISE,
    N_FIRST,
    clipped_log_loss,
    compute_capital_path,
    compute_rank_path,
    conformal_ranks,
    daily_stakes,
    label_surprise,
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


def test_the_place_of_a_label_from_the_predictive_distribution_is_uniform() -> None:
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    lots = (np.arange(200) + 0.5) / 200
    label, lot = np.repeat(np.arange(4), 200), np.tile(lots, 4)
    place = 1 - np.exp(-label_surprise(np.tile(probs, (800, 1)), label, lot))
    weight = np.repeat(probs / 200, 200)
    for limit in np.arange(0.05, 1, 0.05):
        assert weight[place <= limit].sum() == pytest.approx(limit, abs=0.005)
    assert (np.diff(place.reshape(4, 200).mean(axis=1)) > 0).all()
    certain = label_surprise(np.tile([1.0, 0.0], (2, 1)), np.array([0, 1]), np.array([0.5, 0.5]))
    np.testing.assert_allclose(certain, [np.log(2), LARGEST_SURPRISE])


def test_without_a_change_every_order_has_ranks_of_its_own_and_bets_on_them_are_fair() -> None:
    """So the ranks are independent and uniform: a unit falls into each of the places so far equally often."""
    orders = [np.floor(conformal_ranks(np.array(order)) * np.arange(1, 6)) for order in permutations(range(5))]
    assert len({tuple(order) for order in orders}) == 120
    surprises = np.random.default_rng(0).exponential(size=700).clip(max=LARGEST_SURPRISE)
    level, ranks = np.rint(surprises / 0.02), conformal_ranks(surprises)
    for number in (0, 1, 255, 256, 300, 699):  # ties are anywhere in their range
        so_far = level[: number + 1]
        assert (so_far < level[number]).mean() <= ranks[number] < (so_far <= level[number]).mean()
    every = (np.arange(100) + 0.5) / 100
    growth = [rank_growth(rank) for rank in every]
    np.testing.assert_allclose(np.mean(growth, axis=0), 1, rtol=1e-9)
    assert (np.diff(growth, axis=0) >= 0).all()
    assert np.max(growth) < 20  # no single label raises an alarm


def rank_growth(rank: float) -> FloatArray:
    """Growth of each bet by a unit of a rank: the mean density of its cell."""
    low, high = np.floor(100 * rank) / 100, np.floor(100 * rank) / 100 + 0.01
    shares, powers = betting_monitor._MIXED[:, None], betting_monitor._POWERS
    return np.ravel(1 - shares + shares * 100 * ((1 - low) ** powers - np.maximum(1 - high, 0.0) ** powers))


@given(series())
@settings(max_examples=6, deadline=None)
def test_the_capital_on_ranks_is_what_pots_of_each_days_stake_give_unit_by_unit(
    world: tuple[FloatArray, IntArray, FloatArray],
) -> None:
    surprise, day, stake = world
    path, ranks, pots, paid = compute_rank_path(surprise, day, stake), conformal_ranks(surprise), [], []
    for number, today in enumerate(np.unique(day)):
        pots.append(np.full(6, stake[number] / 6))
        for rank in ranks[day == today]:
            pots = [pot * rank_growth(rank) for pot in pots]
        paid.append(np.sum(pots))
    np.testing.assert_allclose(np.exp(path.log_capital), paid, rtol=1e-9)
    n = int((day < day[-1]).sum())
    early = compute_rank_path(surprise[:n], day[:n], stake[: len(np.unique(day[:n]))])
    np.testing.assert_allclose(early.log_capital, path.log_capital[: len(early.day)])
    worse = surprise.copy()
    worse[-1] = LARGEST_SURPRISE
    assert compute_rank_path(worse, day, stake).log_capital[-1] >= path.log_capital[-1] - 1e-9


def test_a_change_of_ranks_is_seen_and_an_empty_series_is_a_path() -> None:
    rng = np.random.default_rng(3)
    surprise, day = rng.exponential(size=900).clip(max=LARGEST_SURPRISE), day_by_day(900, 10)
    quiet = compute_rank_path(surprise, day, daily_stakes([day])[0])
    surprise[600:] = np.where(rng.random(300) < 0.2, 5.0, surprise[600:])
    changed = compute_rank_path(surprise, day, daily_stakes([day])[0])
    alarm = changed.alarm_day()
    assert quiet.alarm_day() is None
    assert alarm is not None
    assert 60 < alarm <= 75
    nothing = np.zeros(0, dtype=np.int64)
    assert len(compute_rank_path(np.zeros(0), nothing, np.zeros(0)).day) == 0


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


ONE = np.ones


def threshold(values: list[float], misses: float = 0.1) -> float | None:
    """Threshold of one cell each of n patients."""
    n = len(values)
    return calibrate(np.array(values), ONE(n), np.arange(n), misses=misses).at()


@pytest.mark.parametrize("misses", [0.05, 0.1, 0.2, 0.25, 1 / 3])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 10, 18, 19, 20, 99, 1000])
def test_the_threshold_is_the_order_statistic_of_the_textbooks(n: int, misses: float) -> None:
    place = ceil((n + 1) * (1 - misses) - 1e-9)
    assert threshold([float(i) for i in range(1, n + 1)], misses) == (None if place > n else place)
    assert (place > n) == (n < fewest_patients(misses))


def test_coverage_is_exact_over_all_patients_left_out_however_their_cells_hang_together() -> None:
    """The mean over who comes last of the share of their cells that is covered, by enumeration; sizes differ."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        sizes = rng.integers(1, 9, size=15)
        level = rng.normal(size=15)
        cells = [np.round(level[g] + 0.3 * rng.normal(size=sizes[g]), 2) for g in range(15)]
        covered = []
        for g in range(15):
            others = [h for h in range(15) if h != g]
            patients = np.repeat(others, sizes[others])
            limit = calibrate(np.concatenate([cells[h] for h in others]), patient_masses(patients), patients).at()
            covered.append(1.0 if limit is None else float((cells[g] <= limit).mean()))
        assert float(np.mean(covered)) >= 0.9 - 1e-12


def second_answers(rng: np.random.Generator, n_patients: int) -> tuple[FloatArray, ...]:
    """Cells of patients, scores of second answers, probabilities of asking for them, and whether they were asked."""
    sizes = rng.integers(1, 5, size=n_patients)
    patients = np.repeat(np.arange(n_patients), sizes)
    hard = rng.random(patients.size) < 0.4 + 0.2 * (rng.random(n_patients)[patients] - 0.5)
    pi = np.where(hard, 1.0, 0.2)
    values = rng.random(patients.size) + hard  # whoever is read twice is hard, and the answer far down
    return patients, values, pi, rng.random(patients.size) < pi


def test_sets_after_a_label_are_exact_though_triage_chose_who_is_read_twice() -> None:
    """The next patient's cell is drawn before the coin; without weights the hard cells would make every set large."""
    rng = np.random.default_rng(2)
    weighted, plain = [], []
    for _ in range(1500):
        patients, values, pi, asked = second_answers(rng, 61)
        known, new = patients < 60, np.flatnonzero(patients == 60)
        fitted = calibrate(values[known], patient_masses(patients[known], asked[known], pi[known]), patients[known])
        cell = int(rng.choice(new))
        others = new[new != cell]
        own = (1 / pi[cell] + (asked[others] / pi[others]).sum()) / new.size
        limit = fitted.at(float(own))
        weighted.append(limit is None or values[cell] <= limit)
        chosen = known & asked
        naive = calibrate(values[chosen], patient_masses(patients[chosen]), patients[chosen]).at()
        plain.append(naive is None or values[cell] <= naive)
    error = np.sqrt(0.09 / 1500)
    assert 0.9 - 3 * error <= float(np.mean(weighted)) <= 0.96
    assert float(np.mean(plain)) > float(np.mean(weighted)) + 0.02  # larger sets than were asked for


def test_too_few_patients_give_no_threshold_and_a_heavier_one_needs_more() -> None:
    assert threshold([0.1] * 8) is None
    assert threshold([0.1] * 9) == 0.1
    rare = calibrate(np.zeros(50), ONE(50), np.arange(50))
    assert rare.at(5.0) == 0.0
    assert rare.at(6.0) is None
    assert calibrate(np.zeros(0), np.zeros(0), np.zeros(0)).at() is None


probabilities = st.lists(st.integers(0, 20), min_size=2, max_size=6).filter(lambda row: sum(row) > 0)


@given(probabilities, st.randoms(use_true_random=False), st.floats(0, 1))
@settings(deadline=None, max_examples=200)
def test_permuting_classes_permutes_sets_and_thresholds_nest_them(row: list[int], random: object, limit: float) -> None:
    probs = np.array([row]) / sum(row)
    order = np.random.default_rng(random.getrandbits(32)).permutation(len(row))  # type: ignore[attr-defined]
    assert (scores(probs[:, order]) == scores(probs)[:, order]).all()
    small, large = answer_sets(probs, limit / 2), answer_sets(probs, limit)
    assert (answer_sets(probs[:, order], limit) == large[:, order]).all()
    assert not (small & ~large).any()
    assert large[0, probs[0] == probs.max()].all()  # never empty, and never one of two equal leaders alone
    assert answer_sets(probs, 1.0).all()


def test_the_order_of_cells_does_not_matter() -> None:
    rng = np.random.default_rng(4)
    patients, values, pi, asked = second_answers(rng, 40)
    masses, order = patient_masses(patients, asked, pi), rng.permutation(patients.size)
    again = calibrate(values[order], masses[order], patients[order])
    once = calibrate(values, masses, patients)
    assert np.allclose(again.steps, once.steps)
    assert (again.n_patients, again.n_cells) == (once.n_patients, once.n_cells)


def test_scores_by_hand() -> None:
    assert scores([[0.25, 0.25, 0.5], [1 / 3, 1 / 3, 1 / 3]]).tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    assert answer_scores(np.array([[0.6, 0.4], [0.3, 0.7]]), np.array([1, 1])).tolist() == [0.6, 0.0]
    with pytest.raises(ValueError, match="classes from 0 to 1"):
        answer_scores(np.array([[0.6, 0.4]]), np.array([2]))


def test_masses_by_hand_and_what_is_refused() -> None:
    masses = patient_masses(["a", "a", "b"], np.array([True, False, True]), np.array([1.0, 0.1, 0.1]))
    assert masses.tolist() == [0.5, 0.0, 10.0]
    with pytest.raises(ValueError, match="probabilities"):
        patient_masses(["a"], np.array([True]), np.zeros(1))
    with pytest.raises(ValueError, match="misses"):
        calibrate(ONE(3), ONE(3), np.arange(3), misses=0.0)
    with pytest.raises(ValueError, match="shape"):
        calibrate(ONE(3), ONE(2), np.arange(3))
    with pytest.raises(ValueError, match="negative"):
        calibrate(ONE(3), -ONE(3), np.arange(3))


def test_all_classes_are_covered_always_and_no_success() -> None:
    answers, patients = np.array([0, 1, 2, 2]), np.array([0, 0, 1, 2])
    every = judge_sets(np.ones((4, 3), dtype=bool), answers, patient_masses(patients), patients)
    assert (every.coverage.value, every.mean_size.value, every.single.value) == (1.0, 3.0, 0.0)
    first = judge_sets(np.eye(3, dtype=bool)[[0, 0, 0, 0]], answers, patient_masses(patients), patients)
    assert first.coverage.value == pytest.approx(1 / 6)  # one of two cells of one of three patients
    assert (first.mean_size.value, first.single.value) == (1.0, 1.0)
    nobody = judge_sets(np.ones((2, 3), dtype=bool), np.array([-1, -1]), ONE(2), np.arange(2))
    assert np.isnan(nobody.coverage.value)


def test_fewer_cells_of_a_patient_raise_no_alarm() -> None:
    rng, day = np.random.default_rng(0), np.arange(1500) // 10
    surprise = np.concatenate([rng.exponential(size=(750, 3)).mean(axis=1), rng.exponential(size=750)])
    n_answers = np.repeat([3, 1], 750)
    path = compute_rank_path(np.minimum(surprise, LARGEST_SURPRISE), day, daily_stakes([day])[0], n_answers)
    assert path.log_capital.max() < 0
    assert np.ptp(np.histogram(conformal_ranks(surprise, n_answers), 5, (0, 1))[0]) < 90
