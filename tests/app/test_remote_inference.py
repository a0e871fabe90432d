"""A network behind a backend: the same numbers, no wrong ones, and nothing is computed here in its place."""

import gzip
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from app import settings
from app.http.errors import ServiceUnavailable
from app.predictions import remote
from app.predictions.remote import InferenceBackend, NetworkMismatchError
from app.predictions.wire_format import HEADER_LENGTH, OutputTensor, read_message, write_message
from app.settings import Settings, read_settings
from ml.images.preprocess import decode_image
from ml.release.artifact import Release, read_release
from ml.release.predictor import LocalNetwork, Predictor
from ml.release.triton import network_name
from tests.support.process import Installation
from tests.support.sabotage import undone
from tests.support.service import cell_png
from tests.support.tiny_release import edit_release
from tests.support.waiting import patient, wait_until

FILES = [cell_png(number) for number in range(8)]


def server(folder: Path, release: Path, **environment: str) -> Installation:
    made = Installation(folder / "home")
    folder.mkdir(exist_ok=True)
    made.environment |= {"SECONDREAD_WORKER": "false", **environment}
    made.keys = made.prepare(release, program="service")
    made.home.chmod(0o700)
    return made


def in_front_of(backend: Installation, folder: Path, release: Path, path: str = "") -> Installation:
    url = {"SECONDREAD_INFERENCE_URL": backend.address + path, "SECONDREAD_INFERENCE_TOKEN": backend.keys["program"]}
    return server(folder, release, **url)


def predict(made: Installation, data: bytes) -> httpx2.Response:
    return made.call("program", "POST", "/v1/predictions", content=data, headers={"Content-Type": "image/png"})


def numbers(answer: dict[str, Any]) -> list[float]:
    return [*answer["class_probs"].values(), answer["log_concentration"], answer["disagreement_prob"] or -1.0]


def readiness(made: Installation) -> tuple[int, str]:
    """Status and what is said of the release; 0 while nobody is there."""
    try:
        answer = made.call("program", "GET", "/readyz")
    except httpx2.TransportError:
        return 0, ""
    return answer.status_code, answer.json()["release"]


@pytest.mark.slow
def test_kills_of_the_backend_give_503_and_no_wrong_answer(tmp_path: Path, small_release: Path) -> None:
    backend = server(tmp_path / "backend", small_release)
    with backend, in_front_of(backend, tmp_path / "front", small_release) as front:
        backend.start()
        front.start()
        expected = [numbers(predict(backend, data).json()) for data in FILES]
        ended, found = threading.Event(), []

        def ask(offset: int) -> None:
            number = offset
            while not ended.is_set():
                answer = predict(front, FILES[number % len(FILES)])
                found.append(
                    (number % len(FILES), answer.status_code, answer.headers.get("retry-after"), answer.json())
                )
                number += 1

        threads = [threading.Thread(target=ask, args=(offset,)) for offset in (0, 3)]
        for thread in threads:
            thread.start()

        def answered(status: int) -> None:
            """Wait for an answer of this status to a request from now on."""
            before = len(found)
            wait_until(lambda: any(row[1] == status for row in found[before:]), 30, lambda: f"no {status}")

        for _ in range(3):
            answered(200)
            backend.stop(signal.SIGKILL)
            answered(503)
            assert readiness(front) == (503, "the inference backend does not answer; try again")
            backend.start()
        answered(200)
        wait_until(lambda: readiness(front)[0] == 200, 30, lambda: "it did not become ready")
        ended.set()
        for thread in threads:
            thread.join()
    assert {row[1] for row in found} == {200, 503}
    assert {row[2] for row in found if row[1] == 503} == {"5"}
    for number, status, _, answer in found:
        if status == 200:
            np.testing.assert_allclose(numbers(answer), expected[number], rtol=0, atol=1e-6)


def with_other_weights(source: Path, out: Path) -> Path:
    """The same release of another network, of the same shapes."""
    model = onnx.load(source / "network.onnx")
    for weights in model.graph.initializer:
        if weights.data_type == onnx.TensorProto.FLOAT:
            weights.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weights), weights.name))
    return edit_release(source, out, {"network.onnx": model.SerializeToString()})


