"""Where the service runs networks: it does not start on a device that cannot be used, and says which one it is."""

from pathlib import Path

import pytest

from app.settings import Settings
from ml.release.device import cuda_fault
from tests.support.process import Installation
from tests.support.service import Service


@pytest.fixture
def no_cuda() -> None:
    if cuda_fault() is None:
        pytest.skip("CUDA can be used on this machine")


@pytest.mark.slow
@pytest.mark.usefixtures("no_cuda")
def test_cuda_that_cannot_be_used_stops_server_and_worker_in_one_line(tmp_path: Path, tiny_release: Path) -> None:
    with Installation(tmp_path / "home") as made:
        made.prepare(tiny_release)
        made.environment["SECONDREAD_DEVICE"] = "cuda"
        for command in ("serve", "worker"):
            done = made.run(command, check=False)
            assert done.returncode == 1
            said = [line for line in done.stderr.splitlines() if line.startswith("secondread: ")]
            assert said == [f"secondread: device cuda cannot be used: {cuda_fault()}"]
        made.environment["SECONDREAD_DEVICE"] = "gpu"
        assert "SECONDREAD_DEVICE" in made.run("serve", check=False).stderr


@pytest.mark.usefixtures("no_cuda")
def test_readiness_says_where_the_network_runs(service: Service) -> None:
    assert service.get(None, "/readyz").json()["device"].startswith("cpu")


def test_cuda_here_and_a_network_elsewhere_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="DEVICE wants cuda here"):
        Settings(home=tmp_path, device="cuda", inference_url="http://127.0.0.1:1")
    assert Settings(home=tmp_path, inference_url="http://127.0.0.1:1").device == "auto"
