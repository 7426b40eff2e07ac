"""One scripted chat that is read to its end, in a thread of its own."""

from __future__ import annotations

import threading
import time

import httpx

from bench.harness.servers.server import READY_S


class Stream(threading.Thread):
    """A chat of ``tokens`` tokens, read to its end. ``status``, ``got`` and ``error`` say how it went, ``ended_s`` when (monotonic)."""

    def __init__(self, url: str, tokens: int) -> None:
        super().__init__(daemon=True)
        self._url, self._tokens = url, tokens
        self.status: int | None = None
        self.got = 0
        self.error: str | None = None
        self.replica: int | None = None  # process id of the replica that answers
        self.ended_s: float | None = None
        self.start()

    @property
    def whole(self) -> bool:
        return self.got == self._tokens and self.error is None

    def run(self) -> None:
        try:
            body = {"max_tokens": self._tokens}
            with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=READY_S) as answer:
                if answer.status_code == 200:
                    self.replica = int(answer.headers["x-replica"])
                self.status = answer.status_code
                self.got = sum(line.startswith("data: {") for line in answer.iter_lines())
        except httpx.HTTPError as error:
            self.error = repr(error)
        self.ended_s = time.monotonic()

    def begun(self) -> None:
        """Return once there is a status or an error. Raises `TimeoutError`."""
        end_s = time.monotonic() + READY_S
        while self.status is None and self.error is None:
            if time.monotonic() > end_s:
                raise TimeoutError(f"no answer to a chat within {READY_S:.0f} s")
            time.sleep(0.1)
