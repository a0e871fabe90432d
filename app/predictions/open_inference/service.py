"""Answers Open Inference requests with the same predictions as `/v1/predictions`; stores nothing."""

import base64
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from app.context import ServiceContext
from app.http.errors import BadRequest, NoRelease, NotFound
from app.http.limiter import DOCUMENTS, INFER_SECONDS, Limiter, LimitPlace, RequestTime
from app.predictions.service import (
    MAX_JSON,
    InferenceMessage,
    LoadedRelease,
    OutputTensor,
    TensorError,
    binary_parts,
    document_size,
    numbers_of,
    parameters_of,
    read_message,
    read_object_list,
    shape_of,
    texts_of,
    write_message,
)
from app.releases.service import all_releases, get_champion_alias, releases_named
from ml.distributions.families import DirichletCpe
from ml.images.picture import estimate_decoding_cost
from ml.images.preprocess import Pixels, Preprocessing
from ml.release.predictor import Prediction
from ml.release.triton import NETWORK_PARAMETER, network_name

CHAMPION = "champion"
#: Images of one request at most.
MAX_ROWS = 64


class TensorOut(BaseModel):
    """An input or output; -1 in ``shape`` is the number of images."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, str]


class ModelOut(BaseModel):
    """Metadata of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorOut]
    outputs: list[TensorOut]
    parameters: dict[str, str | int]


@dataclass(frozen=True)
class ServedModel:
    """A release as a model."""

    # by which it was asked for
    name: str
    # identifiers of every release that the name stands for, newest first
    versions: list[str]
    served: LoadedRelease

    @property
    def version(self) -> str:
        """Identifier of the release."""
        return str(self.served.release_id)


def find_model(context: ServiceContext, name: str, version: str | None) -> ServedModel:
    """The release behind a name: ``get_champion_alias``, the name of a release, or that of a network."""
    with context.database.read() as session:
        alias = get_champion_alias(session)
        if name == CHAMPION:
            if alias is None:
                raise NoRelease("no model release is in use; add one with `secondread release add`")
            served = context.inference.served(alias)
            model = ServedModel(name, [str(served.release_id)], served)
            if version not in {None, model.version}:
                raise NotFound("this model has no such version")
            return model
        rows = releases_named(session, name) or [
            row for row in all_releases(session) if (name == network_name(row.card["files"]["network.onnx"]))
        ]
        versions = [str(row.id) for row in rows]
    if not versions or version not in {None, *versions}:
        raise NotFound("this model has no such version" if versions else "there is no such model")
    first = None if alias is None else str(alias.release_id)
    by_network = name != rows[0].name
    chosen = version or (first if first in versions and by_network else versions[0])
    return ServedModel(name, versions, context.inference.other(uuid.UUID(chosen)))


def describe_model(model: ServedModel) -> ModelOut:
    """Describe a model: its tensors and their meaning."""
    predictor = model.served.predictor
    release = predictor.release
    shape = release.preprocessing
    n_classes = len(release.classes)
    classes = json.dumps(list(release.classes))
    out_of_reach = "NaN (in JSON null) if the image is out of distribution"
    return ModelOut(
        name=model.name,
        versions=model.versions,
        platform="secondread_release",
        inputs=[
            _tensor_out(
                "image",
                "FP32",
                [-1, shape.channels, shape.size, shape.size],
                "pixels as the network takes them, preprocessed by the caller; the out-of-distribution check uses "
                "only the features, not the statistics of the pixels",
            ),
            _tensor_out(
                "bytes",
                "BYTES",
                [-1],
                "PNG, JPEG or TIFF files, as /v1/predictions takes them; within JSON as base64",
            ),
        ],
        outputs=[
            _tensor_out("class_probs", "FP64", [-1, n_classes], f"probabilities of {classes}"),
            _tensor_out("log_concentration", "FP64", [-1], "NaN (in JSON null) where the release has none"),
            _tensor_out("disagreement_prob", "FP64", [-1], out_of_reach),
            _tensor_out("logits", "FP32", [-1, n_classes], "of the network, before calibration"),
            _tensor_out("features", "FP32", [-1, predictor.n_features], "of the network"),
        ],
        parameters={
            "release": model.version,
            "network_sha256": release.network_sha256,
            "classes": classes,
            "inputs": "send exactly one of image and bytes",
            "max_batch_size": MAX_ROWS,
        },
    )


def _tensor_out(name: str, datatype: str, shape: list[int], description: str) -> TensorOut:
    return TensorOut(name=name, datatype=datatype, shape=shape, parameters={"description": description})


Arrays = dict[str, npt.NDArray[Any]]
OUTPUTS = ("class_probs", "log_concentration", "disagreement_prob", "logits", "features")
#: What Python takes for each byte of a document at most: lists that contain nothing but lists.
PER_BYTE = 48
#: For two documents of the largest size.
PARSING = Limiter(DOCUMENTS, 2 * PER_BYTE * MAX_JSON)
#: Pixels on the scale [0, 1] may lie within this: an enlargement may overshoot, while raw ones were not meant.
_LOWEST, _HIGHEST = -1.0, 2.0


def run_inference_request(
    context: ServiceContext,
    model: ServedModel,
    body: bytes,
    header_length: str | None,
    is_client_gone: Callable[[], bool],
) -> tuple[bytes, int | None]:
    """Answer a request for inference: refused before any work if the queue is full, ended if its client is gone."""
    remaining = RequestTime(INFER_SECONDS, is_client_gone)
    try:
        size = min(document_size(body, header_length), MAX_JSON)
        with LimitPlace(PARSING, PER_BYTE * size):
            request = _parse_request(read_message(body, header_length), model.served.predictor.release.preprocessing)
    except TensorError as exc:
        raise BadRequest(str(exc)) from exc
    context.inference.require_room(model.served)
    given = request.given
    images = _decode_all(context, model.served, given, remaining) if isinstance(given, list) else given
    outputs = _prediction_arrays(context.inference.predict_many(model.served, images, remaining))
    document: dict[str, object] = {"model_name": model.name, "model_version": model.version}
    if request.identifier:
        document["id"] = request.identifier
    document["parameters"] = {NETWORK_PARAMETER: model.served.predictor.release.network_sha256}
    return write_message(
        document, "outputs", [OutputTensor(name, outputs[name], binary) for name, binary in request.wanted.items()]
    )


