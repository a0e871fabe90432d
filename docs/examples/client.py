"""A small typed client of secondread's HTTP API, to copy and to extend.

    python docs/examples/client.py http://127.0.0.1:8000 $(cat .secondread/demo/api_key) cell.png

Every request that stores something carries an Idempotency-Key and is sent again after a lost connection: it is
stored once.
"""

import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

_TRIES = 4


class ApiError(Exception):
    """The service refused; ``type`` is stable, ``detail`` is for people."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        super().__init__(f"{status} {document.get('title')}: {document.get('detail')}")
        self.status, self.type, self.detail = status, document.get("type", ""), document.get("detail", "")


@dataclass(frozen=True)
class Prediction:
    """What a release says about an image."""

    release: str
    class_probs: dict[str, float]
    disagreement_prob: float | None  # null of an image unlike those of the release
    second_read: bool
    reason: str

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Prediction":
        triage = document["triage"]
        return cls(
            document["release"],
            document["class_probs"],
            document["disagreement_prob"],
            triage["decision"] == "second_read",
            triage["reason"],
        )


@dataclass(frozen=True)
class Read:
    """A case that is leased to the caller."""

    id: str
    case_id: str
    classes: list[str]


@dataclass(frozen=True)
class Posterior:
    """What is believed after all active blind labels."""

    class_probs: dict[str, float]
    n_labels: int
    majority_prob: float | None
    further_labels_expected: int | None

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Posterior":
        return cls(**{name: document[name] for name in cls.__dataclass_fields__})


class SecondRead:
    """A connection to one service.

    Args:
        client: with base_url, for example ``httpx2.Client(base_url="https://reads.example.org", timeout=30)``.
        api_key: as ``secondread key add`` printed it.
    """

    def __init__(self, client: httpx2.Client, api_key: str) -> None:
        self._client, self._headers = client, {"Authorization": f"Bearer {api_key}"}

    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = self._headers | options.pop("headers", {})
        if method == "POST":
            headers["Idempotency-Key"] = uuid.uuid4().hex  # one for all tries
        for attempt in range(_TRIES):
            try:
                answer: httpx2.Response = self._client.request(method, path, headers=headers, **options)
            except httpx2.TransportError:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(2**attempt)
                continue
            if answer.status_code not in {429, 503} or attempt == _TRIES - 1:
                break
            time.sleep(float(answer.headers.get("Retry-After", 2**attempt)))
        if answer.status_code >= 400:
            raise ApiError(answer.status_code, answer.json())
        return answer

    def predict(self, image: bytes) -> Prediction:
        """Predict an image without storing it."""
        return Prediction.of(self._send("POST", "/v1/predictions", files={"image": ("image", image)}).json())

    def add_case(self, external_id: str, image: bytes, **fields: str) -> str:
        """Store an image as a case (patient=, site=); returns its id, the same one if it was there already."""
        data = {"external_id": external_id, **fields}
        return str(self._send("POST", "/v1/cases", files={"image": ("image", image)}, data=data).json()["id"])

    def cases(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Every case, newest first (patient=, site=, partition=, since=, until=)."""
        cursor: dict[str, str] = {}
        while True:
            page = self._send("GET", "/v1/cases", params=filters | cursor).json()
            yield from page["items"]
            if page["next_cursor"] is None:
                return
            cursor = {"cursor": page["next_cursor"]}

    def next_read(self) -> Read | None:
        """Lease the next case; None when there is nothing to read."""
        answer = self._send("POST", "/v1/reads")
        if answer.status_code == 204:
            return None
        body = answer.json()
        return Read(body["id"], body["case_id"], [info["code"] for info in body["classes"]])

    def image(self, case_id: str) -> bytes:
        """PNG of a case."""
        return bytes(self._send("GET", f"/v1/cases/{case_id}/image").content)

    def commit(self, read: Read, label: str, note: str | None = None) -> Posterior | None:
        """End a read by a label; the posterior, or None while the policy hides it."""
        body = {"label": label, "note": note}
        document = self._send("POST", f"/v1/reads/{read.id}/labels", json=body).json()["posterior"]
        return None if document is None else Posterior.of(document)

    def decline(self, read: Read, reason: str) -> None:
        """Do not read a case; ``cannot_tell`` closes it for everybody."""
        self._send("POST", f"/v1/reads/{read.id}/decline", json={"reason": reason})

    def posterior(self, case_id: str) -> Posterior:
        """What is believed about a case now."""
        return Posterior.of(self._send("GET", f"/v1/cases/{case_id}/posterior").json())

    def metrics(self, **question: str) -> dict[str, Any]:
        """Metrics over collected labels (partition=, weighting=, since=, until=, site=)."""
        document: dict[str, Any] = self._send("GET", "/v1/metrics", params=question).json()
        return document


def main() -> None:
    address, api_key, path = sys.argv[1:4]
    with httpx2.Client(base_url=address, timeout=30) as client:
        found = SecondRead(client, api_key).predict(Path(path).read_bytes())
    for code, prob in sorted(found.class_probs.items(), key=lambda item: -item[1]):
        print(f"{prob:7.3f}  {code}")
    phi = "unknown" if found.disagreement_prob is None else f"{found.disagreement_prob:.3f}"
    print(f"two experts would disagree with probability {phi}: {found.reason}")


if __name__ == "__main__":
    main()
