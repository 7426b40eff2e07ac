"""The waiting queue of vLLM's scheduler: online requests by rank, then the offline ones that the plan of the step admits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from harvester.engine.vllm.core.reads import is_offline, waits_for_grammar
from harvester.policy.order.offline import OfflineOrder
from harvester.policy.waiting import Waiting, WaitingOnline


class WaitingQueue(RequestQueue):
    """`__len__` and iteration see everything; `__bool__`, `peek_request` and `pop_request` only what the plan ranks or admits.

    ``arrive``: called with every offline request that begins to wait; ``order``: told of each that waits no longer. ``waits``: makes an
    online request into the brain's form.
    """

    def __init__(self, order: OfflineOrder, arrive: Callable[[Request], None], waits: Callable[[Request], Waiting]) -> None:
        self._order, self._arrive, self._waits = order, arrive, waits
        self._online: dict[str, Request] = {}
        self._seen = WaitingOnline()  # the online requests that could run
        self._unsettled: set[str] = set()  # online requests with unknown tokens of steps in flight, or with a grammar that is not ready
        self._taken = frozenset[int]()
        self._turns: deque[str] = deque()  # names by rank; one that waits no longer is skipped
        self._offline: dict[str, Request] = {}
        self._ranks: Mapping[str, int] = {}
        self._admitted: deque[str] = deque()

    def seen(self) -> WaitingOnline:
        """The online requests that wait for a turn. One without its grammar, or without a place for its adapter, could not take it."""
        for name in list(self._unsettled):
            self._see(self._online[name])
        return self._seen

    def take_adapters(self, taken: frozenset[int]) -> None:
        """``taken``: the adapters of running chats if these have all places, else empty. A chat on another adapter waits for them."""
        if taken != self._taken:
            self._taken = taken
            for request in [one for one in self._online.values() if one.lora_request]:
                self._see(request)

    def holds_back(self, request: Request) -> bool:
        """Whether it is an online request that could not take its turn; see `seen`."""
        return request.request_id in self._online and request.request_id not in self._seen

    @property
    def has_online(self) -> bool:
        return bool(self._online)

    @property
    def has_ready(self) -> bool:
        """Whether an online request could run."""
        return len(self._seen) > 0

    @property
    def ranks(self) -> Mapping[str, int]:
        """The ranks given last."""
        return self._ranks

    @property
    def next_online(self) -> Request | None:
        """The online request whose turn is next; None: none has a turn."""
        self._skip_the_gone()
        return self._online[self._turns[0]] if self._turns else None

    def rank(self, ranks: Mapping[str, int]) -> None:
        """The order of the online requests from now on, the first in front. One without a rank has no turn: it waits until it has one."""
        self._ranks = ranks
        self._turns = deque(filter(self._online.__contains__, ranks))

    def open(self, admitted: Sequence[str]) -> None:
        """Let these offline requests through, in this order, once no online request waits."""
        self._admitted = deque(admitted)

    def close(self) -> None:
        """Let no offline request through."""
        self._admitted.clear()

    def add_request(self, request: Request) -> None:
        if is_offline(request):
            self._offline[request.request_id] = request
            self._arrive(request)
        else:
            self._online[request.request_id] = request
            self._see(request)

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Request:
        self._skip_the_gone()
        if self._turns:
            return self._online[self._turns[0]]
        return self._offline[self._admitted[0]]

    def pop_request(self) -> Request:
        request = self.peek_request()
        if is_offline(request):
            self._admitted.popleft()
        self._remove(request)
        return request

    def remove_request(self, request: Request) -> None:
        """Raises ValueError where it is not here."""
        if not self._remove(request):
            raise ValueError(f"request {request.request_id} is not waiting")

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._remove(request)

    def __bool__(self) -> bool:
        self._skip_the_gone()
        return bool(self._turns or self._admitted)

    def __len__(self) -> int:
        return len(self._online) + len(self._offline)

    def __iter__(self) -> Iterator[Request]:
        rows = (self._offline[row.name] for row in self._order.rows())
        return chain(sorted(self._online.values(), key=self._rank_of), rows)

    def _rank_of(self, request: Request) -> tuple[float, int, float]:
        return self._ranks.get(request.request_id, float("inf")), request.priority, request.arrival_time

    def _remove(self, request: Request) -> bool:
        name = request.request_id
        if self._offline.pop(name, None) is not None:
            self._order.take(name)
            return True
        self._seen.remove(name)
        self._unsettled.discard(name)
        return self._online.pop(name, None) is not None

    def _see(self, request: Request) -> None:
        name, adapter = request.request_id, request.lora_request
        waits_for_adapter = adapter is not None and bool(self._taken) and adapter.lora_int_id not in self._taken
        is_ready = not waits_for_adapter and not waits_for_grammar(request)
        if is_ready:
            self._seen.add(self._waits(request))
        else:
            self._seen.remove(name)
        is_settled = waits_for_adapter or is_ready
        (self._unsettled.discard if is_settled and not request.num_stale_output_tokens else self._unsettled.add)(name)

    def _skip_the_gone(self) -> None:
        while self._turns and self._turns[0] not in self._online:
            self._turns.popleft()
        while self._admitted and self._admitted[0] not in self._offline:
            self._admitted.popleft()
