"""Resolves a model name to a release, and describes the model."""

import json
import uuid
from dataclasses import dataclass

from pydantic import BaseModel

from app.context import ServiceContext
from app.database.tables import ReleaseRow
from app.http.errors import NoRelease, NotFound
from app.predictions.service import LoadedRelease
from app.releases.service import all_releases, get_champion_alias, releases_named
from ml.release.triton import network_name

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
                raise NoRelease("no release is served; add one with `secondread release add`")
            served = context.inference.served(alias)
            model = ServedModel(name, [str(served.release_id)], served)
            if version not in {None, model.version}:
                raise NotFound("this model has no such version")
            return model
        rows = releases_named(session, name) or [row for row in all_releases(session) if _has_network(row, name)]
        versions = [str(row.id) for row in rows]
    if not versions or version not in {None, *versions}:
        raise NotFound("this model has no such version" if versions else "there is no such model")
    first = None if alias is None else str(alias.release_id)
    by_network = name != rows[0].name
    chosen = version or (first if first in versions and by_network else versions[0])
    return ServedModel(name, versions, context.inference.other(uuid.UUID(chosen)))


def _has_network(row: ReleaseRow, name: str) -> bool:
    return name == network_name(row.card["files"]["network.onnx"])


def describe_model(model: ServedModel) -> ModelOut:
    """Describe a model: its tensors and their meaning."""
    predictor = model.served.predictor
    release = predictor.release
    shape = release.preprocessing
    n_classes = len(release.classes)
    classes = json.dumps(list(release.classes))
    out_of_reach = "NaN (in JSON null) where the image is unlike those of the release"
    return ModelOut(
        name=model.name,
        versions=model.versions,
        platform="secondread_release",
        inputs=[
            _tensor_out(
                "image",
                "FP32",
                [-1, shape.channels, shape.size, shape.size],
                "pixels as the network takes them, preprocessed by the caller; only features are checked for images "
                "unlike those of the release, the pixels' own statistics are not",
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
