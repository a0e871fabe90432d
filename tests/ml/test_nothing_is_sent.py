"""ONNX Runtime tells its maker about models and machines by default; here it says nothing and keeps no identifier."""

import os
import subprocess
import sys
from pathlib import Path

#: In the presence of these ONNX Runtime is silent by itself.
QUIETENING = ("CI", "TF_BUILD", "GITHUB_ACTIONS", "ORT_RUNNING_UNIT_TESTS", "ORT_DISABLE_TELEMETRY")
PROGRAM = """
import sys, numpy as np
from pathlib import Path
from ml.release.artifact import read_release
from ml.release.predictor import Predictor
from PIL import Image
predictor = Predictor(read_release(Path(sys.argv[1])))
predictor.outputs(predictor.pixels([Image.new("RGB", (48, 48))]))
"""


def test_a_prediction_leaves_no_identifier_of_the_machine(tiny_release: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in QUIETENING}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    command = [sys.executable, "-c", PROGRAM, str(tiny_release)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(home.iterdir()) == []
