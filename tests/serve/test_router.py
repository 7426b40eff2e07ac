"""Serve's choice of a replica: ours behind its own proxies, HAProxy's where that is the ingress."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.serve, pytest.mark.filterwarnings("ignore")]  # of Serve's own imports


@pytest.mark.parametrize("is_haproxy", [True, False], ids=["HAProxy", "Serve's proxies"])
def test_a_router_of_our_own_is_given_only_where_serve_takes_one(is_haproxy: bool) -> None:
    from harvester.serve.deployments.scale.router import ChatRouter, routing

    given = routing(is_haproxy=is_haproxy).request_router_class
    assert str(given).endswith(ChatRouter.__name__) is not is_haproxy
