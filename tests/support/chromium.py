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
    """Path of a Chromium or Chrome; of the one without windows where there is a choice, which takes half the time."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)
