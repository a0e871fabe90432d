"""An int8 release in the service: added, judged, promoted and asked like any other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.accounts import people as auth
from app.releases.registration import add_release
from ml.images.preprocess import decode_image
from ml.release.artifact import read_release
from ml.release.predictor import Predictor
from tests.support.jobs import work_off
from tests.support.service import Service, cell_png, store

CASES, READERS = 16, 3


def promote(service: Service, release: str, *, despite_gate: bool) -> Any:
    body = {"release": release, "reason": "faster", "despite_gate": despite_gate}
    answer = service.call("admin", "PUT", "/v1/aliases/champion", json=body, headers={"If-Match": "*"})
    work_off(service.context)
    return answer


def add(service: Service, path: Path) -> str:
    """As `release add` does it: the network is tried in a limited process first."""
    context = service.context
    return str(add_release(context.database, context.keys.audit, path, context.folders)[0].id)


@pytest.mark.slow
def test_it_goes_through_the_gate_and_is_served_like_any_other(
    service: Service, small_release: Path, int8_release: Path
) -> None:
    assert promote(service, add(service, small_release), despite_gate=True).status_code == 200
    rng = np.random.default_rng(4)
    for number in range(CASES):
        given = {f"reader {reader}": int(rng.integers(8)) for reader in range(READERS)}
        store(service, f"case-{number}", cell_png(number), given, patient=f"p{number}")
    added = add(service, int8_release)
    refused = promote(service, added, despite_gate=False)
    assert (refused.status_code, "no gate has judged" in refused.json()["detail"]) == (409, True)
    job = service.post("admin", f"/v1/releases/{added}/judgements").json()["id"]
    work_off(service.context)
    done = service.get("admin", f"/v1/jobs/{job}").json()
    assert done["state"] == "succeeded", done["error"]
    gate = done["result"]["gate"]
    assert gate["L"]["value"] != 0  # its own network has seen the same cases
    assert gate["passed"] == (gate["reasons"] == [])
    assert promote(service, added, despite_gate=True).status_code == 200
    release = read_release(int8_release)
    image = decode_image(cell_png(0))
    said: Any = Predictor(release, device="cpu").predict([image]).distribution
    with service.context.database.write() as session:
        program = auth.add_key(session, service.context.keys.audit, "outside", ["predict"])[1]
    headers = {"Authorization": f"Bearer {program}"}
    answer = service.client.post(
        "/v1/predictions", headers={**headers, "Content-Type": "image/png"}, content=cell_png(0)
    ).json()
    assert answer["release"] == added
    np.testing.assert_allclose(list(answer["class_probs"].values()), said.class_probs[0], rtol=0, atol=1e-12)
    inputs = release.preprocessing(image)[None]
    tensor = {"name": "image", "shape": list(inputs.shape), "datatype": "FP32", "data": inputs.ravel().tolist()}
    wanted = {"inputs": [tensor], "outputs": [{"name": "class_probs"}]}
    infer = service.client.post("/v2/models/champion/infer", headers=headers, json=wanted)
    assert infer.status_code == 200, infer.text
    np.testing.assert_allclose(infer.json()["outputs"][0]["data"], said.class_probs[0], rtol=0, atol=1e-6)
