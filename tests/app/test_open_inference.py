"""The Open Inference Protocol as its own client speaks it: the numbers of `/v1/predictions`, and hostile requests."""

import base64
import json
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from app.accounts import people as auth
from app.http.limiter import LARGE_PICTURES, LimitPlace
from app.predictions.inference import InferenceEngine
from app.predictions.open_inference import service as open_inference
from app.predictions.open_inference.service import OUTPUTS, PER_BYTE
from app.predictions.wire_format import MAX_JSON, read_message
from ml.datasets.cells import simulate_cell
from ml.images.preprocess import decode_image
from ml.release.artifact import Release, read_release
from ml.release.triton import network_name
from tests.support.images import encode
from tests.support.process import Installation
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png
from tests.support.tiny_release import with_familiarity
from tests.support.waiting import patient, wait_until

T = TypeVar("T")
FILES = [cell_png(number) for number in range(5)]


@pytest.fixture(scope="module")
def server(small_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(tmp_path_factory.mktemp("protocol") / "home") as made:
        made.environment["SECONDREAD_WORKER"] = "false"
        made.keys = made.prepare(small_release, program="service", anna="annotator", viewer="viewer")
        made.start()
        yield made


@pytest.fixture(scope="module")
def release(small_release: Path) -> Release:
    return read_release(small_release)


@pytest.fixture
def client(server: Installation) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address.removeprefix("http://")) as made:
        yield made


@pytest.fixture
def by_key(server: Installation) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.keys['program']}"}


@pytest.fixture(scope="module")
def expected(server: Installation) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {server.keys['program']}", "Content-Type": "image/png"}
    return [httpx2.post(f"{server.address}/v1/predictions", headers=headers, content=data).json() for data in FILES]


def image_input(release: Release, *, binary: bool) -> triton.InferInput:
    pixels = np.stack([release.preprocessing(decode_image(data)) for data in FILES])
    made = triton.InferInput("image", list(pixels.shape), "FP32")
    made.set_data_from_numpy(pixels, binary_data=binary)
    return made


def bytes_input(*, binary: bool) -> triton.InferInput:
    made = triton.InferInput("bytes", [len(FILES)], "BYTES")
    content = FILES if binary else [base64.b64encode(data) for data in FILES]
    made.set_data_from_numpy(np.array(content, dtype=object), binary_data=binary)
    return made


