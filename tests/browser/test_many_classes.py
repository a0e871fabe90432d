"""Releases of 40 and of 80 classes: each class has a code, and image, classes and *Answer* are in view together."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import Person, begin, box_of, given, set_reveal, until, upload
from tests.support.process import Installation
from tests.support.tiny_release import split_classes, write_tiny_release

pytestmark = [pytest.mark.ci, pytest.mark.slow]


@pytest.fixture
def installation_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Installation]]:
    """A server with a release whose classes are split into so many parts, three cells and an annotator."""
    running = []

    def start(parts: int, *, grouped: bool) -> Installation:
        folder = tmp_path_factory.mktemp("many")
        release = write_tiny_release(folder / "release", classes=split_classes(parts, grouped=grouped))
        made = Installation(folder / "home")
        running.append(made)
        made.keys = made.prepare(release, lead="admin", emil="annotator", ben="annotator")
        made.start()
        set_reveal(made, "after_case_closed")
        for number in range(3):
            upload(made, f"cell {number}", 6500 + number)
        return made

    yield start
    for made in running:
        made.close()


def test_forty_classes_are_answered_by_two_digits_and_fit_a_laptop(
    browser: Browser, installation_of: Callable[..., Installation]
) -> None:
    made = installation_of(5, grouped=True)
    emil = Person(browser, made, "emil")
    page = begin(emil)
    for width, height in ((1366, 768), (1920, 1080)):
        page.set_viewport_size({"width": width, "height": height})
        boxes = [choice.bounding_box() for choice in page.locator(".choice:has([name=label])").all()]
        bar = box_of(page, ".commit")
        assert len(boxes) == 40
        assert all(box is not None and box["y"] + box["height"] <= bar["y"] + 1 for box in boxes), (width, height)
    chosen = page.locator(".choice:has-text('Band neutrophil 4')")
    first, second = list(chosen.locator("kbd").inner_text())
    page.keyboard.press(first)
    assert f"{first} …" in page.inner_text("[data-status]")
    page.keyboard.press(second)
    until(page, lambda: len(given(made, "emil")) == 1, "two digits answer")
    assert [row[2] for row in given(made, "emil")] == ["band_neutrophil_4"]
    page.keyboard.press(first)
    page.keyboard.press("x")  # no digit: the first one is forgotten
    page.keyboard.press(second)
    assert page.locator("[name=label]:checked").count() == 0
    assert emil.faults == []


def test_eighty_classes_without_groups_are_next_to_the_image_at_200_percent(
    browser: Browser, installation_of: Callable[..., Installation]
) -> None:
    page = begin(Person(browser, installation_of(10, grouped=False), "emil"))
    for width, height, columns in ((1366, 768, 3), (683, 384, 2)):
        page.set_viewport_size({"width": width, "height": height})
        choices = page.locator(".groups .choice").all()
        lefts = {round(box["x"]) for one in choices if (box := one.bounding_box())}
        image, bar, first = box_of(page, ".stage"), box_of(page, ".commit"), box_of(page, ".groups .choice")
        assert (len(choices), len(lefts)) == (80, columns)
        assert image["x"] + image["width"] <= first["x"]
        assert max(image["y"] + image["height"], bar["y"] + bar["height"]) <= height
        assert first["y"] + first["height"] < bar["y"]
