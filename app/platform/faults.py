"""What is wrong with a value, in the service's own words: those of the library are for programmers."""

from pydantic_core import ErrorDetails

from ml.messages import Message, joined, messages

#: By the type of pydantic's error; in braces what its context says.
_WORDS = messages(
    {
        "missing": "is missing",
        "extra_forbidden": "is not known here",
        "string_too_short": "is empty",
        "string_too_long": "is longer than {max_length:,} characters",
        "string_type": "must be text",
        "too_long": "has more than {max_length:,} entries",
        "uuid_parsing": "is no identifier",
        "uuid_type": "is no identifier",
        "int_parsing": "must be a whole number",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "int_parsing_size": "is too large",
        "float_parsing": "must be a number",
        "float_type": "must be a number",
        "finite_number": "must be a number",
        "bool_parsing": "must be yes or no",
        "date_from_datetime_parsing": "must be a date such as 2026-11-23",
        "date_parsing": "must be a date such as 2026-11-23",
        "literal_error": "must be {expected}",
        "enum": "must be {expected}",
        "greater_than": "must be more than {gt:g}",
        "greater_than_equal": "must be at least {ge:g}",
        "less_than": "must be less than {lt:g}",
        "less_than_equal": "must be at most {le:g}",
        "dict_type": "must be a JSON object of texts",
    }
)
#: What an address that nothing is at is answered.
NOTHING_HERE = Message("there is nothing at this address")


def printable(text: str) -> str:
    """A name as UTF-8 can carry it: a lone surrogate in a key would break the answer."""
    return text.encode("utf-8", "replace").decode()


def in_words(fault: ErrorDetails) -> str:
    """One of pydantic's errors as the end of a sentence about the value.

    >>> in_words({"type": "int_parsing", "msg": "Input should be a valid integer, unable to parse string"})
    'must be a whole number'
    >>> in_words({"type": "literal_error", "msg": "", "ctx": {"expected": "'ipw' or 'none'"}})
    'must be ipw or none'
    """
    values = {**fault.get("ctx", {})}
    if fault["type"] == "value_error" and isinstance(values.get("error"), ValueError):
        return str(values["error"])
    if "expected" in values:
        values["expected"] = str(values["expected"]).replace("'", "")
    try:
        return Message(_WORDS[fault["type"]], **values)
    except (KeyError, ValueError):  # unknown, or of a version of the library that says it otherwise
        return fault["msg"]


def sentence_of(fault: ErrorDetails) -> str:
    """The same with the name of the value.

    >>> sentence_of({"type": "missing", "loc": ("query", "site"), "msg": "Field required"})
    'site is missing'
    """
    place = fault["loc"]
    return joined(" ", [printable(str(place[-1])), in_words(fault)]) if place else in_words(fault)


def sentence_on_page(fault: ErrorDetails) -> str:
    """The same for a person at a browser, who types no part of an address.

    >>> sentence_on_page({"type": "uuid_parsing", "loc": ("path", "case_id"), "msg": "Input should be a valid UUID"})
    'there is nothing at this address: it may be cut off or mistyped'
    """
    if fault["loc"][:1] == ("path",):
        return Message("{nothing_here}: it may be cut off or mistyped", nothing_here=NOTHING_HERE)
    return sentence_of(fault)
