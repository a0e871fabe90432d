"""Plain FastAPI with a ``def`` endpoint: ``python plain_fastapi.py SPEC PORT``."""

from typing import Annotated

import uvicorn
from fastapi import FastAPI, File
from work import Work, arguments


def main() -> None:
    spec, port = arguments()
    work, app = Work(spec), FastAPI()

    @app.post("/predict")
    def predict(image: Annotated[bytes, File()]) -> dict[str, float]:
        return work.run(work.inputs(image))[0]

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
