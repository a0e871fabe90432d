"""Subprocess that draws simulated cells and writes their pixels to stdout.

A cell depends on its number and the seed alone, so that it does not matter which process draws it.
"""

import sys

from ml.datasets.cells import simulate_cell


def main() -> None:
    """Draw the cells from the first to before the last, of a seed and a size, as the arguments say."""
    first, last, seed, size = map(int, sys.argv[1:])
    for index in range(first, last):
        sys.stdout.buffer.write(simulate_cell(index, seed=seed, size=size).pixels.tobytes())
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