@dataclass(frozen=True)
class _InferenceRequest:
    """A request: its `id`, each output with whether it goes as bytes, and the network's inputs or files."""

    identifier: str | None
    wanted: dict[str, bool]
    given: npt.NDArray[np.float32] | list[bytes]


def _parse_request(message: InferenceMessage, preprocessing: Preprocessing) -> _InferenceRequest:
    identifier = message.document.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise TensorError("`id` must be text")
    return _InferenceRequest(
        identifier, _parse_requested_outputs(message.document), _parse_input(message, preprocessing)
    )


def _parse_requested_outputs(document: Mapping[str, Any]) -> dict[str, bool]:
    all_binary = parameters_of(document, "the request").get("binary_data_output", False) is True
    if not document.get("outputs"):
        return dict.fromkeys(OUTPUTS, all_binary)
    requested = {}
    for output in read_object_list(document, "outputs"):
        name, parameters = output.get("name"), parameters_of(output, "an output")
        if not isinstance(name, str) or name not in OUTPUTS:
            raise TensorError(f"there is no such output; there are {', '.join(OUTPUTS)}")
        if "classification" in parameters or "shared_memory_region" in parameters:
            raise TensorError("outputs are given as tensors only: no classification, no shared memory")
        requested[name] = parameters.get("binary_data", all_binary) is True
    return requested


def _parse_input(message: InferenceMessage, preprocessing: Preprocessing) -> npt.NDArray[np.float32] | list[bytes]:
    inputs = read_object_list(message.document, "inputs")
    if len(inputs) != 1 or inputs[0].get("name") not in ["image", "bytes"]:
        raise TensorError("send exactly one input: `image` (FP32) or `bytes` (BYTES)")
    tensor, shape, (part,) = inputs[0], shape_of(inputs[0]), binary_parts(message, "inputs")
    if "shared_memory_region" in parameters_of(tensor, "an input"):
        raise TensorError("inputs are taken from the request only, not from shared memory")
    if shape and not 1 <= shape[0] <= MAX_ROWS:
        raise TensorError(f"a request has 1 to {MAX_ROWS} images, and this one claims {shape[0]:,}")
    if tensor["name"] == "bytes":
        if len(shape) != 1 or tensor.get("datatype") != "BYTES":
            raise TensorError("`bytes` has the datatype BYTES and the shape [N]")
        return _texts_of_json(tensor.get("data"), shape[0]) if part is None else texts_of(part, shape[0])
    side, channels = preprocessing.size, preprocessing.channels
    if shape[1:] != (channels, side, side) or tensor.get("datatype") != "FP32":
        raise TensorError(f"`image` has the datatype FP32 and the shape [N, {channels}, {side}, {side}]")
    return _check_pixel_range(numbers_of(tensor, part, shape), preprocessing)


def _texts_of_json(data: object, count: int) -> list[bytes]:
    if not isinstance(data, list) or len(data) != count or not all(isinstance(item, str) for item in data):
        raise TensorError(f"`data` of `bytes` must be {count:,} files as base64, or come as binary data")
    try:
        return [base64.b64decode(item, validate=True) for item in data]
    except ValueError as exc:
        raise TensorError("`data` of `bytes` must be base64") from exc


def _check_pixel_range(inputs: npt.NDArray[np.float32], preprocessing: Preprocessing) -> npt.NDArray[np.float32]:
    low, high = inputs.min(axis=(0, 2, 3)), inputs.max(axis=(0, 2, 3))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise TensorError("`image` has values that are not finite")
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    lowest, highest = (_LOWEST - mean) / std, (_HIGHEST - mean) / std
    if (low < lowest).any() or (high > highest).any():
        raise TensorError(
            "`image` has values that no preprocessed pixels have: scale pixels to [0, 1], subtract mean "
            f"{list(preprocessing.mean)} and divide by {list(preprocessing.std)}"
        )
    return inputs


def _decode_all(context: ServiceContext, served: LoadedRelease, files: list[bytes], remaining: RequestTime) -> Pixels:
    """Network pixels (N, size, size, C) of image files, decoded one by one in memory that is taken once for all."""
    preprocessing, costs = served.predictor.release.preprocessing, [estimate_decoding_cost(data) for data in files]
    pixels = []
    with context.pictures.reserve(costs):
        for data, cost in zip(files, costs, strict=True):
            remaining.require()
            pixels.append(context.pictures.decode(data, preprocessing, cost).pixels)
    return np.stack(pixels)


def _prediction_arrays(prediction: Prediction) -> Arrays:
    """Every output of a prediction of N images; what `/v1/predictions` answers null is NaN."""
    distribution = prediction.distribution
    disagreement = np.where(prediction.out_of_distribution, np.nan, distribution.disagreement_probs)
    unknown = np.full(len(disagreement), np.nan)
    a = distribution.log_concentration if isinstance(distribution, DirichletCpe) else unknown
    return {
        "class_probs": np.asarray(distribution.class_probs, dtype=np.float64),
        "log_concentration": np.asarray(a, dtype=np.float64),
        "disagreement_prob": np.asarray(disagreement, dtype=np.float64),
        "logits": prediction.logits,
        "features": prediction.features,
    }
