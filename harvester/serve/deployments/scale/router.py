"""Ray Serve's choice of a replica for each chat, where its own proxies are the ingress. The proxies load this file, by its path."""

from __future__ import annotations

import random
import time
from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import RequestRouterConfig

from harvester.policy.admission.route import Silences, ranked

PERIOD_S = 0.5
ASK_EVERY_S = 1.0  # that a silent replica is asked whether it is there
ASK_BACKOFF = 3  # Serve's exponent: it has 0.8 s to answer
EXPECTED_S = "expected_s"  # what a replica tells of itself: seconds until the first token of a chat that came now


class ChatRouter(PowerOfTwoChoicesRequestRouter):
    """Of two replicas chosen at random, wherever they are, the one with the sooner first token; of two alike that with fewer requests.

    Serve's own prefers the replicas of the proxy's node as long as they accept requests, and ours always do. It also goes on sending
    requests to a machine that has lost its power, until Ray notices: here a replica that is silent gets none while another is not.
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
    """Of the chat application's deployment. HAProxy as the ingress takes the replica with the fewest connections: Serve has no say then."""
    given: dict[str, Any] = {"request_routing_stats_period_s": PERIOD_S}
    return RequestRouterConfig(**given if is_haproxy else given | {"request_router_class": f"{__name__}:{ChatRouter.__name__}"})
