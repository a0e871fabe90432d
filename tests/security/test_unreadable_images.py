"""A damaged image is put right by the same pixels alone."""

import pytest
from PIL import Image

from ml.images.preprocess import decode_image
from tests.app.test_fields import around
from tests.security.test_same_pixels import faults, rows
from tests.support.service import Service, cell_png, stored_image


@pytest.mark.both_databases
@pytest.mark.parametrize("what", ["image", "field"])
def test_other_pixels_never_take_the_place_of_a_damaged_image(
    service: Service, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As where a later version of a decoder makes other pixels of the same upload."""
    case = service.add_case("first", cell_png(3), field=around())
    service.add_case("second", cell_png(3), field=around())
    before = rows(service)["first"]
    damaged = before.stored_sha256 if what == "image" else before.stored_field_sha256
    assert damaged is not None
    whole = stored_image(service.context, damaged).read_bytes()
    stored_image(service.context, damaged).write_bytes(b"")
    size = (before.width, before.height)

    def of_a_later_version(data: bytes) -> Image.Image:
        image = decode_image(data)
        return image.point(lambda value: value ^ 1) if (image.size == size) == (what == "image") else image

    with monkeypatch.context() as patched:
        patched.setattr("ml.images.picture.decode_image", of_a_later_version)
        answer = service.upload("first", cell_png(3), field=around())
    assert answer.status_code == 409
    assert "damaged" in answer.json()["detail"]
    assert "other pixels" in answer.json()["detail"]
    for row in rows(service).values():
        assert (row.stored_sha256, row.pixels_sha256) == (before.stored_sha256, before.pixels_sha256)
        assert row.stored_field_sha256 == before.stored_field_sha256
    assert any(damaged in fault for fault in faults(service))
    stored_image(service.context, damaged).write_bytes(whole)
    assert service.get("viewer", f"/v1/cases/{case['id']}/image").status_code == 200
    assert faults(service) == []