def peak_of(work: Callable[[], T]) -> tuple[T, int]:
    """What some work gives, and the most bytes that Python had on the way."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def same_as(expected: list[dict[str, Any]], result: triton.InferResult) -> None:
    probs = np.array([[row["class_probs"][code] for code in row["classes"]] for row in expected])
    np.testing.assert_allclose(result.as_numpy("class_probs"), probs, rtol=0, atol=1e-6)
    for name in ("log_concentration", "disagreement_prob"):
        numbers = np.array([row[name] for row in expected], dtype=np.float64)  # null becomes NaN
        np.testing.assert_allclose(result.as_numpy(name), numbers, rtol=0, atol=1e-6)


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("kind", ["image", "bytes"])
def test_the_protocols_own_client_gets_the_numbers_of_v1(
    client: triton.InferenceServerClient,
    by_key: dict[str, str],
    release: Release,
    expected: list[dict[str, Any]],
    kind: str,
    binary_in: bool,
    binary_out: bool,
) -> None:
    given = image_input(release, binary=binary_in) if kind == "image" else bytes_input(binary=binary_in)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in OUTPUTS]
    result = client.infer("champion", [given], outputs=outputs, request_id="a request", headers=by_key)
    assert len({row["release"] for row in expected}) == 1
    answer = result.get_response()
    assert (answer["id"], answer["model_version"]) == ("a request", expected[0]["release"])
    same_as(expected, result)
    assert result.as_numpy("logits").shape == (len(FILES), len(release.classes))
    assert result.as_numpy("features").shape[0] == len(FILES)


def test_a_model_goes_by_several_names_and_says_what_it_takes(
    client: triton.InferenceServerClient, by_key: dict[str, str], release: Release, expected: list[dict[str, Any]]
) -> None:
    version = expected[0]["release"]
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata(headers=by_key)["extensions"] == ["binary_tensor_data"]
    for name in ("champion", release.card["name"], network_name(release.network_sha256)):
        told = client.get_model_metadata(name, headers=by_key)
        assert (told["name"], told["versions"]) == (name, [version])
        assert told["parameters"]["network_sha256"] == release.network_sha256
        assert "uses only the features" in told["inputs"][0]["parameters"]["description"]
        assert client.is_model_ready(name, headers=by_key)
        result = client.infer(name, [bytes_input(binary=True)], model_version=version, headers=by_key)
        same_as(expected, result)
        assert client.is_model_ready(name, model_version=version, headers=by_key)
    for name, other in (("nobody", ""), ("champion", "1")):
        with pytest.raises(InferenceServerException, match="no such"):
            client.get_model_metadata(name, model_version=other, headers=by_key)


def test_outputs_are_chosen(client: triton.InferenceServerClient, by_key: dict[str, str], release: Release) -> None:
    wanted = [triton.InferRequestedOutput("features"), triton.InferRequestedOutput("logits", binary_data=False)]
    result = client.infer("champion", [image_input(release, binary=True)], outputs=wanted, headers=by_key)
    found = [(output["name"], "data" in output) for output in result.get_response()["outputs"]]
    assert found == [("features", False), ("logits", True)]


@pytest.fixture
def program(service: Service) -> Service:
    with service.context.database.write() as session:
        auth.add_account(session, service.context.keys.audit, "program", "service")
        service.keys["program"] = auth.add_key(session, service.context.keys.audit, "program", ["predict"])[1]
    return service


def asked(service: Service, body: bytes, header: str | None = None, **headers: str) -> httpx2.Response:
    sent = headers if header is None else headers | {"Inference-Header-Content-Length": header}
    return service.call("program", "POST", "/v2/models/champion/infer", content=body, headers=sent)


def tensor(service: Service, **changes: Any) -> dict[str, Any]:
    """An input of one image, right but for the changes."""
    shape = service.context.inference._served.predictor.release.preprocessing
    numbers = [0.0] * (shape.channels * shape.size**2)
    return {
        "name": "image",
        "datatype": "FP32",
        "shape": [1, shape.channels, shape.size, shape.size],
        "data": numbers,
    } | changes


def inputs(*tensors: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": list(tensors), **more}).encode()


Hostile = Callable[[Service], tuple[bytes, str | None]]
HOSTILE: dict[str, tuple[Hostile, str]] = {
    "nothing": (lambda s: (b"", None), "cannot be read"),
    "a deep list": (lambda s: (b"[" * 1_000_000, None), "cannot be read"),
    "a number of digits": (lambda s: (b'{"id": ' + b"9" * 100_000 + b"}", None), "cannot be read"),
    "no inputs": (lambda s: (b"{}", None), "`inputs` must be a list"),
    "two inputs": (lambda s: (inputs(tensor(s), tensor(s)), None), "exactly one input"),
    "another input": (lambda s: (inputs(tensor(s, name="x")), None), "exactly one input"),
    "a name of lists": (lambda s: (inputs(tensor(s, name=["image"])), None), "exactly one input"),
    "an id of numbers": (lambda s: (inputs(tensor(s), id=3), None), "`id` must be text"),
    "another shape": (lambda s: (inputs(tensor(s, shape=[1, 3, 5, 5])), None), "the shape"),
    "a shape of text": (lambda s: (inputs(tensor(s, shape="1")), None), "whole numbers"),
    "a negative shape": (lambda s: (inputs(tensor(s, shape=[-1, 3, 5, 5])), None), "whole numbers"),
    "a billion": (lambda s: (inputs(tensor(s, shape=[10**9, *tensor(s)["shape"][1:]])), None), "claims 1,000,000,000"),
    "a claim": (lambda s: (inputs(tensor(s, shape=[64, *tensor(s)["shape"][1:]])), None), "the shape says"),
    "another type": (lambda s: (inputs(tensor(s, datatype="INT8")), None), "datatype FP32"),
    "ragged": (lambda s: (inputs(tensor(s, data=[[[1], [1, 2]]])), None), "the shape says"),
    "lists of nothing": (lambda s: (inputs(tensor(s, data=[[]] * 300_000)), None), "300,000 rows"),
    "an endless number": (lambda s: (inputs(tensor(s, data=[10**400] * len(tensor(s)["data"]))), None), "too large"),
    "NaN": (lambda s: (inputs(tensor(s, data=[float("nan")])), None), "NaN and infinity"),
    "beyond FP32": (lambda s: (inputs(tensor(s, data=[1e300] * len(tensor(s)["data"]))), None), "not finite"),
    "raw pixels": (lambda s: (inputs(tensor(s, data=[128] * len(tensor(s)["data"]))), None), "scale pixels"),
    "null": (lambda s: (inputs(tensor(s, data=[None] * len(tensor(s)["data"]))), None), "not finite"),
    "another output": (lambda s: (inputs(tensor(s), outputs=[{"name": "secret"}]), None), "no such output"),
    "shared memory": (
        lambda s: (inputs(tensor(s, parameters={"shared_memory_region": "x"})), None),
        "not from shared memory",
    ),
    "a header of text": (lambda s: (inputs(tensor(s)), "many"), "must be the number of bytes"),
    "a header beyond": (lambda s: (inputs(tensor(s)), "999999999999"), "says 999,999,999,999 bytes"),
    "a huge header": (lambda s: (inputs(tensor(s)), "9" * 5_000), "must be the number of bytes"),
    "a short header": (lambda s: (inputs(tensor(s)), "10"), "cannot be read"),
    "more bytes": (lambda s: (inputs(tensor(s)) + b"xxxx", str(len(inputs(tensor(s))))), "belong to no tensor"),
    "size beyond": (
        lambda s: (inputs(tensor(s, parameters={"binary_data_size": 2**62})), None),
        "not the number of bytes that came",
    ),
    "no base64": (
        lambda s: (inputs({"name": "bytes", "datatype": "BYTES", "shape": [1], "data": ["ä"]}), None),
        "must be base64",
    ),
    "too many files": (
        lambda s: (inputs({"name": "bytes", "datatype": "BYTES", "shape": [65], "data": ["eA=="] * 65}), None),
        "1 to 64 images",
    ),
    "a large document": (lambda s: (b" " * (MAX_JSON + 1), None), "as binary data"),
    "a length beyond": (lambda _: with_binary(struct.pack("<I", 2**31) + b"x", [1]), "the lengths within"),
    "a length of less": (lambda _: with_binary((struct.pack("<I", 1) + b"x") * 2, [1]), "the lengths within"),
    "half a length": (lambda _: with_binary(b"\0\0", [1]), "the lengths within"),
    "another number": (lambda _: with_binary(struct.pack("<I", 1) + b"x", [2]), "has 1 elements"),
}


def test_a_hostile_request_is_refused_in_a_sentence_and_takes_no_memory(program: Service) -> None:
    for name, (make, said) in HOSTILE.items():
        body, header = make(program)
        answer, peak = peak_of(partial(asked, program, body, header))
        assert answer.status_code == 400, f"{name}: {answer.text}"
        assert set(answer.json()) == {"error"}, name
        assert said in answer.json()["error"], name
        assert peak < 64 * 1024**2, name


@pytest.mark.parametrize(
    "unit",
    [
        *(pytest.param(unit, marks=pytest.mark.slow) for unit in ("[],", "[[]],", "[[[[]]]],", '{"a":0},')),
        "{},",
        "0.1,",
    ],
)
def test_no_document_takes_more_than_is_counted_for_it(unit: str) -> None:
    content = unit * ((MAX_JSON - 100) // len(unit))
    body = ('{"inputs": [' + content.removesuffix(",") + "]}").encode()
    assert peak_of(lambda: read_message(body, None))[1] < PER_BYTE * len(body)


def test_an_image_unlike_those_of_the_release_has_nan(program: Service, tiny_release: Path, tmp_path: Path) -> None:
    program.serve(with_familiarity(tiny_release, tmp_path / "release"))
    strange = encode(255 - simulate_cell(0, seed=21, size=32).pixels)
    assert program.post("program", "/v1/predictions", content=strange).json()["disagreement_prob"] is None
    given, outputs = {"name": "bytes", "datatype": "BYTES", "shape": [2]}, [{"name": "disagreement_prob"}]
    given["data"] = [base64.b64encode(data).decode() for data in (strange, FILES[0])]
    (found,) = asked(program, inputs(given, outputs=outputs)).json()["outputs"]
    assert found["data"][0] is None
    assert found["data"][1] > 0
    binary = asked(program, inputs(given, parameters={"binary_data_output": True}, outputs=outputs))
    size = int(binary.headers["inference-header-content-length"])
    np.testing.assert_equal(np.frombuffer(binary.content[size:], "<f8"), [np.nan, found["data"][1]])


def with_binary(content: bytes, shape: list[int], **described: Any) -> tuple[bytes, str]:
    given = {"name": "bytes", "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": len(content)}}
    head = inputs(given | described)
    return head + content, str(len(head))


def with_files(*files: bytes) -> tuple[bytes, str]:
    return with_binary(b"".join(struct.pack("<I", len(data)) + data for data in files), [len(files)])


@undone("T17", "a full queue refuses before any work", InferenceEngine, "require_room", lambda *_: None)
def test_a_full_queue_is_reported_before_any_picture_is_decoded(
    program: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, request = program.context.inference.here, with_files(FILES[0][:90], FILES[1])
    assert asked(program, *request).status_code == 422
    monkeypatch.setattr(line, "queue", 0)
    with LimitPlace(line, line.size):
        assert asked(program, *request).status_code == 429
    assert asked(program, *request).status_code == 422


class Turns:
    """Runs of the champion's network, and what is done within each."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch, within: Callable[[], None]) -> None:
        assert service.post("program", "/v1/predictions", content=FILES[0]).status_code == 200  # it is loaded
        served = service.context.inference._served
        assert served is not None
        self.n, self._run, self._within = 0, served.predictor.run, within
        monkeypatch.setattr(served.predictor, "run", self._count)

    def _count(self, inputs: Any) -> Any:
        self.n += 1
        self._within()
        return self._run(inputs)


