"""What a refused candidate would need: the number of cases is the one at which the gate would see it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.recalibration.preconditions import POWER, describe_required_cases, required_case_factor


def change(value: float, se: float | None) -> Any:
    return SimpleNamespace(value=value, se=se)


def test_with_as_many_cases_the_change_is_seen_as_often_as_it_says() -> None:
    from scipy.special import ndtri

    level, value, se = 0.00625, -0.01, 0.008
    times = required_case_factor(change(value, se), level)
    assert times is not None
    then = se / np.sqrt(times)
    seen = np.random.default_rng(0).normal(value, then, 200_000) <= -ndtri(1 - level) * then
    assert seen.mean() == pytest.approx(POWER, abs=0.005)


@pytest.mark.parametrize("loss", [change(0.01, 0.008), change(-0.01, None), change(float("nan"), 0.1)])
def test_what_did_not_fall_needs_no_number_of_cases(loss: Any) -> None:
    assert required_case_factor(loss, 0.01) is None
    assert "neither loss fell" in describe_required_cases([("L", loss)], 0.01)


def test_the_nearer_of_both_losses_is_named_and_what_is_out_of_reach_is_said() -> None:
    said = describe_required_cases([("L", change(-0.001, 0.01)), ("L_φ", change(-0.01, 0.01))], 0.00625)
    assert "if L_φ truly falls" in said
    assert "11.2 times as many" in said
    assert "more than 100 times" in describe_required_cases([("L", change(-1e-6, 0.01))], 0.00625)
