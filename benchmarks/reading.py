"""Pages and keys: from a key to the next image and to the stored answer, and time and bytes of the worklist.

    python -m benchmarks.reading --save

Blocks of cells by turns: under the policy that closes cases the page stays, under ``after_commit`` each case and each
result is a page of its own. Times are by Chromium's own clock, on loopback, with cells of 96 px; the worklist has 40
JPEGs of 27 KB, and its bytes are those of the page, its style and script, and its images.
"""

import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from playwright.sync_api import Page, sync_playwright

from benchmarks.harness import DEMO, Figures, main, spend
from benchmarks.pictures import numbered_jpeg
from tests.browser.conftest import set_reveal, upload
from tests.support.chromium import FLAGS, find_chromium
from tests.support.process import Installation

CELLS = 40
STATIC = ("/static/style.css", "/static/app.js", "/static/icon.svg")

# From the last key that was let go until the image that takes the place of the one before has been painted.
_WATCH = """
window.painted = []; window.pressed = [];
document.addEventListener('keyup', () => window.pressed.push(performance.now()), true);
new MutationObserver((changes) => {
  const fresh = changes.flatMap((change) => [...change.addedNodes]).some((node) => node.matches?.('.stage img'));
  if (!fresh || !window.pressed.length) return;
  const begun = window.pressed.at(-1);
  requestAnimationFrame(() => requestAnimationFrame(() => window.painted.push(performance.now() - begun)));
}).observe(document, { childList: true, subtree: true });
document.addEventListener('keydown', () => sessionStorage.setItem('pressed', Date.now()), true);
"""
_STORED = """performance.getEntriesByType('resource').filter((entry) => entry.name.endsWith('/label'))
  .map((entry) => [entry.startTime, entry.responseEnd])"""
_SINCE = """() => performance.timeOrigin + performance.getEntriesByType('navigation')[0].loadEventEnd
  - Number(sessionStorage.getItem('pressed'))"""


@dataclass
class Times:
    """Milliseconds per case."""

    next_image: list[float] = field(default_factory=list)
    stored: list[float] = field(default_factory=list)
    pages: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Medians and 95th percentiles."""
        figures = {}
        for name, values in (
            ("key to the next image painted, the page that stays", self.next_image),
            ("key to the answer stored, the page that stays", self.stored),
            ("commit and next case, a page each", self.pages),
        ):
            figures[f"{name}, median (ms)"] = statistics.median(values)
            figures[f"{name}, 95th percentile (ms)"] = statistics.quantiles(values, n=20)[-1]
        return figures | {"cases each": float(len(self.next_image))}


def case_on(page: Page) -> str:
    return str(page.evaluate("document.querySelector('[data-read]')?.dataset.case ?? ''"))


def stay(page: Page, address: str, times: Times, block: int) -> None:
    """Read a block on the page that stays: one key per case."""
    page.goto(address + "/worklist")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    page.wait_for_load_state("networkidle")
    for _ in range(block):
        before = case_on(page)
        page.keyboard.press("1")
        while case_on(page) in {before, ""}:
            page.wait_for_timeout(5)
        page.wait_for_timeout(700)  # an annotator looks at the image; meanwhile the next ones come
    times.next_image += page.evaluate("window.painted")
    pressed = page.evaluate("window.pressed")
    for started, ended in page.evaluate(_STORED):
        times.stored.append(ended - max(key for key in pressed if key <= started))


def press(page: Page, selector: str) -> float:
    """Press Enter; ms until the page that follows has loaded with its image."""
    page.keyboard.press("Enter")
    page.wait_for_selector(selector)
    page.wait_for_load_state("load")
    while not page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd > 0"):
        page.wait_for_timeout(5)
    return float(page.evaluate(_SINCE))


def turn_pages(page: Page, address: str, times: Times, block: int) -> None:
    """Read a block case by case: a key chooses, Enter commits, Enter goes on."""
    page.goto(address + "/worklist")
    press(page, ".js [data-read]")
    for _ in range(block):
        page.wait_for_load_state("networkidle")
        page.keyboard.press("1")
        committed = press(page, ".js [data-action=next]")
        page.wait_for_load_state("networkidle")
        times.pages.append(committed + press(page, ".js [data-read]"))


@contextmanager
def signed_in() -> Iterator[tuple[Installation, Page]]:
    """A server, and a page on which an annotator has signed in."""
    binary = find_chromium()
    if binary is None:
        sys.exit("Chromium is missing (Debian package chromium)")
    with tempfile.TemporaryDirectory() as folder, Installation(Path(folder) / "home") as made:
        made.keys = made.prepare(DEMO, lead="admin", reader="annotator")
        made.start()
        with sync_playwright() as playwright:
            page = playwright.chromium.launch(executable_path=binary, args=FLAGS).new_page()
            page.add_init_script(_WATCH)
            page.goto(made.address)
            page.fill("[name=name]", "reader")
            page.fill("[name=password]", made.one_time_password("reader"))
            page.click("main button")
            page.wait_for_url("**/account")
            yield made, page


def reading(quick: bool) -> Figures:
    """Milliseconds per case of the page that stays, and of a page per case."""
    blocks, size, times = (1, 3, Times()) if quick else (4, 30, Times())
    with signed_in() as (made, page):
        for block in range(2 * blocks):
            stays = block % 2 == 0
            set_reveal(made, "after_case_closed" if stays else "after_commit")
            for number in range(size + 4):
                upload(made, f"{block} {number}", 1000 * block + number)
            (stay if stays else turn_pages)(page, made.address, times, size)
    return times.figures()


def pages(quick: bool) -> Figures:
    """Time of the worklist on the server, and its bytes over the wire with what it shows."""
    with tempfile.TemporaryDirectory() as folder, Installation(Path(folder) / "home") as made:
        key = made.prepare(DEMO, lead="admin")["lead"]
        made.start()
        headers = {"Authorization": f"Bearer {key}", "Accept": "text/html"}
        with httpx2.Client(base_url=made.address, headers=headers, timeout=60) as client:
            for number in range(CELLS):
                fields = {"external_id": f"cell {number}", "patient": f"patient {number}"}
                files = {"image": ("cell.jpg", numbered_jpeg(number))}
                once = {"Idempotency-Key": f"cell {number}"}
                client.post("/v1/cases", headers=once, files=files, data=fields).raise_for_status()
            times = [spend(lambda: client.get("/worklist")).clock for _ in range(3 if quick else 20)]
            text = client.get("/worklist").raise_for_status().text
            sources = set(re.findall(r'<img[^>]*src="([^"]+)"', text))
            images = {path for path in sources if not path.startswith("/static/")}
            parts = {path: len(client.get(path).raise_for_status().content) for path in (*images, *STATIC)}
    without = (len(text.encode()) + sum(parts[path] for path in STATIC)) / 1000
    return {
        "worklist (ms)": 1000 * statistics.median(times),
        "its images": len(images),
        "its bytes with style and script, without images (KB)": without,
        "its bytes with images (KB)": without + sum(parts[path] for path in images) / 1000,
    }


if __name__ == "__main__":
    main(__doc__, {"reading": reading, "pages": pages})
