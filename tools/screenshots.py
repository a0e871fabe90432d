"""Pictures of every page, light and dark, on four sizes of screen, from the demo (`make screenshots`).

Written as palette PNGs of a few tens of kilobytes to screenshots/PAGE-SCHEME-DEVICE.png, which git ignores; with
`--docs` those that README and tutorial show are copied to docs/images/pages, the only ones in git.
"""

import argparse
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import select

from app.audit.chain.keys import derive_keys
from app.cases.ingest import partition_of
from app.database.tables import Account, Case
from app.demo.real_cells import FOLDER, real_cells
from app.labels.corrections import finalize_labels
from tests.browser.conftest import handle_of, pack
from tests.support.chromium import FLAGS, find_chromium
from tests.support.process import Installation

ROOT = Path(__file__).parents[1]
OUT = ROOT / "screenshots"
SHOWN = ROOT / "docs" / "images" / "pages"
DEVICES = {"desktop": (1366, 860), "phone": (390, 844), "tablet": (820, 1180), "wide": (2560, 1440)}
SCHEMES = ("light", "dark")
#: Cases that the second annotator reads before the pictures, and those that are left to the first one then.
READS, LEFT = 3, 3
#: The case of the tutorial's picture.
DESCRIBED = "BA_124620"
#: Key of a HOME in which that case waits for another read.
SECRET = b"the same partitions in every run 7"


def sign_in(page: Page, made: Installation, name: str) -> None:
    page.goto(made.address)
    page.fill("[name=name]", name)
    page.fill("[name=password]", made.one_time_password(name))
    page.click("main button")
    page.wait_for_url("**/account")
    page.goto(f"{made.address}/worklist")


def keep(page: Page, folder: Path, name: str) -> None:
    """Take the page as it is on every screen, without loading it anew."""
    page.wait_for_selector("[data-making]", state="detached", timeout=300_000)  # a report that the worker makes
    page.wait_for_load_state("networkidle")
    folder.mkdir(parents=True, exist_ok=True)
    for device, (width, height) in DEVICES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(100)  # the viewer fits its image to the screen
            shot = Image.open(io.BytesIO(page.screenshot()))
            palette = shot.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT)
            palette.save(folder / f"{name}-{scheme}-{device}.png", optimize=True)
    print(folder / f"{name}-*.png", flush=True)


def classes_by_handle(made: Installation, name: str) -> dict[str, str]:
    """Class that the second annotator gave each real cell, by the handle that an annotator knows it by."""
    keys = derive_keys(made.settings.key_ring()).readers
    ((account_id,),) = made.rows(select(Account.id).where(Account.name == name))
    labels = {cell.name: cell.labels[1] for cell in real_cells()}
    rows = made.rows(select(Case.id, Case.external_id).where(Case.external_id.in_(labels)))
    return {handle_of(keys, account_id, case_id): labels[external_id] for case_id, external_id in rows}


def read_some(page: Page, made: Installation, name: str, n: int) -> None:
    """Read so many cases by keyboard alone, as the second annotator did."""
    classes = classes_by_handle(made, name)
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    for _ in range(n):
        case = page.get_attribute("[data-read]", "data-case") or ""
        page.keyboard.press(page.inner_text(f".choice:has([value={classes.get(case, 'irregular')}]) kbd").lower())
        page.wait_for_selector(f"[data-read]:not([data-case='{case}'])")
    page.wait_for_load_state("networkidle")


def annotator(page: Page, made: Installation, folder: Path) -> None:
    """The pages of somebody who has read most of what there is, signs out and comes back."""
    sign_in(page, made, "annotator-1")
    waiting = int(page.inner_text("h1 .muted").split()[0])
    read_some(page, made, "annotator-1", waiting - LEFT)
    page.click("text=Sign out")
    page.wait_for_url("**/login")
    sign_in(page, made, "annotator-1")
    keep(page, folder, "to-read")
    page.keyboard.press("Enter")
    page.wait_for_selector(".js [data-resident]")
    page.keyboard.press("Shift+2")
    keep(page, folder, "read")
    page.keyboard.press("Enter")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("Backspace")
    keep(page, folder, "correct")
    with made.parts() as context:  # which the worker does once a minute
        finalize_labels(context)
    for name in ("display", "help", "account", "me", "practice", "settled"):
        page.goto(f"{made.address}/{name}")
        keep(page, folder, name)
    page.click("main a:has(img) >> nth=0")
    keep(page, folder, "committed")


