"""A model repository of Triton: the network as it is, and a configuration that Triton's own definition reads."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import tritonclient
from google.protobuf import text_format

from ml.release.artifact import read_release
from ml.release.predictor import Predictor
from ml.release.triton import MAX_BATCH, network_name
from ml.util.files import file_sha256
from tests.support.command import run_here


@pytest.fixture(scope="module")
def definition() -> ModuleType:
    """Triton's own model_config.proto, compiled; the package beside it needs gRPC, the file does not."""
    path = Path(tritonclient.__path__[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_repository_serves_the_network_of_a_release_unchanged(
    small_release: Path, tmp_path: Path, definition: ModuleType
) -> None:
    release, repository = read_release(small_release), tmp_path / "models"
    done = run_here("export", small_release, "--triton", repository, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == {"model": network_name(release.network_sha256), "network_sha256": release.network_sha256}
    model = repository / told["model"]
    files = sorted(path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file())
    assert files == ["1/model.onnx", "config.pbtxt"]
    assert (model / "1" / "model.onnx").read_bytes() == release.network.read_bytes()
    assert file_sha256(model / "1" / "model.onnx") == release.network_sha256
    config = text_format.Parse((model / "config.pbtxt").read_text(), definition.ModelConfig())
    session = Predictor(release, 1, device="cpu")
    side = release.preprocessing.size
    kinds = definition.DataType
    assert (config.name, config.backend, config.max_batch_size) == (model.name, "onnxruntime", MAX_BATCH)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("image", kinds.TYPE_FP32, [3, side, side])]
    assert [(o.name, o.data_type, list(o.dims)) for o in config.output] == [
        ("logits", kinds.TYPE_FP32, [len(release.classes)]),
        ("features", kinds.TYPE_FP32, [session.n_features]),
    ]
    assert config.HasField("dynamic_batching")
    assert [group.kind for group in config.instance_group] == [definition.ModelInstanceGroup.KIND_AUTO]
    assert config.parameters["network_sha256"].string_value == release.network_sha256


def test_a_model_that_is_there_is_left_alone(small_release: Path, tmp_path: Path) -> None:
    assert run_here("export", small_release, "--triton", tmp_path).returncode == 0
    again = run_here("export", small_release, "--triton", tmp_path)
    assert again.returncode == 1
    assert "is there already" in again.stderr
    assert run_here("export", small_release).returncode == 2
    assert run_here("export", tmp_path, "--triton", tmp_path / "other").returncode == 1
