"""LitServe without batching: ``python lit_serve.py SPEC PORT``."""

import litserve
from fastapi import Request
from work import Work, arguments


class Api(litserve.LitAPI):  # type: ignore[misc]
    """The same work as the other peers do."""

    def setup(self, device: str) -> None:
        self.work = Work(arguments()[0])

    def decode_request(self, request: Request) -> object:
        return self.work.inputs(request["image"].file.read())

    def predict(self, inputs: object) -> object:
        return self.work.run(inputs)[0]

    def encode_response(self, output: object) -> object:
        return output


def main() -> None:
    server = litserve.LitServer(Api(), accelerator="cpu", workers_per_device=1)
    server.run(port=arguments()[1], log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main()
