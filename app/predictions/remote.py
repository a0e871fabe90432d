"""Client of a remote network over the Open Inference Protocol v2; calibration and checks stay local."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import anyio
import httpx2
import numpy as np
import numpy.typing as npt
import structlog
from anyio.from_thread import start_blocking_portal

from app.http import observability
from app.http.errors import ServiceUnavailable
from app.predictions import wire_format
from ml.release.artifact import Release, ReleaseError
from ml.release.triton import NETWORK_PARAMETER, network_name

Answer = TypeVar("Answer")
Outputs = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
#: For a connection, and for the whole answer from then to its last byte.
CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 10.0
CONNECTIONS = 64
#: Bytes of an answer at most: metadata; per number of an answer, as text; what else an answer has.
MAX_METADATA, BYTES_PER_NUMBER, MAX_REMAINDER = 4 * 1024**2, 32, 64 * 1024
#: Features at most, until the first answer has shown how many there are.
MAX_FEATURES = 65_536
#: Bytes of images in one request: another copy of this service takes 12 MiB.
MAX_REQUEST_BYTES = 8 * 1024**2
#: What is known of a backend is asked again after so long; one that has failed is left alone for a moment.
CHECK_SECONDS, PAUSE_SECONDS = 30.0, 1.0
#: A connection that was kept, or the server behind it, went away: asking once more does no harm.
_RESET = (httpx2.ReadError, httpx2.WriteError, httpx2.CloseError, httpx2.RemoteProtocolError)
_MODELS = "/v2/models/"
_OUTPUTS = ("logits", "features")
_log = structlog.get_logger("secondread")


class AnswerTooLargeError(ValueError):
    """More bytes than an answer can have, or bytes that grow when they are read."""


@dataclass(frozen=True)
class BackendAnswer:
    """A whole answer."""

    status: int
    headers: httpx2.Headers
    content: bytes


class NetworkMismatchError(ReleaseError):
    """The backend has another network than the release, or none that maps images to logits and features."""


class InferenceBackend:
    """A server of networks."""

    def __init__(self, url: str, token: str | None = None) -> None:
        address, _, model = url.rstrip("/").partition(_MODELS)
        self.model = model or None
        self._networks: dict[str, RemoteNetwork] = {}
        self._adding = threading.Lock()
        # an event loop in a thread: only there one deadline ends an answer wherever it is
        self._running = start_blocking_portal()
        self._portal = self._running.__enter__()
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client = httpx2.AsyncClient(
            base_url=address,
            headers={"Accept-Encoding": "identity"} | authorization,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            trust_env=False,  # images go where the settings say, and nowhere else
        )

    def close(self) -> None:
        """End the connections that are kept."""
        self._portal.call(self._client.aclose)
        self._running.__exit__(None, None, None)

    def ask(self, method: str, path: str, limit: int, body: bytes, headers: Mapping[str, str]) -> BackendAnswer:
        """Ask for at most so many bytes, within one deadline."""
        return self._portal.call(self._ask, method, path, limit, body, headers)

    async def _ask(self, method: str, path: str, limit: int, body: bytes, headers: Mapping[str, str]) -> BackendAnswer:
        content = bytearray()
        with anyio.fail_after(ANSWER_SECONDS):
            async with self._client.stream(method, path, content=body, headers=headers) as answer:
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise AnswerTooLargeError("the answer is compressed")
                async for chunk in answer.aiter_raw():
                    content += chunk
                    if len(content) > limit:
                        raise AnswerTooLargeError(f"the answer has more than {limit:,} bytes")
        return BackendAnswer(answer.status_code, answer.headers, bytes(content))

    def network(self, release: Release) -> "RemoteNetwork":
        """The network of a release there, checked."""
        sha256 = release.network_sha256
        with self._adding:
            if sha256 not in self._networks:
                path = _MODELS + quote(self.model or network_name(sha256), safe="/")
                self._networks[sha256] = RemoteNetwork(self, path, release)
            network = self._networks[sha256]
        network.require()
        return network


class RemoteNetwork:
    """A release's network behind a backend."""

    on_gpu = False
    own_queue = True

    def __init__(self, backend: InferenceBackend, path: str, release: Release) -> None:
        self._backend, self._path, self._sha256 = backend, path, release.network_sha256
        shape = release.preprocessing
        self._image, self._n_classes = (shape.channels, shape.size, shape.size), len(release.classes)
        self._n_features: int | None = None
        self._checking = threading.Lock()
        self._checked_at, self._pause_until = -CHECK_SECONDS, 0.0
        self._problem = ServiceUnavailable("the inference backend does not answer; try again")

    def require(self) -> None:
        """Refuse a backend that does not have this network."""
        self._twice(lambda: self._ensure_checked(CHECK_SECONDS))

    def run(self, inputs: npt.NDArray[np.float32]) -> Outputs:
        """Logits (N, K) and features (N, D) of network inputs (N, C, H, W)."""
        rows = max(1, MAX_REQUEST_BYTES // inputs[:1].nbytes)
        try:
            parts = [
                self._twice(partial(self._infer, inputs[start : start + rows])) for start in range(0, len(inputs), rows)
            ]
            return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        except NetworkMismatchError as exc:
            problem = ServiceUnavailable("the inference backend runs a different network from the model release")
            raise self._failed(problem, exc) from exc

    def trouble(self) -> str | None:
        """Return the reason why the network is unavailable, or None."""
        try:
            self._twice(lambda: self._ensure_checked(PAUSE_SECONDS))
        except ServiceUnavailable as exc:
            return exc.detail
        except NetworkMismatchError as exc:
            problem = ServiceUnavailable("the inference backend runs a different network from the model release")
            return self._failed(problem, exc).detail
        return None

    def _failed(self, problem: ServiceUnavailable, why: object) -> ServiceUnavailable:
        """A problem to raise; for a moment nobody asks again, and before that the backend is checked."""
        self._checked_at, self._pause_until = -CHECK_SECONDS, time.monotonic() + PAUSE_SECONDS
        self._problem = problem
        _log.warning("inference backend", said=problem.detail, why=str(why))
        return problem

    def _twice(self, ask: Callable[[], Answer]) -> Answer:
        """Ask, and once more where the connection was reset: by then another server may have taken the place."""
        try:
            return ask()
        except _RESET:
            self._checked_at = -CHECK_SECONDS
        try:
            return ask()
        except _RESET as exc:
            raise self._failed(ServiceUnavailable("the inference backend does not answer; try again"), exc) from exc

    def _infer(self, inputs: npt.NDArray[np.float32]) -> Outputs:
        self._ensure_checked(CHECK_SECONDS)
        requested_outputs = [{"name": name, "parameters": {"binary_data": True}} for name in _OUTPUTS]
        body, size = wire_format.write_message(
            {"outputs": requested_outputs}, "inputs", [wire_format.OutputTensor("image", inputs, binary=True)]
        )
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(size)}
        with observability.record_span("inference backend", "client"):
            numbers = len(inputs) * (self._n_classes + (self._n_features or MAX_FEATURES))
            limit = BYTES_PER_NUMBER * numbers + MAX_REMAINDER
            answer = self._ask("POST", "/infer", limit, body, headers | observability.get_trace_headers())
        try:
            return self._outputs(answer, len(inputs))
        except wire_format.TensorError as exc:
            problem = ServiceUnavailable("the inference backend returns an unexpected output")
            raise self._failed(problem, exc) from exc

    def _outputs(self, answer: BackendAnswer, n: int) -> Outputs:
        message = wire_format.read_message(answer.content, answer.headers.get(wire_format.HEADER_LENGTH))
        self._compare(wire_format.parameters_of(message.document, "the answer"))
        arrays = {}
        tensors = wire_format.read_object_list(message.document, "outputs")
        for tensor, part in zip(tensors, wire_format.binary_parts(message, "outputs"), strict=True):
            name, shape = str(tensor.get("name")), wire_format.shape_of(tensor)
            if name not in _OUTPUTS:
                continue
            columns = self._n_classes if name == "logits" else self._n_features
            if len(shape) != 2 or shape[0] != n or columns not in {None, shape[1]}:
                raise wire_format.TensorError(f"{name} has the shape {list(shape)}")
            values = np.array(wire_format.numbers_of(tensor, part, shape), dtype=np.float32)
            if not np.isfinite(values).all():
                raise wire_format.TensorError(f"{name} has values that are not finite")
            arrays[name] = values
        if len(arrays) != len(_OUTPUTS):
            raise wire_format.TensorError("logits or features are missing")
        self._n_features = arrays["features"].shape[1]
        return arrays["logits"], arrays["features"]

    def _ask(
        self, method: str, path: str, limit: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> BackendAnswer:
        try:
            answer = self._backend.ask(method, self._path + path, limit, body, headers or {})
        except _RESET:
            raise
        except (httpx2.TransportError, TimeoutError) as exc:
            raise self._failed(ServiceUnavailable("the inference backend does not answer; try again"), exc) from exc
        except AnswerTooLargeError as exc:
            problem = ServiceUnavailable("the inference backend returns an unexpected output")
            raise self._failed(problem, exc) from exc
        status = answer.status
        if status == HTTPStatus.OK:
            return answer
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise self._failed(ServiceUnavailable("the inference backend rejects the token of this service"), status)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            raise self._failed(ServiceUnavailable("the inference backend is unavailable; try again"), status)
        if status == HTTPStatus.NOT_FOUND or method == "GET":
            raise self._failed(
                ServiceUnavailable("the inference backend does not have the network of the release"), status
            )
        raise self._failed(ServiceUnavailable("the inference backend rejects the network's input"), status)

    def _ensure_checked(self, seconds: float) -> None:
        """Check the backend unless that was done so many seconds ago or less."""
        if time.monotonic() - self._checked_at < seconds:
            return
        with self._checking:
            if time.monotonic() - self._checked_at < seconds:
                return
            if time.monotonic() < self._pause_until:
                raise ServiceUnavailable(self._problem.detail)
            self._check()
            self._checked_at = time.monotonic()

    def _check(self) -> None:
        try:
            metadata = _response_document(self._ask("GET", "", MAX_METADATA))
            image, logits, features = (
                next(
                    (tensor for tensor in wire_format.read_object_list(metadata, kind) if tensor.get("name") == name),
                    {},
                )
                for kind, name in (("inputs", "image"), ("outputs", "logits"), ("outputs", "features"))
            )
            takes = (
                _can_take_shape(image, self._image)
                and _can_take_shape(logits, (self._n_classes,))
                and _can_take_shape(features, (-1,))
            )
            parameters: Mapping[str, Any] = wire_format.parameters_of(metadata, "the model")
        except wire_format.TensorError as exc:
            raise NetworkMismatchError(
                f"the inference backend says nothing that is understood of {self._path}"
            ) from exc
        if not takes:
            raise NetworkMismatchError(
                f"the inference backend's {self._path} does not map image {list(self._image)} to "
                f"{self._n_classes} logits and features, all FP32"
            )
        if NETWORK_PARAMETER not in parameters:
            parameters = self._configured()
        self._compare(parameters)

    def _configured(self) -> Mapping[str, Any]:
        """Parameters of Triton's configuration of the model; none of a server that has no such thing."""
        try:
            answer = self._backend.ask("GET", f"{self._path}/config", MAX_METADATA, b"", {})
            return (
                wire_format.parameters_of(_response_document(answer), "the model")
                if answer.status == HTTPStatus.OK
                else {}
            )
        except (wire_format.TensorError, AnswerTooLargeError, TimeoutError, httpx2.TimeoutException):
            return {}

    def _compare(self, parameters: Mapping[str, Any]) -> None:
        value = parameters.get(NETWORK_PARAMETER)
        digest = value.get("string_value") if isinstance(value, dict) else value
        if digest not in [None, self._sha256]:  # it may be anything
            raise NetworkMismatchError(
                "the inference backend runs a different network from the model release: its SHA-256 of network.onnx is "
                f"{digest}, the release's {self._sha256}"
            )


def _response_document(answer: BackendAnswer) -> dict[str, Any]:
    return wire_format.read_message(answer.content, None).document


def _can_take_shape(tensor: Mapping[str, Any], wanted: tuple[int, ...]) -> bool:
    """Whether a tensor of metadata takes batches of this shape; -1 stands for any number, on either side."""
    try:
        shape = [int(n) for n in tensor.get("shape", [])]
    except (TypeError, ValueError):
        return False
    same = len(shape) == len(wanted) + 1 and all(
        -1 in {actual, size} or actual == size for actual, size in zip(shape[1:], wanted, strict=True)
    )
    return same and tensor.get("datatype") == "FP32"
