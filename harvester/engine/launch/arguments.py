"""vLLM's arguments: the user's, passed through as they are, over the few that harvester sets."""

from __future__ import annotations

import dataclasses
import difflib
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from harvester.config import ServeConfig
from harvester.engine.checkpoints.budget import transfer_config
from harvester.engine.launch.defaults import CPU_DEFAULTS, CUDA_SLOTS, CUDA_STEP_TOKENS, EMBEDDED_DEFAULTS, engine_defaults
from harvester.engine.shared.settings import KEY, pack
from harvester.engine.worker.preemptible import SAFEPOINTS_KEY
from harvester.errors import ConfigError

__all__ = ["CPU_DEFAULTS", "EMBEDDED_DEFAULTS", "engine_arguments", "namespace"]


def engine_arguments(
    config: ServeConfig, model: str, name: str, *, cpu: bool, embedded: bool, shared: Path | None = None, profile: Path | None = None
) -> dict[str, Any]:
    """All engine and front-end arguments by name. The user's win, except those that harvester's scheduler needs.

    ``shared`` and ``profile``: see `harvester.engine.shared.settings.Settings`.
    """
    values: dict[str, Any] = {"model": model, "served_model_name": [name], "enable_prefix_caching": True}
    values["enable_prompt_tokens_details"] = True  # cached tokens in `usage`, where OpenAI has them
    values |= engine_defaults(config, cpu=cpu, embedded=embedded)
    values["worker_cls"] = "harvester.engine.worker." + ("cpu_worker.HarvestCpuWorker" if cpu else "cuda_worker.HarvestCudaWorker")
    values |= config.engine
    if not cpu and values.get("tensor_parallel_size", 1) * values.get("pipeline_parallel_size", 1) == 1:
        # vLLM would run the worker in the engine core's thread, which then waits at safepoints and cannot answer the step before.
        values.setdefault("distributed_executor_backend", "mp")
    values.setdefault("async_scheduling", None)  # vLLM decides; `harvester.engine.launch.abilities.settle` takes the scheduler that fits
    values["scheduling_policy"] = "priority"
    values |= {"api_key": list(config.api_keys)} if config.api_keys else {}  # vLLM takes a plain string letter by letter
    extra = {**values.get("additional_config", {}), KEY: pack(config, shared, profile)}
    if shared is not None and config.schedule.safepoints == "auto":
        extra[SAFEPOINTS_KEY] = {"shared_state": str(shared)} | extra.get(SAFEPOINTS_KEY, {})
    values["additional_config"] = extra
    if config.checkpoint.enabled is True and values.get("kv_transfer_config") is None:
        values["kv_transfer_config"] = transfer_config(config.checkpoint, config.replicas)
    return values


def namespace(values: Mapping[str, Any]) -> tuple[Namespace, Any]:
    """vLLM's parsed command line and its engine arguments for ``values``. Raises `ConfigError` for a name vLLM does not have."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    engine_class = _engine_class()
    defaults = vars(make_arg_parser(FlexibleArgumentParser()).parse_args([]))
    fields = {field.name: field for field in dataclasses.fields(engine_class)}
    engine_names = set(fields)
    for key in values:
        if key not in defaults and key not in engine_names:
            near = difflib.get_close_matches(key, [*defaults, *engine_names], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"engine: vLLM has no argument {key}{hint}")
    try:
        engine = engine_class(**{key: _typed(fields[key].type, value) for key, value in values.items() if key in engine_names})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"engine: vLLM refuses these arguments: {' '.join(str(error).split())}") from error
    front = {key: value for key, value in values.items() if key not in engine_names}
    return Namespace(**(defaults | front | vars(engine))), engine


def _engine_class() -> Any:
    """vLLM's engine arguments, with harvester's default slots and steps on CUDA in place of vLLM's for an API server."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext

    class HarvestEngineArgs(AsyncEngineArgs):  # type: ignore[misc]
        @classmethod
        def get_batch_defaults(cls, world_size: int) -> tuple[dict[Any, int], dict[Any, int]]:
            tokens, slots = super().get_batch_defaults(world_size)
            if current_platform.is_cpu():
                return tokens, slots
            server = UsageContext.OPENAI_API_SERVER
            return tokens | {server: CUDA_STEP_TOKENS}, slots | {server: CUDA_SLOTS}

    return HarvestEngineArgs


def _typed(kind: Any, value: Any) -> Any:
    """A mapping for an argument that is one of vLLM's config classes becomes one: ``structured_outputs_config: {backend: xgrammar}``."""
    classes = [item for item in (get_args(kind) or (kind,)) if isinstance(item, type) and dataclasses.is_dataclass(item)]
    return TypeAdapter(classes[0]).validate_python(value) if classes and isinstance(value, dict) else value
