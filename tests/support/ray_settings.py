"""Settings of a Ray that this process starts."""

import secrets

import pytest

#: Ray reads its token once in a process.
TOKEN = secrets.token_hex(32)


def set_up(patch: pytest.MonkeyPatch) -> None:
    """No report of use, much time to start, and a token."""
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_raylet_start_wait_time_s", "300")
    patch.setenv("RAY_AUTH_MODE", "token")
    patch.setenv("RAY_AUTH_TOKEN", TOKEN)
