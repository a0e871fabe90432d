"""The Chromium of the machine, and how it is started."""

import shutil

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
