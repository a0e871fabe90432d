"""A bucket of S3's protocol on this machine: moto's server, as a process that ends with the tests."""

import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.store import from_url

from tests.support.process import free_port
from tests.support.waiting import wait_until


class BucketServer:
    """Buckets by name; what it has is lost when it ends."""

    #: Of its process.
    pid: int

    def __init__(self, port: int) -> None:
        self.port = port
        self.environment = {
            "AWS_ACCESS_KEY_ID": "of the tests",
            "AWS_SECRET_ACCESS_KEY": "of the tests",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": self.address,
        }

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.address}/moto-api/data.json", timeout=2).close()
        except OSError:
            return False
        return True

    def create(self) -> str:
        """A new bucket; gives the address of a prefix in it."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        urllib.request.urlopen(urllib.request.Request(f"{self.address}/{name}", method="PUT")).close()
        return f"s3://{name}/prefix"

    def overwrite(self, url: str, key: str, data: bytes) -> None:
        """Change an object past the store, with the credentials that are set."""
        obstore.put(from_url(url, client_options={"allow_http": True}), key, data)

    def save(self, url: str, folder: Path) -> None:
        """Write every object into a folder, with the credentials that are set."""
        store = from_url(url, client_options={"allow_http": True})
        for found in [found for chunk in obstore.list(store) for found in chunk]:
            path = folder / found["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(obstore.get(store, found["path"]).bytes()))


@contextmanager
def bucket_server(log: Path) -> Iterator[BucketServer]:
    server = BucketServer(free_port())
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(server.port)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
    server.pid = process.pid
    try:
        wait_until(server._answers, what=lambda: f"the bucket's server does not answer\n{log.read_text()}")
        yield server
    finally:
        process.kill()
        process.wait()