@pytest.mark.slow
def test_another_network_is_refused_at_the_start_and_when_it_takes_the_place_of_the_right_one(
    tmp_path: Path, small_release: Path
) -> None:
    """Both map the same images to the same classes: the digest alone tells them apart."""
    other = with_other_weights(small_release, tmp_path / "release")
    backend = server(tmp_path / "backend", small_release)
    with backend:
        backend.start()
        with in_front_of(backend, tmp_path / "refused", other, "/v2/models/champion") as front:
            refused = front.run("serve", check=False)
            assert refused.returncode == 1
            assert "the inference backend runs a different network" in refused.stderr
            assert len([line for line in refused.stderr.splitlines() if line[0] != "{"]) == 1  # and the log
        with in_front_of(backend, tmp_path / "waits", other) as front:
            front.server = front.spawn("serve", log="server.log")
            wait_until(lambda: readiness(front)[0] == 503, 30, lambda: front.log)
            assert readiness(front) == (503, "the inference backend does not have the network of the release")
            assert predict(front, FILES[0]).status_code == 503
        with in_front_of(backend, tmp_path / "front", small_release, "/v2/models/champion") as front:
            front.start()
            assert predict(front, FILES[0]).status_code == 200
            backend.run("release", "add", other)
            new = json.loads(backend.run("release", "list", "--json").stdout)[0]["id"]
            backend.run("release", "promote", new, "--reason", "a test", "--despite-gate")
            answer = predict(front, FILES[0])
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.json()["detail"] == "the inference backend runs a different network from the model release"
            assert readiness(front) == (503, answer.json()["detail"])


