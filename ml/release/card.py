"""The release card in words: what a release reads, how good it was, and what it must not be used for."""

from typing import Any


def _figure(metric: dict[str, Any]) -> str:
    if metric["value"] is None:
        return "not measurable"
    text = f"{metric['value']:.4f}"
    return text if metric["low"] is None else f"{text} ({metric['low']:.4f} to {metric['high']:.4f})"


def _disagreement_paragraph(card: dict[str, Any]) -> str:
    if card["disagreement_calibrated"]:
        return (
            "The disagreement probability says how likely two experts are to give this cell different labels. "
            "It was learned from cells that several experts had labelled."
        )
    return (
        "**The disagreement probability of this release is not calibrated.** Every cell it was trained and "
        "calibrated on carries one label, and one label says nothing about how often two experts differ. What is "
        "reported as disagreement follows from the class probabilities alone, as if they were the truth; labels "
        "that arrive do not change the prediction."
    )


def _ensemble_sentence(card: dict[str, Any]) -> str:
    if card.get("mc_dropout") is None:
        return ""
    return f" Predictions are means of {card['mc_dropout']['samples']} samples of the network's head (dropout)."


def _metrics_table(card: dict[str, Any]) -> str:
    words = {
        "accuracy": "share of cells whose most probable class is the experts' most frequent one",
        "L": "squared error of the class probabilities for one expert's label (0 best, 2 worst)",
        "EL": "the part of it that better probabilities could avoid",
        "CE": "calibration error of the class probabilities",
        "L_D": "squared error of the disagreement probability",
        "CE_D": "calibration error of the disagreement probability",
    }
    steps = list(card["held_out"])
    lines = ["| measure | " + " | ".join(steps) + " |", "|---|" + "---|" * len(steps)]
    for name, meaning in words.items():
        cells = [_figure(card["held_out"][step][name]) if card["held_out"][step] else "–" for step in steps]
        lines.append(f"| {name}: {meaning} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _input_sentence(preprocessing: dict[str, Any]) -> str:
    colour = "colour" if preprocessing["channels"] == 3 else "grey"
    square = "the largest central square"
    if preprocessing["crop"] is not None:
        square = f"the central {preprocessing['crop']} × {preprocessing['crop']} px (all of a smaller image)"
    side = preprocessing["size"]
    return f"One {colour} image of one cell. Of it, {square} is averaged down to {side} × {side} px."


def readme_text(card: dict[str, Any]) -> str:
    """The card as Markdown, for people."""
    classes = "\n".join(f"- {info['name']} (`{info['code']}`)" for info in card["classes"])
    parts = ", ".join(f"{name} {count:,}" for name, count in sorted(card["data"]["partitions"].items()))
    limits = "\n".join(f"- {sentence}" for sentence in card["limits_of_use"])
    by = "patient" if card["data"]["split_by"] == "patient" else "cell (the source names no patients)"
    return f"""# Release {card["name"]}

{_input_sentence(card["preprocessing"])} The release answers with a probability for each class and with the
probability that two experts would disagree.

{_disagreement_paragraph(card)}

## Classes

{classes}

## Where it comes from

Data: {card["data"]["source"]}. Cells: {parts}; split by {by}. Licence of the data: {card["licence"]}.
Network `{card["network"]}`, seed {card["seed"]}.{_ensemble_sentence(card)}

## How good it was on {card["n_held_out"]:,} cells it had never seen

With 95 % intervals; smaller is better except for accuracy.

{_metrics_table(card)}

## Limits of use

{limits}
"""
