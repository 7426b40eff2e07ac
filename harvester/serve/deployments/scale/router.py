"""How Ray Serve picks a replica for each chat, if its own proxies are the ingress. The proxies import this file by its path."""

from __future__ import annotations

import random
import time
from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import RequestRouterConfig

from harvester.policy.admission.route import Silences, ranked

PERIOD_S = 0.5
ASK_EVERY_S = 1.0  # between two probes of silent replicas
ASK_BACKOFF = 3  # exponent of Serve's probe timeout: 0.8 s
EXPECTED_S = "expected_s"  # a replica's routing stat: expected seconds to the first token of a chat that comes now


class ChatRouter(PowerOfTwoChoicesRequestRouter):
    """Power of two choices: of two random replicas, on any node, the one with the lower expected TTFT; if alike, with fewer requests.

    Serve's own router prefers replicas on the proxy's node as long as they accept requests, and ours always do. It also goes on sending
    requests to a machine without power until Ray notices. Here a silent replica gets no request while another one responds.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)  # type: ignore[no-untyped-call]
        self._silences, self._asked_s = Silences(), 0.0

    def on_send_request(self, replica_id: Any) -> None:
        super().on_send_request(replica_id)
        self._silences.sent(replica_id, time.monotonic())

    def on_new_queue_len_info(self, replica_id: Any, num_ongoing_requests: int) -> None:
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        self._silences.heard(replica_id)

    async def _probe_queue_lens(self, replicas: list[Any], backoff_index: int) -> list[tuple[Any, int | None]]:
        told = await super()._probe_queue_lens(replicas, backoff_index)
        for replica, length in told:
            if length is not None:
                self._silences.heard(replica.replica_id)
        return told

    def _speaking(self, candidates: list[Any]) -> list[Any]:
        now_s = time.monotonic()
        silent = self._silences.silent(now_s)
        if not silent:
            return candidates
        self._silences.keep({one.replica_id for one in candidates})
        quiet = [one for one in candidates if one.replica_id in silent]
        if quiet and now_s - self._asked_s >= ASK_EVERY_S:
            self._asked_s = now_s
            self._event_loop.create_task(self._probe_queue_lens(quiet, ASK_BACKOFF))
        return [one for one in candidates if one.replica_id not in silent] or candidates

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        speaking = self._speaking(candidate_replicas)
        two = random.sample(speaking, min(2, len(speaking)))
        groups = ranked([one.routing_stats.get(EXPECTED_S) for one in two])
        return [[two[place] for place in group] for group in groups]


def routing(*, is_haproxy: bool) -> RequestRouterConfig:
    """Router options of the chat deployment. HAProxy as the ingress itself picks the replica with the fewest connections."""
    given: dict[str, Any] = {"request_routing_stats_period_s": PERIOD_S}
    return RequestRouterConfig(**given if is_haproxy else given | {"request_router_class": f"{__name__}:{ChatRouter.__name__}"})
