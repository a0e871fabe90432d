"""A release's answers to shifted images, as a table of its card for people."""

from collections.abc import Sequence

from ml.charts.rows import ShiftPoint

_MEANINGS = {
    "half magnification": "half as large",
    "double magnification": "twice as large",
    "off centre": "moved by a quarter of the side",
    "defocus": "blurred, σ of a 24th of the side",
    "hue": "hue turned by .08",
    "stain density": "optical density × or ÷ 1.25",
    "brightness": "× or ÷ 1.25",
    "compression": "JPEG of quality 15",
    "noise": "σ of 20 grey levels",
}


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def shifts_section(rows: Sequence[ShiftPoint], false_alarm_rate: float | None) -> str:
    """Section of a README: a sentence and a table, empty where no shift was tried."""
    if not rows:
        return ""
    lines = [
        "| images | strength | flagged | agreement | L | mean disagreement | n |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = f"{row['kind']} ({_MEANINGS[row['kind']]})" if row["kind"] in _MEANINGS else row["kind"]
        cells = [name, row["strength"], f"{row['flagged']:.1%}", _number(row["agreement"]), _number(row["loss"])]
        lines.append("| " + " | ".join([*cells, _number(row["mean_disagreement"]), f"{row['n']:,}"]) + " |")
    rate = (
        "" if false_alarm_rate is None else f", {false_alarm_rate:.1%} of familiar ones as measured on held-out cells"
    )
    return (
        "## Under shift\n\n"
        "What other microscopes, stains and cameras do to held-out cells, and how many it flags as unlike its own"
        f"{rate}. A mild shift is a tenth to a half of the standard one, at random.\n\n" + "\n".join(lines) + "\n\n"
    )
