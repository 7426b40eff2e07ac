"""The waiting queue of vLLM's scheduler, in two lanes: online first, offline through a gate that the plan opens each step."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from harvester.core import WorkClass, work_class
from harvester.policy.order.fair import FairOrder, prefix_key
from harvester.policy.view import Guarantee
from jobs.hint import JOB_ARG, SchedulingHint


class OnlineLane:
    """Online requests by rank, which is set before each step; those without one by priority and arrival, behind them."""

    def __init__(self) -> None:
        self._items: dict[str, Request] = {}
        self.ranks: Mapping[str, int] = {}

    def add(self, request: Request) -> None:
        self._items[request.request_id] = request

    def peek(self) -> Request:
        return min(self._items.values(), key=self._key)

    def _key(self, request: Request) -> tuple[float, int, float]:
        return self.ranks.get(request.request_id, float("inf")), request.priority, request.arrival_time

    def remove(self, request: Request) -> bool:
        return self._items.pop(request.request_id, None) is not None

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._items.values(), key=self._key))


class OfflineLane:
    """Offline requests: jobs by tokens served, inside a job those with progress first, then slice by slice, inside a slice by prefix."""

    def __init__(self, fair: FairOrder) -> None:
        self._fair = fair
        self._jobs: dict[str, list[tuple[Any, Request]]] = {}
        self._guarantees: dict[str, Guarantee] = {}  # by job that has a share, as its newest request says
        self._len = 0

    def guarantee(self) -> Guarantee | None:
        """The largest of the jobs that have work, waiting or running; None where none has a share."""
        if not self._guarantees:
            return None
        self._guarantees = {job: given for job, given in self._guarantees.items() if job in self._fair}
        return max(self._guarantees.values(), key=lambda given: given.share, default=None)

    def add(self, request: Request) -> None:
        hint = SchedulingHint.from_args(extra_of(request))
        self._fair.join(hint.job, hint.total_weight)
        if hint.share > 0.0:
            self._guarantees[hint.job] = Guarantee(hint.share, hint.above_slo)
        else:
            self._guarantees.pop(hint.job, None)
        insort(self._jobs.setdefault(hint.job, []), (_place(request, hint.window), request), key=lambda item: item[0])
        self._len += 1

    def peek(self) -> Request:
        job = self._fair.next(self._jobs)
        assert job is not None
        return self._jobs[job][0][1]

    def remove(self, request: Request) -> bool:
        job = job_of(request)
        rows = self._jobs.get(job, [])
        for number, (_, item) in enumerate(rows):
            if item is request:
                del rows[number]
                self._len -= 1
                if not rows:
                    del self._jobs[job]
                return True
        return False

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Request]:
        for rows in self._jobs.values():
            yield from (request for _, request in rows)


class TwoLaneQueue(RequestQueue):  # type: ignore[misc]
    """`__len__` and iteration see everything, `__bool__`, `peek_request` and `pop_request` only what may be admitted now.

    ``blocks_of`` gives the KV blocks a request will hold when it ends.
    """

    def __init__(self, blocks_of: Callable[[Request], int], fair: FairOrder | None = None) -> None:
        self.online = OnlineLane()
        self.offline = OfflineLane(fair or FairOrder())
        self._blocks_of = blocks_of
        self._slots = 0
        self._blocks = 0

    def open_gate(self, slots: int, blocks: int) -> None:
        """Let up to ``slots`` offline requests through, while their blocks fit in ``blocks``."""
        self._slots, self._blocks = slots, blocks

    def close_gate(self) -> None:
        self._slots = 0

    def _gate_is_open(self) -> bool:
        return self._slots > 0 and len(self.offline) > 0 and self._blocks_of(self.offline.peek()) <= self._blocks

    def _lane(self, request: Request) -> OnlineLane | OfflineLane:
        return self.offline if is_offline(request) else self.online

    def add_request(self, request: Request) -> None:
        self._lane(request).add(request)

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Request:
        return self.online.peek() if len(self.online) else self.offline.peek()

    def pop_request(self) -> Request:
        request = self.peek_request()
        self._lane(request).remove(request)
        if is_offline(request):
            self._slots -= 1
            self._blocks -= self._blocks_of(request)
        return request

    def remove_request(self, request: Request) -> None:
        """Raises ValueError where it is not here."""
        if not self._lane(request).remove(request):
            raise ValueError(f"request {request.request_id} is not waiting")

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._lane(request).remove(request)

    def __bool__(self) -> bool:
        return len(self.online) > 0 or self._gate_is_open()

    def __len__(self) -> int:
        return len(self.online) + len(self.offline)

    def __iter__(self) -> Iterator[Request]:
        yield from self.online
        yield from self.offline


class OfflineRequests:
    """The offline requests that the engine holds, by id, with their jobs."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def add(self, name: str, job: str) -> None:
        if name not in self._jobs:
            self._jobs[name] = job
            self._counts[job] += 1

    def discard(self, name: str) -> str | None:
        """Forget it. Returns its job if that has no other request here."""
        job = self._jobs.pop(name, None)
        if job is None:
            return None
        self._counts[job] -= 1
        if self._counts[job]:
            return None
        del self._counts[job]
        return job

    def get(self, name: str) -> str | None:
        return self._jobs.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._jobs


def is_offline(request: Request) -> bool:
    return work_class(request.priority) is WorkClass.OFFLINE


def extra_of(request: Request) -> Mapping[str, Any]:
    """`vllm_xargs` of the request."""
    params = request.sampling_params
    return (params.extra_args or {}) if params is not None else {}


def job_of(request: Request) -> str:
    """Job of an offline request; the empty one where it came by the chat route."""
    return str(extra_of(request).get(JOB_ARG, ""))


def _place(request: Request, window: int) -> tuple[bool, int, int, tuple[int, ...], float]:
    """Order inside a job."""
    fresh = request.num_preemptions == 0
    return fresh, request.priority, window, prefix_key(request.prompt_token_ids or ()), request.arrival_time
