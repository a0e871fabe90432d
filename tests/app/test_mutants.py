"""Damaged pictures in number (T5): each is read or refused clearly, none is a defect of the service."""

import random
from collections import Counter

import pytest

from tests.support.images import CORPUS, encode, photo
from tests.support.service import Service

_SOURCES = {
    "PNG": encode(photo(1, 32)),
    "JPEG": encode(photo(2, 32), "JPEG"),
    "TIFF": encode(photo(3, 32), "TIFF"),
    "TIFF, deflated": encode(photo(4, 32), "TIFF", compression="tiff_deflate"),
    "palette": CORPUS["palette with alpha"][0],
    "16-bit grey": CORPUS["16-bit grey"][0],
    "CMYK": CORPUS["CMYK"][0],
}
#: Values that are limits of some field.
_EDGES = (b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x80")


def mutant(rng: random.Random) -> bytes:
    """A picture with bytes changed, cut, doubled or taken from another one."""
    data = bytearray(rng.choice(list(_SOURCES.values())))
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        # what a decoder goes by stands at the beginning, and in TIFF at the end
        reach = rng.choice((64, 512, len(data)))
        place = rng.randrange(min(reach, len(data)))
        place = len(data) - 1 - place if rng.random() < 0.25 else place
        how = rng.randrange(5)
        if how == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif how == 1:
            edge = rng.choice(_EDGES)
            data[place : place + len(edge)] = edge
        elif how == 2:
            del data[place : place + rng.randrange(1, 64)]
        elif how == 3:
            data[place:place] = data[place : place + rng.randrange(1, 64)]
        else:
            other = rng.choice(list(_SOURCES.values()))
            data[place:] = other[place:]
        if not data:
            break
    return bytes(data)


@pytest.mark.parametrize(
    "count", [pytest.param(100, marks=pytest.mark.slow), pytest.param(5000, marks=pytest.mark.heavy)]
)
def test_mutants_of_pictures_are_read_or_refused(shared_service: Service, count: int) -> None:
    rng, statuses = random.Random(count), Counter[int]()
    for _ in range(count):
        content = mutant(rng)
        headers = {"Content-Type": "application/octet-stream"}
        answer = shared_service.post("viewer", "/v1/predictions", content=content, headers=headers)
        assert answer.status_code in {200, 413, 415, 422}, (answer.text, content[:64])
        statuses[answer.status_code] += 1
    print(dict(statuses))
    assert shared_service.get(None, "/healthz").status_code == 200
    assert statuses[200] > 0
    assert statuses[422] > count / 10
