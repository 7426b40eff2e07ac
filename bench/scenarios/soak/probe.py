"""What a client sees of a server while its processes are killed: from when to when the API and chat were shut."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import httpx

POLL_S = 0.1
PATIENCE_S = 5.0
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


@dataclass
class Probe(threading.Thread):
    """Asks one route again and again until `end`. ``shut``: start and length of each time without a whole answer, in monotonic seconds."""

    url: str
    is_chat: bool
    shut: list[tuple[float, float]] = field(default_factory=list)
    answered: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self._since_s: float | None = None

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        while not self._over.wait(POLL_S):
            began_s = time.monotonic()
            if self._asked():
                self.answered += 1
                self._opened()
            else:
                self.failed += 1
                self._since_s = began_s if self._since_s is None else self._since_s
        self._opened()

    def _opened(self) -> None:
        if self._since_s is not None:
            self.shut.append((self._since_s, time.monotonic() - self._since_s))
            self._since_s = None

    def _asked(self) -> bool:
        try:
            if not self.is_chat:
                return httpx.get(f"{self.url}/api/jobs", timeout=PATIENCE_S).status_code == 200
            answer = httpx.post(f"{self.url}/v1/chat/completions", json=CHAT, timeout=PATIENCE_S)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200 and "data: [DONE]" in answer.text

    def end(self) -> None:
        self._over.set()
        self.join()

    @property
    def is_open(self) -> bool:
        return self._since_s is None and self.answered > 0

    def longest_s(self, since_s: float) -> float:
        """Of those that were not over by then. Ask once it `is_open` again."""
        return max((length for start, length in self.shut if start + length > since_s), default=0.0)
