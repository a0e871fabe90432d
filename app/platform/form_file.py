"""The file of a multipart form, piece by piece: nothing of it is kept in memory or in a temporary folder."""

from collections.abc import AsyncIterable, AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.http.errors import BadRequest, Invalid
from ml.messages import Message


class _Parts:
    """Collects the bytes of one field as a parser passes over the parts of a form."""

    def __init__(self, field: str) -> None:
        self._field = field.encode()
        self._header, self._value, self._wanted = b"", b"", False
        self.seen, self.ended, self.pieces = 0, False, list[bytes]()

    def on_part_begin(self) -> None:
        self._wanted = False

    def on_header_begin(self) -> None:
        self._header = self._value = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            options = parse_options_header(self._value.decode("latin-1"))[1]
            self._wanted = options.get(b"name") == self._field and b"filename" in options
            self.seen += self._wanted

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted:
            self.pieces.append(data[start:end])

    def on_end(self) -> None:
        self.ended = True

    def taken(self) -> bytes:
        """What has arrived since the last call."""
        pieces, self.pieces = self.pieces, []
        return b"".join(pieces)


async def file_of_form(chunks: AsyncIterable[bytes], content_type: str, field: str) -> AsyncIterator[bytes]:
    """Bytes of the file in one field of a form, as they arrive; other fields are passed over.

    Args:
        chunks: of the request's body.
        content_type: header of the request.
        field: name of the form's field.

    Raises:
        BadRequest: the body cannot be read as a form.
        Invalid: the form has no such file, or several.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise Invalid(Message("send a form, multipart/form-data, with a file in the field `{field}`", field=field))
    parts = _Parts(field)
    try:
        parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": parts.on_part_begin,
                "on_header_begin": parts.on_header_begin,
                "on_header_field": parts.on_header_field,
                "on_header_value": parts.on_header_value,
                "on_header_end": parts.on_header_end,
                "on_part_data": parts.on_part_data,
                "on_end": parts.on_end,
            },
        )
        async for chunk in chunks:
            parser.write(chunk)
            yield parts.taken()
    except FormParserError as exc:
        raise BadRequest("the multipart body cannot be read") from exc
    if not parts.ended:
        raise BadRequest("the multipart body ends in the middle")
    if parts.seen != 1:
        raise Invalid(Message("the form must have one file in the field `{field}`", field=field))
