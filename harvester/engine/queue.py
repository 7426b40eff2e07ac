"""The waiting queue of vLLM's scheduler, in two lanes: online first, offline through a gate that the plan opens each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import PriorityRequestQueue, RequestQueue
from vllm.v1.request import Request

from harvester.core import WorkClass, work_class


class TwoLaneQueue(RequestQueue):  # type: ignore[misc]
    """Both lanes order by vLLM's ``priority``, then arrival.

    `__len__` and iteration see everything, `__bool__`, `peek_request` and `pop_request` only what may be admitted now. ``blocks_of``
    gives the KV blocks a request will hold when it ends.
    """

    def __init__(self, blocks_of: Callable[[Request], int]) -> None:
        self.online = PriorityRequestQueue()
        self.offline = PriorityRequestQueue()
        self._blocks_of = blocks_of
        self._slots = 0
        self._blocks = 0

    def open_gate(self, slots: int, blocks: int) -> None:
        """Let up to ``slots`` offline requests through, while their blocks fit in ``blocks``."""
        self._slots, self._blocks = slots, blocks

    def close_gate(self) -> None:
        self._slots = 0

    def _gate_is_open(self) -> bool:
        return self._slots > 0 and bool(self.offline) and self._blocks_of(self.offline.peek_request()) <= self._blocks

    def _lane(self, request: Request) -> PriorityRequestQueue:
        return self.offline if work_class(request.priority) is WorkClass.OFFLINE else self.online

    def add_request(self, request: Request) -> None:
        self._lane(request).add_request(request)

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Request:
        return (self.online or self.offline).peek_request()

    def pop_request(self) -> Request:
        if self.online:
            return self.online.pop_request()
        request = self.offline.pop_request()
        self._slots -= 1
        self._blocks -= self._blocks_of(request)
        return request

    def remove_request(self, request: Request) -> None:
        self._lane(request).remove_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        for lane in (self.online, self.offline):
            if gone and lane:
                lane.remove_requests(gone)

    def __bool__(self) -> bool:
        return bool(self.online) or self._gate_is_open()

    def __len__(self) -> int:
        return len(self.online) + len(self.offline)

    def __iter__(self) -> Iterator[Request]:
        yield from self.online
        yield from self.offline