def lead(page: Page, made: Installation, folder: Path) -> None:
    """The pages of an admin."""
    sign_in(page, made, "admin")
    keep(page, folder, "worklist")
    page.click(f"li.tile:has-text('{disputed(page)}') a")
    keep(page, folder, "case")
    specimens(page, made, folder)
    pages = (
        "today",
        "cells",
        "classes",
        "report",
        "policy",
        "releases",
        "jobs",
        "imports",
        "people",
        "audit",
        "readers",
        "flagged",
    )
    deeper = (
        ("gallery", "/cells/gallery"),
        ("appendix", "/report/appendix"),
        ("specimen-quality", "/report/specimens"),
        ("api", "/v1/docs"),
    )
    for name, path in (*((name, f"/{name}") for name in pages), *deeper):
        page.goto(made.address + path)
        keep(page, folder, name)
    page.goto(f"{made.address}/imports")
    page.click("main .plain a >> nth=0")
    keep(page, folder, "import")
    page.goto(f"{made.address}/releases")
    page.click(".releases h2 a >> nth=0")
    keep(page, folder, "release")
    page.goto(f"{made.address}/people")
    page.click("main table a >> nth=0")
    keep(page, folder, "person")
    cell = next(cell.name for cell in real_cells())
    page.goto(f"{made.address}/people")
    page.click("summary:has-text('Invite an annotator')")
    page.fill("form[action='/people/invitations'] [name=annotator]", "Guest")
    page.fill("form[action='/people/invitations'] [name=cells]", cell)
    page.click("form[action='/people/invitations'] button")
    keep(page, folder, "invited")
    invitation = page.inner_text(".good code")
    page.click("text=Sign out")
    page.wait_for_url("**/login")
    keep(page, folder, "login")
    page.goto(invitation)
    keep(page, folder, "invitation")


def specimens(page: Page, made: Installation, folder: Path) -> None:
    """A specimen whose decision is open, and one that is signed."""
    password = "a password for the pictures"
    page.goto(f"{made.address}/account")
    page.fill("[name=wanted]", password)
    page.click("main form >> nth=0 >> button")
    page.goto(f"{made.address}/specimens")
    keep(page, folder, "specimens")
    page.click("main table a:has-text('S-2')")
    keep(page, folder, "specimen")
    page.goto(f"{made.address}/specimens")
    page.click("main table a:has-text('S-1')")
    page.click("[data-action=sign]")
    page.fill("form.sign [name=password]", password)
    page.click("form.sign button")
    keep(page, folder, "signed")


def disputed(page: Page) -> str:
    """The case that the tutorial shows; if it is not on the worklist, another one about which annotators differ."""
    tiles = page.locator("li.tile:has-text('adjudication')").all_inner_texts()
    differ = [DESCRIBED, *(cell.name for cell in real_cells() if cell.labels[0] != cell.labels[1])]
    return next((name for name in differ if any(name in text for text in tiles)), "adjudication")


@contextmanager
def demo(home: Path) -> Iterator[Installation]:
    made = Installation(home)
    if not home.exists():  # the same cells wait in every run
        home.mkdir()
        (home / "secret.key").write_bytes(SECRET)
        (home / "secret.key").chmod(0o600)
    made.run("demo", "--no-logins")
    made.start()
    try:
        yield made
    finally:
        made.stop()


def archive(made: Installation) -> bytes:
    """A zip of real cells, turned to be others; one row of its manifest names a missing image.

    Of patients whose labels are fitted: those of the other half that somebody reads would judge alone in the report.
    """
    rows, files = ["file,external_id,patient,site"], {}
    with made.parts() as context:
        key = context.keys.partition
    patients = [name for name in map("patient {}".format, range(40)) if partition_of(key, name, "") == "calibration"]
    for number, cell in enumerate(real_cells()[-24:]):
        buffer = io.BytesIO()
        Image.open(FOLDER / "images" / cell.file).transpose(Image.Transpose.ROTATE_90).save(buffer, "PNG")
        files[f"{number}.png"] = buffer.getvalue()
        rows.append(f"{number}.png,slide-7-{number:02},{patients[number // 4]},{'north' if number % 2 else 'south'}")
    return pack(files | {"manifest.csv": "\n".join([*rows, "24.png,slide-7-24,,"]).encode()})


def prepare(browser: Browser, made: Installation) -> None:
    """Some reads, an import, a frozen report and a recalibration, so that no page is empty."""
    page = browser.new_page()
    sign_in(page, made, "annotator-2")
    read_some(page, made, "annotator-2", READS)
    page = browser.new_page()
    sign_in(page, made, "admin")
    page.goto(f"{made.address}/imports")
    page.set_input_files(
        "[name=archive]", {"name": "cells.zip", "mimeType": "application/zip", "buffer": archive(made)}
    )
    page.click("main form button >> nth=0")
    page.wait_for_selector("text=1 failed", timeout=300_000)
    page.goto(f"{made.address}/report")
    page.click("text=Freeze this report")
    page.goto(f"{made.address}/releases")
    page.click("text=Recalibrate now")
    page.wait_for_selector("h3:has-text('candidate')", timeout=300_000)
    page.goto(f"{made.address}/releases")
    page.click(".releases h2 a >> nth=0")
    page.click("text=Predict missing cells")
    page.wait_for_selector("tr[data-state=succeeded]:has-text('prediction')", timeout=300_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, help="a demo's HOME that exists already")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--docs", action="store_true", help="renew the pictures that README and tutorial show")
    arguments = parser.parse_args()
    binary = find_chromium()
    if binary is None:
        sys.exit("Chromium is missing (Debian package chromium)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        home = Path(folder) / "home"
        if arguments.home is not None:
            shutil.copytree(arguments.home, home)
        with demo(home) as made:
            browser = playwright.chromium.launch(executable_path=binary, args=FLAGS)
            prepare(browser, made)
            for walk in (annotator, lead):
                context = browser.new_context()
                walk(context.new_page(), made, arguments.out)
                context.close()
            browser.close()
    for shown in SHOWN.glob("*.png") if arguments.docs else []:
        shutil.copy(arguments.out / shown.name, shown)


if __name__ == "__main__":
    main()
