"""The short form of the verification: some seconds within the engine that serves, while it is idle."""

from __future__ import annotations

import asyncio

from harvester.core import WorkClass
from harvester.engine.frontend.engine import TokenEngine
from harvester.engine.launch import profiler
from harvester.engine.shared.state import Field, SharedState
from harvester.engine.verify.signals import signals
from harvester.engine.verify.times import Times, error, sum_of_steps
from harvester.engine.verify.verdict import Verdict, kv_verdict, signals_verdict, times_verdict

SIGNALS, SIGNALS_S = 20, 5.0
STRETCH_S = 2.0
WORTH = 2.0  # times ``detect_s``: shorter steps hardly have a safepoint, and get no signal


async def verify_short(llm: TokenEngine, shared: SharedState, detect_s: float, safepoints: bool, max_s: float) -> list[Verdict]:
    """Waits until no request was seen for some seconds. Chat goes first all the while; checks that it would disturb are skipped or stop.

    ``detect_s``: time within which a step should end once it is asked to; ``safepoints``: whether steps can end early. No verdicts if the
    engine does not answer within ``max_s``. Raises `EngineError`.
    """
    await profiler.idle(llm)
    try:
        return await asyncio.wait_for(_verdicts(llm, shared, detect_s, safepoints), max_s)
    except TimeoutError:
        return []


async def _verdicts(llm: TokenEngine, shared: SharedState, detect_s: float, safepoints: bool) -> list[Verdict]:
    verdicts = [kv_verdict([bool(rank) for rank in await llm.on_workers("kv_comes_back")])]
    whole, _ = await sum_of_steps(llm, shared, STRETCH_S)
    if not _has_chat(llm):  # steps of chat have gaps between them
        verdicts.append(times_verdict(Times(*error(shared), whole)))
    if safepoints and shared[Field.PLACES] > 0:
        min_s = WORTH * detect_s
        found = await signals(llm, shared, SIGNALS, SIGNALS_S, lambda: _has_chat(llm), min_s)
        verdicts.append(signals_verdict(found, min_s))
    return verdicts


def _has_chat(llm: TokenEngine) -> bool:
    return llm.in_flight()[WorkClass.ONLINE] > 0
