"""Numbers in documents, beside the results that they are said to come from: what ``docs/numbers.toml`` declares."""

import json
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DECLARED = ROOT / "docs" / "numbers.toml"

#: A number as documents write it.
NUMBER = r"[−+±-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
#: What can only be a figure: with decimals, with thousands, or a percentage; neither versions nor addresses.
FIGURE = re.compile(
    r"(?<![\w.,/:#\-])[−+±-]?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d*\.\d+(?![\d.])|\d+(?=\s?%))(?!\.\d|\w|/)",
)
#: Where a claim has a number.
PLACE = r"\{[%k]?\}"
_SCALES = {"{}": 1.0, "{%}": 100.0, "{k}": 1000.0}
_REDUCED = {"count": len, "mean": fmean, "min": min, "max": max, "sum": sum}


class NumberError(ValueError):
    """A declaration that does not fit its document or its result."""


@dataclass(frozen=True)
class Claim:
    """A sentence, or a part of one, of which each number is read from a result.

    Attributes:
        document: path within the project.
        text: as in the document; ``{}`` stands for a number, ``{%}`` for one in per cent, ``{k}`` for a thousand times
            the result's, any space for any other.
        file: within ``benchmarks/results``, without its date; the newest is read.
        read: a path within the file for each number.
    """

    document: str
    text: str
    file: str
    read: tuple[str, ...]

    def pattern(self) -> re.Pattern[str]:
        """The text as a regular expression that catches its numbers."""
        parts = re.split(rf"({PLACE})", self.text)
        return re.compile("".join(f"({NUMBER})" if re.fullmatch(PLACE, part) else _loose(part) for part in parts))

    def scales(self) -> list[float]:
        """What each result is multiplied by."""
        return [_SCALES[mark] for mark in re.findall(PLACE, self.text)]


@dataclass(frozen=True)
class Constant:
    """A number that is no result: a convention, a setting, somebody else's finding.

    Attributes:
        document: path within the project, or "*".
        text: as in the document.
        why: it is none.
    """

    document: str
    text: str
    why: str


def declared(path: Path = DECLARED) -> tuple[list[Claim], list[Constant]]:
    """Everything that is declared.

    Raises:
        NumberError: as many paths as numbers are needed.
    """
    document = tomllib.loads(path.read_text())
    claims = []
    for entry in document["results"]:
        below = f"{entry['at']} > " if "at" in entry else ""
        read = tuple(" ÷ ".join(f"{below}{part}" for part in name.split(" ÷ ")) for name in entry["read"])
        claims.append(Claim(entry["document"], entry["text"], entry["file"], read))
        if len(claims[-1].scales()) != len(read):
            raise NumberError(f"{entry['text']}: {len(read)} paths for its numbers")
    constants = [
        Constant(name, text, group["why"])
        for group in document["constants"]
        for name, texts in group["texts"].items()
        for text in texts
    ]
    return claims, constants


@cache
def prose(document: str) -> str:
    """A document with single spaces, without code, comments, addresses of links and rows copied from a result."""
    text = (ROOT / document).read_text()
    copied = {
        line for path in RESULTS.glob("**/*.md") for line in path.read_text().splitlines() if line.startswith("|")
    }
    text = "\n".join(line for line in text.splitlines() if line not in copied or set(line) <= set("|-: "))
    text = re.sub(r"```.*?```|<!--.*?-->", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "`code`", text)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    return re.sub(r"\s+", " ", text)


def check(claim: Claim) -> None:
    """Compare each number of a claim with its result.

    Raises:
        NumberError: the text is not in the document exactly once, a path leads to nothing, or a number is another one.
    """
    found = list(claim.pattern().finditer(prose(claim.document)))
    if len(found) != 1:
        raise NumberError(f"{claim.document} has {len(found)} times, not once: {claim.text}")
    for said, path, scale in zip(found[0].groups(), claim.read, claim.scales(), strict=True):
        value = scale * value_at(claim.file, path)
        if not agrees(said, value):
            has = f"{claim.file} at {path} has {value:.6g}"
            raise NumberError(f"{claim.document} says {said} where {has}: {claim.text}")


