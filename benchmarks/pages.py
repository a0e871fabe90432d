"""What pages cost: time on the server and bytes over the wire, and from a commit to the next image in Chromium."""

import argparse
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import httpx2
from playwright.sync_api import Page, sync_playwright

from tests.support.chromium import FLAGS, find_chromium
from tests.support.process import Installation

READS = 12


def first_page(made: Installation, key: str) -> dict[str, float]:
    """Median of 20 loads of the worklist, without its images."""
    with httpx2.Client(base_url=made.address, headers={"Authorization": f"Bearer {key}"}) as client:
        times, size = [], 0
        for _ in range(20):
            started = time.perf_counter()
            answer = client.get("/worklist", headers={"Accept": "text/html"})
            times.append(1000 * (time.perf_counter() - started))
            size = len(answer.content)
        for path in ("/static/style.css", "/static/app.js", "/static/icon.svg"):
            size += len(client.get(path).content)
    return {
        "first page, 120 cases at most (ms)": statistics.median(times),
        "its bytes with style and script, without images (KB)": size / 1000,
    }


# the browser's own clock: from the key that is pressed to the load event, which waits for the image
_STAMP = "document.addEventListener('keydown', () => sessionStorage.setItem('pressed', Date.now()), true)"
_SINCE = """() => performance.timeOrigin + performance.getEntriesByType('navigation')[0].loadEventEnd
  - Number(sessionStorage.getItem('pressed'))"""


def press(page: Page, wanted: str) -> float:
    """Press Enter; ms until the page that follows has loaded with its image."""
    page.keyboard.press("Enter")
    page.wait_for_selector(wanted)
    page.wait_for_load_state("load")
    page.wait_for_function("performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
    return float(page.evaluate(_SINCE))


def reads(made: Installation, binary: str) -> dict[str, float]:
    """From the key that commits to the revealed page, and from the key that goes on to the next image drawn."""
    commits, nexts = [], []
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=binary, args=FLAGS).new_page()
        page.add_init_script(_STAMP)
        page.goto(made.address)
        page.fill("[name=name]", "annotator-1")
        page.fill("[name=password]", made.password("user", "password", "annotator-1"))
        page.click("main button")
        page.wait_for_selector(".js [data-action=next]")
        for number in range(READS):
            page.wait_for_load_state("networkidle")
            nexts.append(press(page, ".js [data-read]"))
            page.wait_for_load_state("networkidle")
            page.keyboard.press(str(1 + number % 5))
            commits.append(press(page, ".js [data-action=next]"))
    return {
        "commit to revealed page, median (ms)": statistics.median(commits),
        "going on to the next image, median (ms)": statistics.median(nexts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", type=Path, help="of a demo's HOME: .secondread/demo/release")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    arguments = parser.parse_args()
    binary = find_chromium()
    if binary is None:
        sys.exit("Chromium is missing (Debian package chromium)")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        shutil.copytree(arguments.release.parents[1], home)
        made = Installation(home)
        made.start()
        try:
            found = first_page(made, made.key("admin")) | reads(made, binary)
        finally:
            made.stop()
    for name, value in found.items():
        print(f"{value:10.1f}  {name}")
    if arguments.save:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_pages.json"
        path.write_text(json.dumps({"machine": f"2 cores, {platform.machine()}", "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
