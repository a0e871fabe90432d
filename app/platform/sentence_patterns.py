"""Sentences with values in them, and whether a text is one of these."""

import re


class SentencePattern:
    """A sentence with ``{name}`` for each value.

    Whether a text fits is found in one pass: what stands between two values is looked for from left to right, never
    back, so that no text takes longer than its length, whoever wrote it. A regular expression of the same sentence
    would try every way to cut a text of many commas, for minutes.

    Args:
        message: the sentence.
    """

    def __init__(self, message: str) -> None:
        pieces = re.split(r"\{(\w+)\}", message)
        self.literals, self.names = pieces[::2], pieces[1::2]
        #: How many letters stand beside the values.
        self.n_letters = sum(letter.isalpha() for literal in self.literals for letter in literal)

    def values(self, text: str) -> dict[str, str] | None:
        """The values in a text, each as short as it can be; None where the text is another one.

        >>> SentencePattern("at most {n} cases").values("at most 12 cases")
        {'n': '12'}
        >>> SentencePattern("{k} of {k}, then {n}").values("2 of 3, then 4") is None
        True
        """
        if not self.names:
            return {} if text == self.literals[0] else None
        first, *between, last = self.literals
        end = len(text) - len(last)
        if len(first) > end or not text.startswith(first) or not text.endswith(last):
            return None
        found: dict[str, str] = {}
        start = len(first)
        for name, literal in zip(self.names, [*between, None], strict=True):
            known = found.get(name)
            at = end if literal is None else text.find(literal, start if known is None else start + len(known), end)
            if at < 0 or (known is not None and text[start:at] != known):
                return None
            found[name] = text[start:at]
            start = at + len(literal or "")
        return found
