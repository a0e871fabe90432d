"""What the rounds of a fault came to: a row of the table in docs/reliability.md."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rounds:
    """Rounds of one fault on one database.

    Attributes:
        fault: number in the table of faults, such as ``F1``.
        what: what was done to the service, in one line.
        database: ``sqlite`` or ``postgresql``.
        rounds: how many times it was done.
        acknowledged: requests that were answered with success.
        lost: of these, how many are not in the database.
        duplicates: rows that one request wrote more than once.
        server_errors: answers of 500 and above other than 503 and 507, which ask to come back.
        recovery_seconds: until the service was ready again, the longest.
    """

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
        """Add the row to the file that ``SECONDREAD_FAULTS_OUT`` names, if it names one: a JSON document per line."""
        print(asdict(self))
        out = os.environ.get("SECONDREAD_FAULTS_OUT")
        if out:
            with Path(out).open("a") as file:
                file.write(json.dumps(asdict(self)) + "\n")
