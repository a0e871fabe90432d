"""Releases that nobody should run: refused in one line before anything of them is stored, while others go on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from sqlalchemy import func, select

from app.database.tables import ReleaseRow
from app.releases import registration
from app.releases.onnx_safety import require_plain_graph
from app.releases.registration import add_release
from app.releases.sandbox_run import try_release
from ml.release.artifact import ReleaseError
from ml.util.files import file_sha256
from tests.support.command import run_here
from tests.support.service import Service, cell_png

Change = Callable[[onnx.ModelProto], None]


def _before(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    """Put nodes before the network, whose input becomes their output ``changed``."""
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name == "image":
                node.input[position] = "changed"
    others = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *others])


def _constant(model: onnx.ModelProto, name: str, *values: int) -> None:
    model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))


def harmless(_: onnx.ModelProto) -> None:
    """Only the name on the card is another one."""


def endless(model: onnx.ModelProto) -> None:
    """The network turns its input about for 2⁶² times."""
    infos = [
        helper.make_tensor_value_info(*info) for info in (("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []))
    ]
    shape = ["batch", 3, 8, 8]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y"))
    on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Identity", ["c"], ["on"])]
    body = helper.make_graph(nodes, "body", [*infos, x], [on, y])
    model.graph.initializer.append(helper.make_tensor("turns", TensorProto.INT64, [], [2**62]))
    _before(model, helper.make_node("Loop", ["turns", "", "image"], ["changed"], body=body))


def forty_gibibytes(model: onnx.ModelProto) -> None:
    """The network fills 40 GiB with ones and adds their sum."""
    _constant(model, "shape", 40, 2**28)
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    _before(
        model,
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=one),
        helper.make_node("ReduceSum", ["ones"], ["sum"], keepdims=0),
        helper.make_node("Add", ["image", "sum"], ["changed"]),
    )


def minutes(model: onnx.ModelProto) -> None:
    """The network multiplies large matrices, again and again."""
    _constant(model, "shape", 4096, 4096)
    nodes = [
        helper.make_node("RandomUniform", [], ["m0"], shape=[4096, 4096]),
        *(helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(2000)),
        helper.make_node("ReduceSum", ["m2000"], ["sum"], keepdims=0),
        helper.make_node("Add", ["image", "sum"], ["changed"]),
    ]
    _before(model, *nodes)


def other_file(model: onnx.ModelProto) -> None:
    """Weights lie in another file of the folder."""
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    tensor.external_data.add(key="location", value="network.onnx")
    tensor.external_data.add(key="length", value="9216")


def other_file_of_a_constant(model: onnx.ModelProto) -> None:
    """A constant lies outside the folder."""
    tensor = helper.make_tensor("c", TensorProto.FLOAT, [1], [0.0])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")
    _before(
        model,
        helper.make_node("Constant", [], ["zero"], value=tensor),
        helper.make_node("Add", ["image", "zero"], ["changed"]),
    )


def custom_operator(model: onnx.ModelProto) -> None:
    """An operator that somebody else would have to bring along."""
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    _before(model, helper.make_node("Phone", ["image"], ["changed"], domain="com.example"))


def blind_to_white(model: onnx.ModelProto) -> None:
    """The network takes the logarithm of one less the mean of its input, which a white image does not have."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    model.graph.initializer.append(one)
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["mean"], keepdims=0),
        helper.make_node("Sub", ["one", "mean"], ["less"]),
        helper.make_node("Log", ["less"], ["log"]),
        helper.make_node("Add", ["image", "log"], ["changed"]),
    ]
    _before(model, *nodes)


def infinite_features(model: onnx.ModelProto) -> None:
    """The network divides by the range of each colour, which a black image does not have."""
    _constant(model, "axes", 2, 3)
    _before(
        model,
        helper.make_node("ReduceMax", ["image", "axes"], ["high"]),
        helper.make_node("ReduceMin", ["image", "axes"], ["low"]),
        helper.make_node("Sub", ["high", "low"], ["range"]),
        helper.make_node("Div", ["image", "range"], ["changed"]),
    )


def long_description(model: onnx.ModelProto) -> None:
    """The graph is described in 50 MB."""
    model.graph.doc_string = "x" * 50_000_000


def long_words_of_a_tensor(model: onnx.ModelProto) -> None:
    """A constant has 50 MB of text."""
    words = onnx.TensorProto(name="words", data_type=TensorProto.STRING, dims=[1], string_data=[b"x" * 50_000_000])
    model.graph.initializer.append(words)


