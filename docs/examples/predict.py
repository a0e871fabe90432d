"""Predict an image with the packaged client.

pip install 'secondread-cells[client]'
python docs/examples/predict.py http://127.0.0.1:8000 $(cat .secondread/demo/api_key) docs/images/cell.jpg
"""

import sys
from pathlib import Path

import httpx2

from secondread.client import ApiError, Client


def main() -> None:
    address, api_key, path = sys.argv[1:4]
    with Client(address, api_key) as api:
        try:
            found = api.predict(Path(path).read_bytes())
        except ApiError as refused:
            sys.exit(f"{path}: {refused.detail}")
        except httpx2.TransportError as unreachable:
            sys.exit(f"{address} does not answer: {unreachable}")
    for code, prob in sorted(found.class_probs.items(), key=lambda item: -item[1]):
        print(f"{prob:7.3f}  {code}")
    phi = "unknown" if found.disagreement_prob is None else f"{found.disagreement_prob:.3f}"
    print(f"two experts would disagree with probability {phi}: {found.triage.reason}")


if __name__ == "__main__":
    main()