class Triton(ThreadingHTTPServer):
    """Answers of Triton, with the real network behind them, and the wrong ones that a test asks for.

    Args:
        release: whose network it runs.
    """

    daemon_threads = True

    def __init__(self, release: Release) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.release, self.network = release, LocalNetwork(release, 1, device="cpu")
        self.sha256: str | None = release.network_sha256
        self.change: Callable[[list[OutputTensor]], list[OutputTensor]] = lambda tensors: tensors
        self.resets = self.connections = self.status = self.sent = 0
        self.hostile: tuple[str, str] | None = None
        self.asked_by: list[InferenceBackend] = []

    def backend(self, path: str = "") -> InferenceBackend:
        """A client of it, closed with it."""
        self.asked_by.append(InferenceBackend(self.address + path))
        return self.asked_by[-1]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Triton

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, document: object, status: int = 200) -> None:
        self.send(json.dumps(document).encode(), status, {})

    def send(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_without_end(self, how: str) -> None:
        """A bomb, chunks without an end, or a byte now and then, of the headers too; counts what was taken."""
        self.close_connection = True
        part = b" " * 65_536
        try:
            if how == "slow headers":
                part = b"HTTP/1.1 200 OK\r\nX: "
            else:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                if how == "bomb":
                    self.send_header("Content-Encoding", "gzip")
                    part = gzip.compress(b" " * 64 * 1024**2)
                self.end_headers()
            while True:
                self.server.sent += len(part)
                self.wfile.write(part if how == "slow headers" else b"%x\r\n%b\r\n" % (len(part), part))
                if how.startswith("slow"):
                    part = b" "
                    time.sleep(0.1)
        except OSError:
            return

    def do_GET(self) -> None:
        release = self.server.release
        if self.server.hostile is not None and self.server.hostile[0] == "metadata":
            self.send_without_end(self.server.hostile[1])
            return
        model = f"/v2/models/{network_name(release.network_sha256)}"
        if self.path == f"{model}/config" and self.server.sha256 is not None:
            self.answer({"parameters": {"network_sha256": {"string_value": self.server.sha256}}})
        elif self.path == model:
            side = release.preprocessing.size
            shapes = {"image": [-1, 3, side, side], "logits": [-1, len(release.classes)], "features": [-1, -1]}
            told = [{"name": name, "datatype": "FP32", "shape": shape} for name, shape in shapes.items()]
            self.answer({"name": "x", "versions": ["1"], "platform": "", "inputs": told[:1], "outputs": told[1:]})
        else:
            self.answer({"error": "Request for unknown model"}, 400)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.resets:
            self.server.resets -= 1
            self.close_connection = True
            self.connection.close()
            return
        if self.server.hostile is not None:
            self.send_without_end(self.server.hostile[1])
            return
        if self.server.status:
            self.answer({"error": "as the test asked"}, self.server.status)
            return
        message = read_message(body, self.headers[HEADER_LENGTH])
        shape = message.document["inputs"][0]["shape"]
        logits, features = self.server.network.run(np.frombuffer(message.rest, "<f4").reshape(shape))
        tensors = self.server.change([OutputTensor("logits", logits, True), OutputTensor("features", features, True)])
        content, size = write_message({"model_name": "x", "model_version": "1"}, "outputs", tensors)
        self.send(content, 200, {"Inference-Header-Content-Length": str(size)} if size is not None else {})


@pytest.fixture
def triton(small_release: Path) -> Iterator[Triton]:
    made = Triton(read_release(small_release))
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    for backend in made.asked_by:
        backend.close()
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks again at once, where the moment of rest is not what is tested."""
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.0)


def test_triton_gives_what_the_network_gives_here(triton: Triton) -> None:
    release = triton.release
    network = triton.backend().network(release)
    images = [decode_image(data) for data in FILES]
    there, here = Predictor(release, network=network).predict(images), Predictor(release, 1).predict(images)
    np.testing.assert_allclose(there.logits, here.logits, rtol=0, atol=1e-6)
    np.testing.assert_allclose(there.features, here.features, rtol=0, atol=1e-6)
    np.testing.assert_allclose(there.distribution.class_probs, here.distribution.class_probs, rtol=0, atol=1e-6)
    assert triton.connections == 1, "the connection is kept"
    triton.change = lambda tensors: [OutputTensor(tensor.name, tensor.values, False) for tensor in tensors]
    again = network.run(np.stack([release.preprocessing(image) for image in images]))
    np.testing.assert_allclose(again[0], here.logits, rtol=0, atol=1e-6)


def test_many_images_go_in_several_requests(triton: Triton, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def note(tensors: list[OutputTensor]) -> list[OutputTensor]:
        seen.append(len(tensors[0].values))
        return tensors

    triton.change = note
    inputs = np.stack([triton.release.preprocessing(decode_image(data)) for data in FILES])
    monkeypatch.setattr(remote, "MAX_REQUEST_BYTES", 3 * inputs[:1].nbytes)
    logits, _ = triton.backend().network(triton.release).run(inputs)
    assert (seen, len(logits)) == ([3, 3, 2], 8)


@undone(
    "T8",
    "the digest of a backend's network is compared with the release's",
    remote.RemoteNetwork,
    "_compare",
    lambda *_: None,
)
def test_a_digest_that_triton_gives_is_compared_and_none_is_accepted(triton: Triton) -> None:
    triton.sha256 = "0" * 64
    with pytest.raises(NetworkMismatchError, match="a different network from the model release: its SHA-256"):
        triton.backend().network(triton.release)
    triton.sha256 = None
    assert triton.backend().network(triton.release).trouble() is None
    with pytest.raises(ServiceUnavailable, match="does not have the network"):
        triton.backend("/v2/models/another").network(triton.release)


@pytest.mark.usefixtures("impatient")
def test_one_reset_is_asked_again_and_two_are_told(triton: Triton) -> None:
    network = triton.backend().network(triton.release)
    inputs = triton.release.preprocessing(decode_image(FILES[0]))[None]
    triton.resets = 1
    assert len(network.run(inputs)[0]) == 1
    triton.resets = 2
    with pytest.raises(ServiceUnavailable, match="does not answer"):
        network.run(inputs)
    assert network.trouble() is None


WRONG: dict[str, Callable[[list[OutputTensor]], list[OutputTensor]]] = {
    "NaN": lambda t: [OutputTensor("logits", t[0].values * np.nan, True), t[1]],
    "null": lambda t: [OutputTensor("logits", t[0].values * np.nan, False), t[1]],
    "other classes": lambda t: [OutputTensor("logits", t[0].values[:, :3], True), t[1]],
    "other images": lambda t: [OutputTensor("logits", np.repeat(t[0].values, 2, axis=0), True), t[1]],
    "other features": lambda t: [t[0], OutputTensor("features", t[1].values[:, :2], True)],
    "no features": lambda t: t[:1],
    "flat": lambda t: [OutputTensor("logits", t[0].values.ravel(), True), t[1]],
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", WRONG)
def test_what_no_network_gives_is_no_prediction(triton: Triton, name: str) -> None:
    network = triton.backend().network(triton.release)
    inputs = triton.release.preprocessing(decode_image(FILES[0]))[None]
    network.run(inputs)
    triton.change = WRONG[name]
    with pytest.raises(ServiceUnavailable, match="unexpected output"):
        network.run(inputs)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "rejects the token"), (429, "unavailable"), (500, "unavailable"), (400, "rejects the network")],
)
def test_each_refusal_is_told_and_passes(triton: Triton, status: int, said: str) -> None:
    network = triton.backend().network(triton.release)
    inputs = triton.release.preprocessing(decode_image(FILES[0]))[None]
    triton.status = status
    with pytest.raises(ServiceUnavailable, match=said):
        network.run(inputs)
    triton.status = 0
    assert len(network.run(inputs)[0]) == 1


@pytest.mark.slow
@pytest.mark.ci
@undone("T27", "the bytes of an answer have a limit", remote, "BYTES_PER_NUMBER", 10**9)
@pytest.mark.parametrize("how", ["bomb", "endless", "slow", "slow headers"])
@pytest.mark.parametrize("what", ["metadata", "numbers"])
def test_an_answer_without_an_end_is_refused_in_time_and_takes_no_memory(
    triton: Triton, monkeypatch: pytest.MonkeyPatch, what: str, how: str
) -> None:
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 2.0)
    backend = triton.backend()
    inputs = np.zeros((1, 3, *2 * (triton.release.preprocessing.size,)), dtype=np.float32)
    if what == "numbers":
        backend.network(triton.release).run(inputs)
    triton.hostile, begun = (what, how), time.monotonic()
    with pytest.raises(ServiceUnavailable, match=r"does not answer|unexpected output"):
        backend.network(triton.release).run(inputs)
    assert time.monotonic() - begun < patient(3)
    assert triton.sent < remote.MAX_METADATA + 8 * 1024**2  # what lies in buffers of the system was sent as well


def test_a_backend_that_failed_is_left_alone_for_a_moment(triton: Triton) -> None:
    network = triton.backend().network(triton.release)
    inputs = triton.release.preprocessing(decode_image(FILES[0]))[None]
    triton.status = 503
    with pytest.raises(ServiceUnavailable, match="unavailable"):
        network.run(inputs)
    triton.status = 0
    before = triton.connections
    with pytest.raises(ServiceUnavailable, match="unavailable"):
        network.run(inputs)
    assert triton.connections == before
    time.sleep(remote.PAUSE_SECONDS)
    assert len(network.run(inputs)[0]) == 1


def test_an_address_that_is_none_is_told() -> None:
    for url in ("triton:8000", "ftp://triton", "http://", "http://a@triton", "http://triton/?x=1"):
        with pytest.raises(ValueError, match=r"must be an address|must not carry"):
            Settings(inference_url=url)


@undone("T27", "what leaves this machine is encrypted", settings, "_is_this_machine", lambda _: True)
@pytest.mark.parametrize(
    ("name", "address", "host"),
    [
        ("SECONDREAD_INFERENCE_URL", "http://gpu:8000/v2/models/cells", "gpu"),
        ("SECONDREAD_INFERENCE_URL", "http://[fd00::7]:8000", "fd00::7"),
        ("AWS_ENDPOINT", "http://bucket:9000", "bucket"),
        ("AWS_ENDPOINT_URL", "http://10.0.0.7:9000", "10.0.0.7"),
    ],
)
def test_nothing_is_asked_of_another_machine_without_tls_unless_that_is_set(
    monkeypatch: pytest.MonkeyPatch, name: str, address: str, host: str
) -> None:
    monkeypatch.setenv("SECONDREAD_STORAGE_URL", "s3://cells/laboratory")
    for other in (address.replace("http:", "https:"), "http://127.0.0.1:9000", "http://localhost:9000"):
        monkeypatch.setenv(name, other)
        read_settings()
    monkeypatch.setenv(name, address)
    with pytest.raises(ValueError, match=rf"^{name}: {re.escape(host)} .* SECONDREAD_PLAIN_HTTP_HOSTS='\["):
        read_settings()
    monkeypatch.setenv("SECONDREAD_PLAIN_HTTP_HOSTS", json.dumps([host]))
    read_settings()


def test_a_service_that_would_ask_without_tls_does_not_start(tmp_path: Path) -> None:
    made = Installation(tmp_path / "home")
    made.environment |= {"SECONDREAD_STORAGE_URL": "s3://cells", "AWS_ENDPOINT": "http://bucket:9000"}
    refused = made.run("serve", check=False)
    assert refused.returncode != 0
    assert "SECONDREAD_PLAIN_HTTP_HOSTS='[\"bucket\"]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not made.home.exists()
