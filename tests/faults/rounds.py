"""What the rounds of a fault came to: a row of the table in docs/reliability.md."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

#: File of rows in the folder of results.
ROWS = "rounds.jsonl"


def results_folder() -> Path | None:
    """Folder for what a run of faults came to, if ``SECONDREAD_FAULTS_OUT`` names one."""
    folder = os.environ.get("SECONDREAD_FAULTS_OUT")
    return Path(folder) if folder else None


@dataclass(frozen=True)
class Rounds:
    """Rounds of one fault on one database."""

    fault: str
    what: str
    database: str
    rounds: int
    acknowledged: int
    lost: int
    duplicates: int
    server_errors: int
    recovery_seconds: float | None = None

    def note(self) -> None:
        """Add the row to the file of rows in the folder of results, if there is one: a JSON document per line."""
        print(asdict(self))
        folder = results_folder()
        if folder is not None:
            with (folder / ROWS).open("a") as file:
                file.write(json.dumps(asdict(self)) + "\n")
