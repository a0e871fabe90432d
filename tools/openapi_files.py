"""What is made from the OpenAPI document and kept in the repository.

    python -m tools.openapi_files        writes what has changed

A test says when that is due.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from app.main import create_app
from app.settings import Settings
from tools.python_client import python_client
from tools.typescript_client import SCHEMA, is_present, typescript_types

ROOT = Path(__file__).parents[1]
OPENAPI = ROOT / "docs" / "reference" / "openapi.json"


def openapi() -> dict[str, Any]:
    """The application's OpenAPI document."""
    with tempfile.TemporaryDirectory() as folder:
        return create_app(Settings(home=Path(folder))).openapi()


def made(document: dict[str, Any]) -> dict[Path, str]:
    """Every file with its content, but for the types of TypeScript, which take Node."""
    return {
        OPENAPI: json.dumps(document, indent=1, ensure_ascii=False) + "\n",
        **python_client(document),
    }


def main() -> None:
    """Write every file that is not as it should be."""
    document = openapi()
    files = made(document)
    if not is_present(document):
        files[SCHEMA] = typescript_types(document)
    for path, text in files.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
