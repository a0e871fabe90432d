"""Geometry of the small charts drawn inside pages; colours and fonts are in the style sheet."""

from dataclasses import dataclass

from app.platform.values import DistributionOut

ROW, LABEL, WIDTH = 34, 200, 380


@dataclass(frozen=True)
class BarRow:
    """One class: a bar for the prior, one for the posterior, each with its 95 % interval, in px."""

    name: str
    y: int
    prior: float
    posterior: float
    prior_interval: tuple[float, float] | None
    posterior_interval: tuple[float, float] | None
    prior_prob: float
    posterior_prob: float
    count: int


@dataclass(frozen=True)
class Bars:
    """Prior and posterior of a case as bars."""

    rows: list[BarRow]
    height: int
    width: int = WIDTH + LABEL + 90
    left: int = LABEL
    scale: int = WIDTH


def posterior_bars(
    names: dict[str, str], prior: DistributionOut, posterior: DistributionOut, counts: dict[str, int]
) -> Bars:
    """Lay out prior and posterior class probabilities, class by class."""

    def interval(distribution: DistributionOut, code: str) -> tuple[float, float] | None:
        if distribution.class_intervals is None:
            return None
        low, high = distribution.class_intervals[code]
        return LABEL + WIDTH * low, LABEL + WIDTH * high

    rows = [
        BarRow(
            name=name,
            y=index * ROW,
            prior=WIDTH * prior.class_probs[code],
            posterior=WIDTH * posterior.class_probs[code],
            prior_interval=interval(prior, code),
            posterior_interval=interval(posterior, code),
            prior_prob=prior.class_probs[code],
            posterior_prob=posterior.class_probs[code],
            count=counts[code],
        )
        for index, (code, name) in enumerate(names.items())
    ]
    return Bars(rows, ROW * len(rows) + 22)
