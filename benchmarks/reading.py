"""From a key to the next image and to the stored answer: the page that stays against a page per case, in one run.

    python -m benchmarks.reading RELEASE --save

Blocks of cells by turns: under the policy that closes cases the page stays, under ``after_commit`` each case and each
result is a page of its own, as all were in 0.1.0. Times are by Chromium's own clock, on loopback, with cells of 96 px.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.conftest import set_reveal, upload
from tests.support.chromium import FLAGS, find_chromium
from tests.support.process import Installation

BLOCKS, BLOCK = 4, 30

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
        found = {}
        for name, values in (
            ("key to the next image painted, the page that stays", self.next_image),
            ("key to the answer stored, the page that stays", self.stored),
            ("commit and next case, a page each", self.pages),
        ):
            found[f"{name}, median (ms)"] = statistics.median(values)
            found[f"{name}, 95th percentile (ms)"] = statistics.quantiles(values, n=20)[-1]
        return found | {"cases each": float(len(self.next_image))}


def case_on(page: Page) -> str:
    return str(page.evaluate("document.querySelector('[data-read]')?.dataset.case ?? ''"))


def stay(page: Page, address: str, times: Times) -> None:
    """Read a block on the page that stays: one key per case."""
    page.goto(address + "/worklist")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    page.wait_for_load_state("networkidle")
    for _ in range(BLOCK):
        before = case_on(page)
        page.keyboard.press("1")
        while case_on(page) in {before, ""}:
            page.wait_for_timeout(5)
        page.wait_for_timeout(700)  # somebody looks at the image; meanwhile the next ones come
    times.next_image += page.evaluate("window.painted")
    pressed = page.evaluate("window.pressed")
    for started, ended in page.evaluate(_STORED):
        times.stored.append(ended - max(key for key in pressed if key <= started))


def press(page: Page, wanted: str) -> float:
    """Press Enter; ms until the page that follows has loaded with its image."""
    page.keyboard.press("Enter")
    page.wait_for_selector(wanted)
    page.wait_for_load_state("load")
    while not page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd > 0"):
        page.wait_for_timeout(5)
    return float(page.evaluate(_SINCE))


def turn_pages(page: Page, address: str, times: Times) -> None:
    """Read a block case by case: a key chooses, Enter commits, Enter goes on."""
    page.goto(address + "/worklist")
    press(page, ".js [data-read]")
    for _ in range(BLOCK):
        page.wait_for_load_state("networkidle")
        page.keyboard.press("1")
        committed = press(page, ".js [data-action=next]")
        page.wait_for_load_state("networkidle")
        times.pages.append(committed + press(page, ".js [data-read]"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("release", type=Path)
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    arguments = parser.parse_args()
    binary = find_chromium()
    if binary is None:
        sys.exit("Chromium is missing (Debian package chromium)")
    times = Times()
    with tempfile.TemporaryDirectory() as folder:
        made = Installation(Path(folder) / "home")
        made.keys = made.prepare(arguments.release, lead="admin", reader="annotator")
        made.start()
        try:
            with sync_playwright() as playwright:
                page = playwright.chromium.launch(executable_path=binary, args=FLAGS).new_page()
                page.add_init_script(_WATCH)
                page.goto(made.address)
                page.fill("[name=name]", "reader")
                page.fill("[name=password]", made.one_time_password("reader"))
                page.click("main button")
                page.wait_for_url("**/account")
                for block in range(2 * BLOCKS):
                    stays = block % 2 == 0
                    set_reveal(made, "after_case_closed" if stays else "after_commit")
                    for number in range(BLOCK + 4):
                        upload(made, f"{block} {number}", 1000 * block + number)
                    (stay if stays else turn_pages)(page, made.address, times)
                    print(f"block {block + 1} of {2 * BLOCKS} at {time.strftime('%H:%M:%S')}", flush=True)
        finally:
            made.stop()
    found = times.figures()
    for name, value in found.items():
        print(f"{value:10.1f}  {name}")
    if arguments.save:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_reading.json"
        path.write_text(json.dumps({"machine": f"2 cores, {platform.machine()}", "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
