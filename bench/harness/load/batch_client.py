"""A client of the Batch API that times what it does: input files, uploads, waiting, downloads, and whether the answers are right."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np

from bench.harness.load.table import tail_of
from connectors.durable import publish
from harvester.errors import EngineError

ENDPOINT = "/v1/chat/completions"
POLL_S = 0.1
ENDED = ("completed", "failed", "expired", "cancelled")
_WORDS = ("the", "of", "and", "people", "nation", "world", "peace", "great", "government", "country", "freedom", "time")
CHUNK_BYTES = 1 << 20


def write_input(path: Path, model: str, lines: int, seed: int) -> None:
    """Chat requests of about 350 bytes; each asks for its own last word, so that an answer in the wrong place shows."""
    generator = np.random.default_rng(seed)
    with publish(path) as file:
        for number, words in enumerate(generator.integers(0, len(_WORDS), size=(lines, 32)).tolist()):
            content = " ".join(_WORDS[word] for word in words) + f" {tail_of(number)}"
            body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 64, "temperature": 0}
            item = {"custom_id": tail_of(number), "method": "POST", "url": ENDPOINT, "body": body}
            file.write(json.dumps(item).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Answers:
    """What the output file of a batch holds. ``exactly_once``: every request has one line, with status 200 and its own answer."""

    exactly_once: bool
    seconds: float  # of the download, to disk
    size_bytes: int


class BatchClient:
    """``url``: of the server. Raises `EngineError` where it refuses, or a batch does not end as it should."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=120.0, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        return _whole(self._http.get(path))

    def has(self, path: str) -> bool:
        return self._http.get(path).status_code == 200

    def upload(self, path: Path) -> str:
        with path.open("rb") as file:
            answer = self._http.post("/v1/files", data={"purpose": "batch"}, files={"file": (path.name, file, "application/jsonl")})
        return str(_whole(answer)["id"])

    def create(self, file_id: str) -> str:
        wish = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        return str(_whole(self._http.post("/v1/batches", json=wish))["id"])

    def wait(self, batch_id: str, limit_s: float, until: Callable[[dict[str, Any]], bool], poll_s: float = POLL_S) -> dict[str, Any]:
        """The batch as soon as ``until`` holds."""
        end_s = time.monotonic() + limit_s
        while True:
            batch: dict[str, Any] = self.get(f"/v1/batches/{batch_id}")
            if until(batch):
                return batch
            if batch["status"] in ENDED or time.monotonic() > end_s:
                raise EngineError(f"batch {batch_id} is {batch['status']} within {limit_s:.0f} s, with {batch['request_counts']}")
            time.sleep(poll_s)

    def completed(self, batch_id: str, limit_s: float, poll_s: float = POLL_S) -> dict[str, Any]:
        return self.wait(batch_id, limit_s, lambda batch: batch["status"] == "completed", poll_s)

    def download(self, file_id: str, path: Path, lines: int) -> Answers:
        began_s = time.perf_counter()
        with self._http.stream("GET", f"/v1/files/{file_id}/content") as answer, path.open("wb") as file:
            for chunk in answer.iter_raw(CHUNK_BYTES):
                file.write(chunk)
        seconds = time.perf_counter() - began_s
        return Answers(_is_right(path, lines), seconds, path.stat().st_size)


def _whole(answer: httpx.Response) -> Any:
    if answer.status_code != 200:
        raise EngineError(f"{answer.request.method} {answer.request.url.path} is answered with {answer.status_code}: {answer.text[:300]}")
    return answer.json()


def _is_right(path: Path, lines: int) -> bool:
    seen = set()
    with path.open(encoding="utf-8") as file:
        for line in file:
            item = json.loads(line)
            if item["response"]["status_code"] != 200:
                return False
            if item["response"]["body"]["choices"][0]["message"]["content"] != item["custom_id"] or item["custom_id"] in seen:
                return False
            seen.add(item["custom_id"])
    return seen == {tail_of(number) for number in range(lines)}
