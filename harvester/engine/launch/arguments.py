"""vLLM's arguments: the user's, passed through as they are, over the few that harvester sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harvester.config import ServeConfig
from harvester.engine.checkpoints.budget import transfer_config
from harvester.engine.launch.adapters import adapter_arguments
from harvester.engine.launch.defaults import engine_defaults
from harvester.engine.shared.settings import KEY, pack
from harvester.engine.shared.steporder import SAFEPOINTS_KEY

NO_HOST = "none.invalid"
OURS = ("scheduler_cls", "worker_cls", "additional_config", "kv_transfer_config")  # arguments that make a stock engine harvester's


def engine_arguments(
    config: ServeConfig, model: str, name: str, *, cpu: bool, embedded: bool, shared: Path | None = None, profile: Path | None = None
) -> dict[str, Any]:
    """All engine and front-end arguments by name. The user's win, except those that harvester's scheduler needs.

    ``shared`` and ``profile``: see `harvester.engine.shared.settings.Settings`.
    """
    values: dict[str, Any] = {"model": model, "served_model_name": [name], "enable_prefix_caching": True}
    values["enable_prompt_tokens_details"] = True  # cached tokens in `usage`, where OpenAI has them
    values |= engine_defaults(config, cpu=cpu, embedded=embedded)
    values["worker_cls"] = "harvester.engine.vllm.worker.workers." + ("HarvestCpuWorker" if cpu else "HarvestCudaWorker")
    values |= {"reasoning_parser": "auto", "tool_parser": "auto"}  # by the model's family: `harvester.engine.launch.families`
    if config.logs.format == "json":
        values["logging_config"] = {"formatter": "json"}  # vLLM's own lines
    if config.traces.endpoint is not None:
        values["otlp_traces_endpoint"] = config.traces.endpoint
    values |= adapter_arguments(config.adapters) | config.engine
    if "tool_call_parser" in config.engine:  # vLLM's own name of it
        values["tool_parser"] = values.pop("tool_call_parser")
    if not cpu and values.get("tensor_parallel_size", 1) * values.get("pipeline_parallel_size", 1) == 1:
        # vLLM would run the worker in the engine core's thread, which then waits at safepoints and cannot answer the step before.
        values.setdefault("distributed_executor_backend", "mp")
    values.setdefault("async_scheduling", None)  # vLLM decides; `harvester.engine.launch.abilities.settle` takes the scheduler that fits
    values["scheduling_policy"] = "priority"
    values["api_key"] = [""]  # vLLM checks none, not even the environment's: the access check before its application knows more keys
    values["allowed_media_domains"] = list(config.media_hosts) or [NO_HOST]  # vLLM takes an empty list for every host
    extra = {**values.get("additional_config", {}), KEY: pack(config, shared, profile)}
    if shared is not None and config.schedule.safepoints != "off":
        extra[SAFEPOINTS_KEY] = {"shared_state": str(shared)} | extra.get(SAFEPOINTS_KEY, {})
    values["additional_config"] = extra
    if config.checkpoint.enabled is True and values.get("kv_transfer_config") is None:
        values["kv_transfer_config"] = transfer_config(config.checkpoint, config.replicas.max)
    return values


def without_harvester(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments for stock vLLM: its own scheduler and worker, no KV connector of ours."""
    return {name: value for name, value in values.items() if name not in OURS}