def test_work_that_has_begun_waits_when_the_queue_fills_up(program: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    line, others = program.context.inference.here, list[LimitPlace]()

    def fill() -> None:
        """Put another caller next in the line, and let no further one wait."""
        if not others:
            others.append(LimitPlace(line, line.size))
            line.enter(others[0], threading.Event)
            line.queue = 0

    turns = Turns(program, monkeypatch, fill)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(asked, program, *with_files(*FILES, *FILES))
        wait_until(lambda: answer.done() or line.count_use().waiting == 1)
        others[0].give_back()
        assert answer.result().status_code == 200
    assert turns.n == 2


def test_a_request_ends_when_its_time_is_over(program: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, line = Turns(program, monkeypatch, lambda: time.sleep(0.2)), program.context.inference.here
    monkeypatch.setattr(open_inference, "INFER_SECONDS", 0.3)
    answer = asked(program, *with_files(*(FILES * 12)))
    assert (answer.status_code, "send fewer images" in answer.json()["error"]) == (503, True)
    assert turns.n <= 2, "it went on afterwards"
    with LimitPlace(line, line.size):
        assert asked(program, *with_files(*FILES)).status_code == 503


def test_work_ends_when_the_client_is_gone(server: Installation) -> None:
    """Pictures of more than a megapixel, each decoded by a process of its own: half a minute of work."""
    body, header = with_files(*[encode(np.full((1100, 1100, 3), 200, dtype=np.uint8))] * 64)
    head = f"POST /v2/models/champion/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: Bearer {server.keys['program']}\r\nInference-Header-Content-Length: {header}\r\n\r\n"

    def decoded() -> int:
        rows = httpx2.get(f"{server.address}/readyz?verbose", timeout=patient(5)).json()["limits"]
        return int(next(row["in_use"] for row in rows if row["name"] == LARGE_PICTURES.name))

    with socket.create_connection(("127.0.0.1", server.port), timeout=patient(20)) as connection:
        connection.sendall(head.encode() + body)
        wait_until(decoded)
    wait_until(lambda: '"status": 499' in server.log, 5, lambda: server.log)
    assert decoded() == 0


def test_pictures_are_refused_as_v1_refuses_them(program: Service) -> None:
    for content, status in ((b"no picture", 415), (FILES[0][:90], 422), (b"", 422)):
        body, header = with_binary(struct.pack("<I", len(content)) + content, [1])
        answer = asked(program, body, header)
        assert (answer.status_code, set(answer.json())) == (status, {"error"})
    assert asked(program, b"x" * 13 * 1024**2).status_code == 413
    assert set(asked(program, b"x" * 13 * 1024**2).json()) == {"error"}
    assert asked(program, b"x", **{"Content-Encoding": "gzip"}).status_code == 415
    infinite = np.full(tensor(program)["shape"], np.inf, dtype="<f4").tobytes()
    described = {"name": "image", "datatype": "FP32", "shape": tensor(program)["shape"]}
    assert "not finite" in asked(program, *with_binary(infinite, **described)).json()["error"]
    assert "bytes came for a tensor" in asked(program, *with_binary(infinite[:-4], **described)).json()["error"]


def test_errors_of_the_protocol_say_error_whoever_asks(program: Service) -> None:
    nowhere = program.call("program", "GET", "/v2/models/champion/config")
    assert (nowhere.status_code, set(nowhere.json())) == (404, {"error"})
    person = program.client.get("/v2/models/champion", headers={"Accept": "text/html"})
    assert (person.status_code, set(person.json())) == (401, {"error"})
    assert program.client.get("/v2/health/live").json() == {"live": True}
    assert program.client.get("/v2/health/ready").status_code == 200
    assert program.call("outside", "GET", "/v2").status_code == 403, "a key of other scopes"
    assert program.call("admin", "GET", "/v2").status_code == 403
