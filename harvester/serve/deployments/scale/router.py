"""Ray Serve's choice of a replica for each chat, where its own proxies are the ingress. The proxies load this file, by its path."""

from __future__ import annotations

import random
from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import RequestRouterConfig

from harvester.policy.admission.route import ranked

PERIOD_S = 0.5
EXPECTED_S = "expected_s"  # what a replica tells of itself: seconds until the first token of a chat that came now


class ChatRouter(PowerOfTwoChoicesRequestRouter):
    """Of two replicas chosen at random, wherever they are, the one with the sooner first token; of two alike that with fewer requests.

    Serve's own prefers the replicas of the proxy's node as long as they accept requests, and ours always do.
    """

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        groups = ranked([one.routing_stats.get(EXPECTED_S) for one in two])
        return [[two[place] for place in group] for group in groups]


def routing(*, is_haproxy: bool) -> RequestRouterConfig:
    """Of the chat application's deployment. HAProxy as the ingress takes the replica with the fewest connections: Serve has no say then."""
    given: dict[str, Any] = {"request_routing_stats_period_s": PERIOD_S}
    return RequestRouterConfig(**given if is_haproxy else given | {"request_router_class": f"{__name__}:{ChatRouter.__name__}"})
