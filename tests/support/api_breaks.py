"""What would break callers of an API, found by comparing two OpenAPI documents.

A request must accept whatever it accepted, an answer may say only what it could say before; new fields in answers,
new optional ones in requests and new operations are no break.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]
_METHODS = ("get", "put", "post", "patch", "delete")
#: Bounds of values, with the direction in which each is looser.
_BOUNDS = {
    **dict.fromkeys(("minLength", "minItems", "minimum", "exclusiveMinimum"), -1),
    **dict.fromkeys(("maxLength", "maxItems", "maximum", "exclusiveMaximum"), +1),
}


def breaks(before: Json, after: Json) -> list[str]:
    """What of an API no longer holds.

    Args:
        before: the OpenAPI document that callers know.
        after: the one that they would meet.

    Returns:
        One line for each break, ``METHOD path: where: what``, in the order of the earlier document.
    """
    return list(dict.fromkeys(_Comparison(before, after).all()))


class _Comparison:
    def __init__(self, before: Json, after: Json) -> None:
        self._before, self._after = before, after
        self._under_way: set[tuple[str, str, bool]] = set()

    def all(self) -> Iterator[str]:
        for path, methods in self._before["paths"].items():
            for method in (name for name in _METHODS if name in methods):
                found = self._after["paths"].get(path, {}).get(method)
                gone = ["the operation has gone"] if found is None else self._operation(methods[method], found)
                yield from _under(f"{method.upper()} {path}", gone)
        for code in sorted(_codes(self._before) - _codes(self._after)):
            yield f"errors: {code} has gone"

    def _operation(self, old: Json, new: Json) -> Iterator[str]:
        if old["operationId"] != new["operationId"]:
            yield f"operationId: {old['operationId']} has become {new['operationId']}"
        yield from self._parameters(old.get("parameters", []), new.get("parameters", []))
        yield from self._body(old.get("requestBody"), new.get("requestBody"))
        yield from self._answers(old["responses"], new["responses"])
        if "security" in old and not all(any(_opens(key, lock) for lock in new["security"]) for key in old["security"]):
            yield "security: what gave access gives none now"

    def _parameters(self, old: list[Json], new: list[Json]) -> Iterator[str]:
        known = {(one["in"], one["name"].lower()): one for one in old}
        found = {(one["in"], one["name"].lower()): one for one in new}
        for key, one in known.items():
            where = f"{key[0]} parameter {one['name']}"
            if key not in found:
                yield f"{where}: has gone"
                continue
            if found[key].get("required") and not one.get("required"):
                yield f"{where}: is required now"
            yield from _under(where, _default(one["schema"], found[key]["schema"]))
            yield from _under(where, self._schema(one["schema"], found[key]["schema"], sent=True))
        for key, one in found.items():
            if key not in known and one.get("required"):
                yield f"{key[0]} parameter {one['name']}: is new and required"

    def _body(self, old: Json | None, new: Json | None) -> Iterator[str]:
        if new is not None and new.get("required") and not (old and old.get("required")):
            yield "request: a body is required now"
        if old is None:
            return
        if new is None:
            yield "request: takes no body any more"
            return
        yield from self._contents("request", old["content"], new["content"], sent=True)

    def _answers(self, old: Json, new: Json) -> Iterator[str]:
        for status, answer in old.items():
            found = new.get(status)
            if found is None:
                if int(status) < 400:
                    yield f"answer {status}: has gone"
                continue  # an error that cannot happen any more is none that a caller waits for
            yield from self._contents(f"answer {status}", answer.get("content", {}), found.get("content", {}))
            for name in answer.get("headers", {}).keys() - found.get("headers", {}).keys():
                yield f"answer {status}: header {name} has gone"
        for status in (status for status in new.keys() - old.keys() if int(status) < 400):
            yield f"answer {status}: is a new success"

    def _contents(self, where: str, old: Json, new: Json, *, sent: bool = False) -> Iterator[str]:
        for kind, media in old.items():
            if kind not in new:
                yield f"{where}: {kind} has gone"
            elif "schema" in media and "schema" in new[kind]:
                yield from _under(where, self._schema(media["schema"], new[kind]["schema"], sent=sent))

    def _schema(self, old: Json, new: Json, *, sent: bool) -> Iterator[str]:
        """Compare two schemas of what is sent, or of what is answered."""
        pair = (json.dumps(old, sort_keys=True), json.dumps(new, sort_keys=True), sent)
        if pair in self._under_way:
            return  # a schema inside itself
        self._under_way.add(pair)
        try:
            olds, news = _ways(self._before, old), _ways(self._after, new)
            # requests written for the old must suit the new, and answers of the new those who know the old
            sources, targets = (olds, news) if sent else (news, olds)
            for source in sources:
                yield from self._way(source, targets, sent=sent)
        finally:
            self._under_way.discard(pair)

    def _way(self, source: Json, targets: list[Json], *, sent: bool) -> Iterator[str]:
        """What keeps one way of writing a value from being any of the others; the least of it."""
        alike = [one for one in targets if _kind(source) in (_kind(one), "integer" if _kind(one) == "number" else None)]
        alike += [one for one in targets if _kind(one) == "anything"]
        if not alike:
            yield f"{_kind(source)} {'is refused now' if sent else 'is new'}"
            return
        tried = [list(self._same_kind(source, one, sent=sent)) for one in alike]
        yield from min(tried, key=len)

    def _same_kind(self, source: Json, target: Json, *, sent: bool) -> Iterator[str]:
        yield from _values(source, target, sent=sent)
        if "items" in source and "items" in target:
            old, new = (source, target) if sent else (target, source)
            yield from _under("[]", self._schema(old["items"], new["items"], sent=sent))
        elif sent and "items" in target:
            yield "entries are restricted now"
        old, new = (source, target) if sent else (target, source)
        if "properties" in old and "properties" in new:
            yield from self._properties(old, new, sent=sent)
        extra = [one.get("additionalProperties") for one in (old, new)]
        if isinstance(extra[0], dict) and isinstance(extra[1], dict):
            yield from _under("{}", self._schema(extra[0], extra[1], sent=sent))
        elif sent and extra[1] is False and extra[0] is not False:
            yield "other fields are refused now"

    def _properties(self, old: Json, new: Json, *, sent: bool) -> Iterator[str]:
        required = (set(old.get("required", ())), set(new.get("required", ())))
        for name, schema in old["properties"].items():
            if name not in new["properties"]:
                yield f".{name}: has gone"
                continue
            yield from _under(f".{name}", _default(schema, new["properties"][name]) if sent else ())
            yield from _under(f".{name}", self._schema(schema, new["properties"][name], sent=sent))
            if not sent and name in required[0] - required[1]:
                yield f".{name}: may be missing now"
        if sent:
            yield from (f".{name}: is required now" for name in new["properties"] if name in required[1] - required[0])


def _under(where: str, found: Iterable[str]) -> Iterator[str]:
    return (f"{where}{'' if line.startswith(('.', '[', '{')) else ': '}{line}" for line in found)


def _ways(document: Json, schema: Json) -> list[Json]:
    """The ways of writing a value: references followed, choices taken apart."""
    if "$ref" in schema:
        found = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return _ways(document, found)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return [way for choice in choices for way in _ways(document, choice)]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": kind} for kind in schema["type"]]
    return [schema]


def _kind(schema: Json) -> str:
    if "const" in schema and "type" not in schema:
        return type(schema["const"]).__name__
    return str(schema.get("type", "anything"))


def _default(old: Json, new: Json) -> Iterator[str]:
    if old.get("default") != new.get("default"):
        yield f"what is left out means {new.get('default')!r} now, not {old.get('default')!r}"


def _codes(document: Json) -> set[str]:
    """Every kind of problem that an answer is said to be."""
    operations = [op for methods in document["paths"].values() for name, op in methods.items() if name in _METHODS]
    answers = [one for op in operations for status, one in op["responses"].items() if int(status) >= 400]
    return {
        code
        for one in answers
        for code in one["description"].split(", ")
        if "application/problem+json" in one.get("content", {})
    }


def _values(source: Json, target: Json, *, sent: bool) -> Iterator[str]:
    """What the one may be and the other may not."""
    values = [one.get("enum", [one["const"]] if "const" in one else None) for one in (source, target)]
    if values[1] is not None:
        if values[0] is None:
            yield "only some values are taken now" if sent else "other values may come now"
        else:
            for value in (value for value in values[0] if value not in values[1]):
                yield f"{value!r} {'is refused now' if sent else 'is new'}"
    if "format" in target and target["format"] != source.get("format"):
        yield f"format is {target['format'] if sent else source.get('format')} now"
    if not sent:
        return  # callers do not check bounds of what they get
    for name, looser in _BOUNDS.items():
        if name in target and (name not in source or (target[name] - source[name]) * looser < 0):
            yield f"{name} is {target[name]} now"
    if "pattern" in target and target["pattern"] != source.get("pattern"):
        yield f"pattern is {target['pattern']} now"


def _opens(key: Json, lock: Json) -> bool:
    """Whether who has the one may do what asks for the other."""
    return all(scheme in key and set(scopes) <= set(key[scheme]) for scheme, scopes in lock.items())
