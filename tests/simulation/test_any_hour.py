"""Whatever is still open, however people decline and take back: the estimates of a working laboratory do not move."""

import pytest

from experiments.worlds.queue_laboratory import QUANTITIES, Bias, Habits, QueueLaboratory, biases


def simulated(n_laboratories: int, n_cases: int, habits: Habits) -> dict[str, dict[str, Bias]]:
    weeks = [QueueLaboratory(seed, n_cases, habits).run() for seed in range(2000, 2000 + n_laboratories)]
    return biases(weeks)


def z(bias: Bias) -> float:
    return bias.value / bias.error


@pytest.mark.slow
def test_open_second_reads_and_retractions_after_the_reveal_move_nothing() -> None:
    """A few laboratories; L, which hardly varies, is off by version 0.1.0, and what was taken back is gone from it."""
    found = simulated(12, 300, Habits(retractions=0.2))
    print(found)
    assert found["0.1.0"]["L"].value < -0.01
    assert abs(found["now"]["L"].value) < 0.008
    assert found["0.1.0"]["L_D"].value < found["now"]["L_D"].value - 0.05
    assert all(abs(z(found["now"][name])) < 4.5 for name in QUANTITIES)


@pytest.mark.heavy
@pytest.mark.parametrize("retractions", [0.0, 0.05, 0.2])
def test_a_week_with_open_second_reads(retractions: float) -> None:
    found = simulated(80, 600, Habits(retractions=retractions))
    print(found)
    assert z(found["0.1.0"]["L"]) < -5
    if retractions >= 0.2:
        assert found["0.1.0"]["L_D"].value < found["now"]["L_D"].value - 0.05
    for name in QUANTITIES:
        assert abs(z(found["now"][name])) < 3.5, (name, found["now"][name])
