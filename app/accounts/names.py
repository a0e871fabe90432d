"""Names of people, and when two of them are one: written alike, or looking alike (Unicode TR 39)."""

import unicodedata
from functools import cache


def normal_name(name: str) -> str:
    """A name as it is stored: without spaces around it, and composed (NFC), however it was typed.

    >>> normal_name(" bob ")
    'bob'
    """
    return unicodedata.normalize("NFC", name).strip()


def name_key(name: str) -> str:
    """What two spellings of one name share: upper and lower case, compositions and outer spaces do not count.

    >>> name_key("Ann0 ") == name_key("ann0")
    True
    """
    return unicodedata.normalize("NFC", normal_name(name).casefold())


def look_alike(name: str, other: str) -> bool:
    """Whether two names look alike: their skeletons of Unicode TR 39 are equal, as written or in lower case.

    >>> look_alike("\u0430nn2", "Ann2"), look_alike("annO", "ann0"), look_alike("anna", "anne")
    (True, True, False)
    """
    return any(_skeleton(form(name)) == _skeleton(form(other)) for form in (normal_name, name_key))


def _skeleton(name: str) -> str:
    decomposed = unicodedata.normalize("NFD", name)
    # characters without a width, such as a joiner, are not seen
    return "".join(_prototype(one) for one in decomposed if unicodedata.category(one) != "Cf")


@cache
def _prototype(character: str) -> str:
    """Prototype of a character: the lowest of all that look like it, or the letters that together do."""
    from confusable_homoglyphs.confusables import is_confusable  # its table takes longer to load than all names need

    alike, waiting = {character}, [character]
    while waiting:
        for row in is_confusable(waiting.pop(), greedy=True) or []:
            further = {homoglyph["c"] for homoglyph in row["homoglyphs"]} - alike
            alike |= further
            waiting += [one for one in further if len(one) == 1]
    several = sorted(one for one in alike if len(one) > 1 and one.isascii())
    return several[0] if several else min(one for one in alike if len(one) == 1)
