"""The bars of a case: names of classes stand beside them and are not cut off."""

from app.http.models import DistributionOut
from app.web.charts import LETTER, LETTERS, PosteriorChart, posterior_bars


def bars_of(*names: str) -> PosteriorChart:
    codes = {str(k): name for k, name in enumerate(names)}
    probs = dict.fromkeys(codes, 1 / len(codes))
    said = DistributionOut(
        class_probs=probs,
        log_concentration=0.0,
        disagreement_prob=0.5,
        disagreement_calibrated=True,
        disagreement_constant=False,
        class_intervals=dict.fromkeys(codes, (0.0, 1.0)),
    )
    return posterior_bars(codes, said, said, dict.fromkeys(codes, 10))


def test_a_long_name_moves_the_bars_and_a_very_long_one_is_shortened() -> None:
    short, long = bars_of("Blast", "Monocyte"), bars_of("Blast", "Segmented, several lobes")
    assert short.left == 200
    assert long.left >= LETTER * len("Segmented, several lobes · 10")
    assert long.rows[0].posterior_interval == (long.left, long.left + long.scale)
    assert long.width > long.left + long.scale
    (row,) = bars_of("x" * 90).rows
    assert len(row.shown) == LETTERS
    assert row.name == "x" * 90
