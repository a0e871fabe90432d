"""Simulations and research scripts that no command reaches, outside the wheel; each makes a page of results."""

from pathlib import Path

#: Shared with the benchmarks: pages quote the newest result of a name.
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
