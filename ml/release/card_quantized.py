"""What a card says of a network that computes in whole numbers."""

from typing import Literal, TypedDict

from ml.metrics.jackknife import EstimateDocument


class SourceDocument(TypedDict):
    """The release that another one was made from, without a service: its name and the digest of its card."""

    name: str
    card_sha256: str


class QuantizedDocument(TypedDict):
    """How a release was quantised, and what that changed on held-out cells.

    ``weight_bits``: of weights, with their sign; activations have eight. ``ranges``: how those of activations were
    found, on ``n_range_images`` images of the calibration partition. ``changes``: of L, L_D and agreement from the
    source to this release, paired. ``harms``: what the gate calls harm, a sentence each, where somebody made it all
    the same.
    """

    kind: Literal["int8"]
    source: SourceDocument
    weight_bits: int
    ranges: str
    n_range_images: int
    n_layers: int
    changes: dict[str, EstimateDocument]
    harms: list[str]


_NAMES = {"L": "L", "L_D": "L_φ", "agreement": "agreement"}


def quantized_section(document: QuantizedDocument | None) -> str:
    """The section of the card about it; nothing where the network computes in float32."""
    if document is None:
        return ""
    source = document["source"]
    changes = "; ".join(f"{_NAMES[name]} {_change(change)}" for name, change in document["changes"].items())
    text = (
        f"## int8\n\nIt is the release {source['name']} (card {source['card_sha256'][:12]}…) with the weights of its "
        f"{document['n_layers']} convolutions in {document['weight_bits']} bits and what flows between them in 8, "
        f"whose ranges were found on {document['n_range_images']:,} images of the calibration partition "
        f"({document['ranges']}). Calibration and checks were fitted anew to its own outputs. From that release to "
        f"this one, on the same held-out cells: {changes} (losses: negative is better).\n"
    )
    if document["harms"]:
        text += f"\n**It is worse than that release, and was made all the same: {'; '.join(document['harms'])}.**\n"
    return text + "\n"


def _change(change: EstimateDocument) -> str:
    value, low, high = change["value"], change["low"], change["high"]
    if value is None:
        return "cannot be measured"
    return f"{value:+.4f}" if low is None or high is None else f"{value:+.4f} ({low:+.4f} to {high:+.4f})"
