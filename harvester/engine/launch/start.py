"""One vLLM engine in this process's charge, without an HTTP application around it; `harvester.engine.frontend.host` starts one with."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext

from harvester.engine.frontend.llm import HarvestLLM
from harvester.engine.frontend.metrics import ClassMetrics
from harvester.engine.frontend.signal import ArrivalSignal
from harvester.engine.launch import abilities
from harvester.engine.launch.arguments import namespace
from harvester.engine.shared.graphs import graph_sizes
from harvester.engine.shared.settings import KEY, Settings
from harvester.engine.shared.state import SharedState
from harvester.errors import ConfigError, EngineError

# Every process of vLLM sets this again. Where it came as the first variable of all, setproctitle finds the command line no more: no engine
# process would have its name.
SET_BY_VLLM = "TORCHINDUCTOR_COMPILE_THREADS"
OFF_KEY = "harvester_off"  # in vLLM's `additional_config`: a line for each part that is off with this model and these arguments

log = logging.getLogger(__name__)

OURS = ("scheduler_cls", "worker_cls", "additional_config", "kv_transfer_config")  # arguments that make a stock engine harvester's


def start_llm(values: dict[str, Any]) -> tuple[Namespace, HarvestLLM]:
    """vLLM's parsed command line, and the front end of an engine that answers.

    Raises `EngineError` with vLLM's own reason, and `ConfigError` for what `harvester.engine.launch.abilities` refuses.
    """
    os.environ.pop(SET_BY_VLLM, None)
    try:
        args, vllm_config = configure(values)
        _keep_cores(vllm_config)
        llm = HarvestLLM.from_vllm_config(vllm_config, usage_context=UsageContext.OPENAI_API_SERVER, disable_log_stats=False)
    except ConfigError:
        raise
    except Exception as error:
        raise EngineError(f"vLLM did not start with model {values['model']}: {' '.join(str(error).split())[:600]}") from error
    return args, llm


def configure(values: Mapping[str, Any]) -> tuple[Namespace, Any]:
    """vLLM's parsed command line and its finished configuration. Says in the log what is off, and why. Raises `ConfigError`."""
    args, engine_args = namespace(values)
    vllm_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    lines = []
    if KEY in vllm_config.additional_config and (why := abilities.without_checkpoints(vllm_config)):
        args, engine_args = namespace({**values, "kv_transfer_config": None})  # anew: vLLM has fitted other values to the connector
        vllm_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        lines.append(f"KV checkpoints are off: {'; '.join(why)}")
    lines += abilities.settle(vllm_config)
    for line in lines:
        log.warning(line)
    if lines:
        vllm_config.additional_config = {**vllm_config.additional_config, OFF_KEY: lines}
    return args, vllm_config


def _keep_cores(vllm_config: Any) -> None:
    """As many cores for a CPU worker with checkpoints as without.

    With a KV connector vLLM 0.32 keeps one more of each rank free, for transfers that take a core; ours takes 1% of one. Where there are
    not enough it keeps none, and the worker's threads then contend with the engine core for theirs.
    """
    if current_platform.is_cpu() and vllm_config.kv_transfer_config is not None:
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", str(vllm_config.parallel_config.world_size))


@asynccontextmanager
async def engine(values: dict[str, Any], shared: SharedState | None = None) -> AsyncIterator[HarvestLLM]:
    """An engine without an application around it, for as long as the block runs. With a ``shared`` it signals arrivals, as a replica does.

    Raises `EngineError`. One engine a process: its metrics can be registered once.
    """
    _, llm = start_llm(values)
    try:
        if shared is not None:
            settings = Settings.parse(llm.vllm_config.additional_config)
            llm.attend(
                ArrivalSignal(shared, settings.schedule.max_ttft_delay_fraction, graph_sizes(llm.vllm_config)), ClassMetrics(), settings
            )
        yield llm
    finally:
        llm.shutdown()
        if shared is not None:
            shared.remove()


def without_harvester(values: dict[str, Any]) -> dict[str, Any]:
    """The same arguments for stock vLLM: its own scheduler and worker, no KV connector of ours."""
    return {name: value for name, value in values.items() if name not in OURS}
