"""Sentences with values in them: what fits, and that no text takes long."""

import re

from hypothesis import given
from hypothesis import strategies as st

from app.platform import languages
from app.platform.sentence_patterns import SentencePattern

LITERALS = st.lists(st.text("ab ,", max_size=3), min_size=1, max_size=4)


@given(LITERALS, st.text("ab ,", max_size=14))
def test_what_fits_and_its_values_are_those_of_a_lazy_expression(literals: list[str], text: str) -> None:
    message = literals[0] + "".join(f"{{v{place}}}{literal}" for place, literal in enumerate(literals[1:]))
    lazy = re.escape(literals[0]) + "".join(
        f"(?P<v{place}>.*?){re.escape(literal)}" for place, literal in enumerate(literals[1:])
    )
    fits = re.fullmatch(lazy, text, re.DOTALL)
    assert SentencePattern(message).values(text) == (None if fits is None else fits.groupdict())


@given(st.lists(st.text("ab", max_size=3), min_size=2, max_size=2))
def test_a_name_that_comes_twice_has_one_value(values: list[str]) -> None:
    found = SentencePattern("{x} beside {x}, then {y}.").values(f"{values[0]} beside {values[1]}, then end.")
    assert found == ({"x": values[0], "y": "end"} if values[0] == values[1] else None)


def test_no_text_takes_longer_than_its_length() -> None:
    """A thousand times the pieces of each, without its end: a regular expression would take years."""
    for language in sorted(set(languages.LANGUAGES) - {languages.SOURCE}):
        for pattern, _ in languages._patterns(language):
            between = [literal for literal in pattern.literals[1:] if literal]
            text = pattern.literals[0] + "".join(1000 * literal for literal in between) + "#"
            assert pattern.values(text) is None or pattern.literals[-1] == ""
            languages._said(language, text[:5000], 3)