def agrees(said: str, value: float) -> bool:
    """Whether a value is what a document says, rounded as the document rounds."""
    digits = said.replace(",", "").replace("−", "-").replace("±", "").replace("+", "")
    decimals = len(digits.partition(".")[2])
    return abs(float(digits) - value) <= 0.5 * 10.0**-decimals * (1 + 1e-9)


def undeclared(document: str, claims: list[Claim], constants: list[Constant]) -> list[str]:
    """Each figure of a document that nothing declares, with the words around it."""
    text = prose(document)
    for claim in (claim for claim in claims if claim.document == document):
        text = claim.pattern().sub(lambda found: re.sub(r"\d", "·", found.group()), text)
    for constant in (constant for constant in constants if constant.document in (document, "*")):
        text = re.sub(_loose(constant.text), lambda found: re.sub(r"\d", "·", found.group()), text)
    return [text[max(0, found.start() - 40) : found.end() + 20] for found in FIGURE.finditer(text)]


def value_at(file: str, path: str) -> float:
    """The number at a path of the newest result of a name.

    JSON: names separated by " > "; ``name=value`` keeps the members of a list that have it; ``values`` has those of all
    names; the last may be ``count``, ``mean``, ``min``, ``max`` or ``sum``. Markdown: the first cells of a row, joined
    by "|", then " > " and the heading of the column; ``#1`` is the cell's second number. "a ÷ b" is the ratio of two.

    Raises:
        NumberError: there is none, or more than one.
    """
    if "÷" in path:
        above, below = path.split(" ÷ ")
        return value_at(file, above) / value_at(file, below)
    newest = max(RESULTS.glob(f"*_{file}"), default=None)
    if newest is None:
        raise NumberError(f"no result {file}")
    return _in_table(newest, path) if newest.suffix == ".md" else _in_document(newest, path)


def _in_document(file: Path, path: str) -> float:
    nodes: list[Any] = [json.loads(file.read_text())]
    for part in path.split(" > "):
        key, _, wanted = part.partition("=")
        members = [node for node in _members(nodes) if isinstance(node, dict)]
        if any(part in node for node in members):
            nodes = [node[part] for node in members if part in node]
        elif part in _REDUCED:
            nodes = [_REDUCED[part](_members(nodes))]
        elif part == "values":
            nodes = [value for node in members for value in node.values()]
        else:
            nodes = [node for node in members if str(node.get(key)) == wanted]
    if len(nodes) != 1 or isinstance(nodes[0], bool) or not isinstance(nodes[0], int | float):
        raise NumberError(f"{file.name} at {path}: {len(nodes)} found, not one number")
    return float(nodes[0])


def _members(nodes: list[Any]) -> list[Any]:
    return [member for node in nodes for member in (node if isinstance(node, list) else [node])]


def _in_table(file: Path, path: str) -> float:
    wanted, _, column = path.rpartition(" > ")
    column, _, place = column.partition("#")
    lines = [line for line in file.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found, header = [], []
    for before, row in zip([[], *rows], rows, strict=False):
        header = before if set("".join(row)) <= set("-: ") else header
        if row[: wanted.count("|") + 1] == wanted.split("|") and column in header:
            found.append(row[header.index(column)])
    if len(found) != 1:
        raise NumberError(f"{file.name} at {path}: {len(found)} cells, not one")
    numbers = re.findall(NUMBER, found[0].replace("±", " "))
    value = float(numbers[int(place or 0)].replace(",", "").replace("−", "-"))
    return value / 100 if "%" in found[0] else value


def _loose(text: str) -> str:
    """Text as a pattern in which any space stands for any other."""
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", text))