HOSTILE = {
    endless: "contains Loop",
    forty_gibibytes: "cannot run it",
    other_file: "in another file",
    other_file_of_a_constant: "in another file",
    custom_operator: "contains Phone of com.example",
    blind_to_white: "the answer to a white image is not finite",
    infinite_features: "the answer to a black image is not finite",
    long_description: "50.0 MB of text",
    long_words_of_a_tensor: "50.0 MB of text",
}


def hostile_release(source: Path, target: Path, change: Change) -> Path:
    """A copy of a release with another network, whose card says so."""
    shutil.copytree(source, target)
    model = onnx.load_model(target / "network.onnx")
    change(model)
    (target / "network.onnx").write_bytes(model.SerializeToString())
    card = json.loads((target / "card.json").read_text())
    card["files"]["network.onnx"] = file_sha256(target / "network.onnx")
    card["name"] = change.__name__
    (target / "card.json").write_text(json.dumps(card))
    return target


@pytest.mark.parametrize(
    "change",
    [
        endless,
        other_file,
        other_file_of_a_constant,
        custom_operator,
        long_description,
        long_words_of_a_tensor,
    ],
)
def test_a_graph_that_is_not_plain_is_refused_before_it_runs(
    tmp_path: Path, tiny_release: Path, change: Change
) -> None:
    folder = hostile_release(tiny_release, tmp_path / "hostile", change)
    with pytest.raises(ReleaseError, match=HOSTILE[change]):
        require_plain_graph(folder / "network.onnx")
    require_plain_graph(tiny_release / "network.onnx")


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("change", [blind_to_white, infinite_features])
def test_a_network_that_has_no_answer_to_some_image_is_refused(
    tmp_path: Path, tiny_release: Path, change: Change
) -> None:
    try_release(tiny_release)
    with pytest.raises(ReleaseError, match=HOSTILE[change]):
        try_release(hostile_release(tiny_release, tmp_path / "hostile", change))


def test_what_is_no_onnx_file_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "network.onnx").write_bytes(b"\xff" * 99)
    with pytest.raises(ReleaseError, match="not an ONNX file"):
        require_plain_graph(tmp_path / "network.onnx")


def _stored(service: Service) -> tuple[int, list[str]]:
    with service.context.database.read() as session:
        rows = session.execute(select(func.count()).select_from(ReleaseRow)).scalar_one()
    return rows, sorted(path.name for path in service.context.settings.releases_folder.iterdir())


def test_a_network_of_forty_gibibytes_is_refused_in_one_line_and_the_old_one_serves(
    service: Service, tmp_path: Path, tiny_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before = hostile_release(tiny_release, tmp_path / "hostile", forty_gibibytes), _stored(service)
    settings = service.context.settings
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", str(settings.database_url))
    assert settings.secret_key is not None
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", settings.secret_key.get_secret_value())
    done = run_here("release", "add", folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        f"secondread: {folder}: the first run of the network took more than 4.0 GiB of memory"
    ]
    assert _stored(service) == before
    assert service.upload("case-1", cell_png()).status_code == 201


def test_others_write_while_a_release_is_tried(
    service: Service, tmp_path: Path, tiny_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, tried = service.context, list[Path]()
    folder = hostile_release(tiny_release, tmp_path / "another", harmless)

    def try_here(path: Path) -> None:
        tried.append(path)
        assert service.upload("meanwhile", cell_png()).status_code == 201

    monkeypatch.setattr(registration, "try_release", try_here)
    add = add_release(context.database, context.keys.audit, folder, context.folders)
    assert (add[1], len(tried)) == (True, 1)
    again = add_release(context.database, context.keys.audit, folder, context.folders)
    assert (again[1], again[0].id, len(tried)) == (False, add[0].id, 1)
    assert str(add[0].id) in _stored(service)[1]


@pytest.mark.heavy
def test_each_hostile_release_is_refused_by_the_process_that_tries_it(tmp_path: Path, tiny_release: Path) -> None:
    for change, reason in HOSTILE.items():
        folder = hostile_release(tiny_release, tmp_path / change.__name__, change)
        with pytest.raises(ReleaseError, match=reason if change is not forty_gibibytes else "GiB of memory"):
            try_release(folder)
    folder = hostile_release(tiny_release, tmp_path / "minutes", minutes)
    with pytest.raises(ReleaseError, match="took more than 2 s"):
        try_release(folder, seconds=2)


@pytest.mark.heavy
def test_what_this_project_exports_passes(small_release: Path, dropout_release: Path) -> None:
    for path in (small_release, dropout_release):
        try_release(path)
