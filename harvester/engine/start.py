"""One vLLM engine in this process's charge, without an HTTP application around it; `harvester.engine.host` starts one with."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from vllm.usage.usage_lib import UsageContext

from harvester.engine.arguments import namespace
from harvester.engine.board import Board
from harvester.engine.host import SET_BY_VLLM, _keep_cores
from harvester.engine.llm import HarvestLLM
from harvester.engine.metrics import ClassMetrics
from harvester.engine.settings import Settings
from harvester.engine.signal import ArrivalSignal
from harvester.errors import EngineError

OURS = ("scheduler_cls", "worker_cls", "additional_config", "kv_transfer_config")  # arguments that make a stock engine harvester's


def start_llm(values: dict[str, Any]) -> HarvestLLM:
    """The front end of an engine that answers. Raises `EngineError` with vLLM's own reason."""
    _, engine_args = namespace(values)
    os.environ.pop(SET_BY_VLLM, None)
    try:
        vllm_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        _keep_cores(vllm_config)
        llm: HarvestLLM = HarvestLLM.from_vllm_config(vllm_config, usage_context=UsageContext.OPENAI_API_SERVER, disable_log_stats=False)
    except Exception as error:
        raise EngineError(f"vLLM did not start with model {values['model']}: {' '.join(str(error).split())[:600]}") from error
    return llm


@asynccontextmanager
async def engine(values: dict[str, Any], board: Board | None = None) -> AsyncIterator[HarvestLLM]:
    """An engine without an application around it, for as long as the block runs. With a ``board`` it signals arrivals, as a replica does.

    Raises `EngineError`. One engine a process: its metrics can be registered once.
    """
    llm = start_llm(values)
    try:
        if board is not None:
            settings = Settings.parse(llm.vllm_config.additional_config)
            llm.attend(ArrivalSignal(board, settings.schedule.intrusion), ClassMetrics(), settings)
        yield llm
    finally:
        llm.shutdown()
        if board is not None:
            board.remove()


def without_harvester(values: dict[str, Any]) -> dict[str, Any]:
    """The same arguments for stock vLLM: its own scheduler and worker, no KV connector of ours."""
    return {name: value for name, value in values.items() if name not in OURS}
