"""What an annotator waits for: the server's time for an answer given in the browser, the next case, and its page.

    python -m benchmarks.answering --save

One annotator who reads as the pages without scripts do: a form per answer. The server's own log says how long it took.
"""

import argparse
import json
import platform
import re
import statistics
import tempfile
from datetime import date
from pathlib import Path

import httpx2

from benchmarks.labels import fill
from tests.support.process import Installation
from tests.support.tiny_release import write_tiny_release

READS, FIRST = 60, 5
PASSWORD = "a password for this benchmark"
#: What is timed, by the route of the server's log.
ROUTES = {
    "an answer (ms)": ("POST", "/reads/{handle}/label"),
    "the next case (ms)": ("POST", "/reads/next"),
    "its page (ms)": ("GET", "/cases/{case_id}"),
}


def sign_in(client: httpx2.Client, made: Installation) -> None:
    """Sign in with a one-time password, and choose one of one's own."""
    client.post("/login", data={"name": "anna", "password": made.one_time_password("anna")}).raise_for_status()
    client.post("/account", data={"wanted": PASSWORD}).raise_for_status()


def read_one(client: httpx2.Client) -> None:
    """Take the next case, look at it, and answer."""
    shown = client.post("/reads/next")
    shown.raise_for_status()
    form = re.search(r'action="(/reads/[^"/]+/label)"', shown.text)
    label = re.search(r'name="label" value="([^"]+)"', shown.text)
    assert form is not None, "the page has no form"
    assert label is not None, "the form has no classes"
    client.post(form[1], data={"label": label[1]}).raise_for_status()


def measure(folder: Path, n_reads: int) -> dict[str, float]:
    """Medians of the server's milliseconds, the first reads left out."""
    with Installation(folder / "home") as made:
        made.prepare(write_tiny_release(folder / "tiny"), admin="admin", anna="annotator")
        with made.parts() as context:
            fill(context)
        made.start()
        headers = {"Accept": "text/html", "Origin": made.address}
        with httpx2.Client(base_url=made.address, headers=headers, follow_redirects=True, timeout=60) as client:
            sign_in(client, made)
            for _ in range(FIRST + n_reads):
                read_one(client)
        lines = [line for line in (folder / "server.log").read_text().splitlines() if line.startswith("{")]
    took: dict[tuple[str, str], list[float]] = {}
    for line in map(json.loads, lines):
        if line.get("event") == "request":
            took.setdefault((line["method"], line["route"]), []).append(line["milliseconds"])
    return {name: statistics.median(took[route][FIRST:]) for name, route in ROUTES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=READS)
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.reads)
    for name, value in found.items():
        print(f"{value:8.1f}  {name}")
    if options.save:
        path = Path(__file__).parent / "results" / f"{date.today().isoformat()}_answering.json"
        path.write_text(json.dumps({"machine": f"2 cores, {platform.machine()}", "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
