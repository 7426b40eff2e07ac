"""A replica that ends reports the usage that it counted since its last report."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve.deployments.replica import Replica


async def test_a_replica_that_ends_tells_its_usage_after_its_last_chat() -> None:
    order: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        async def done(*_: object) -> None:
            order.append(name)

        return done

    still = SimpleNamespace(cancel=lambda: None)
    host, meter = SimpleNamespace(close=lambda: order.append("close")), SimpleNamespace(tell_last=noted("tell"))
    leaving = asyncio.create_task(noted("leave")())
    replica: Any = SimpleNamespace(_tasks=[still], _leaving=leaving, _host=host, _meter=meter)
    replica.stop_harvest, replica._usage_ledger = noted("stop"), None
    await Replica.__del__(replica)
    assert order == ["leave", "stop", "tell", "close"]
