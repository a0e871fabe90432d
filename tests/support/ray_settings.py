"""Settings of a Ray that this process starts."""

import secrets

import pytest

#: No report of use, much time to start, and a token, which Ray reads once in a process.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


def set_up(patch: pytest.MonkeyPatch) -> None:
    """Give the settings to this process."""
    for name, value in SETTINGS.items():
        patch.setenv(name, value)
