"""One vLLM engine, owned by this process: arguments, finished configuration, start and end."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, get_args

import torch
from pydantic import TypeAdapter, ValidationError
from vllm import platforms
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.models.protocol import LoRAModulePath
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.utils.platform_utils import is_uva_available
from vllm.v1.engine import utils
from vllm.v1.executor import multiproc_executor

from harvester.engine.launch import abilities
from harvester.engine.launch.abilities import Asked, Parallel
from harvester.engine.launch.defaults import CUDA_SLOTS, CUDA_STEP_TOKENS
from harvester.engine.processes import forked
from harvester.engine.shared.settings import KEY
from harvester.engine.shared.state import SharedState
from harvester.engine.shared.steporder import SAFEPOINTS_KEY
from harvester.engine.vllm import surface
from harvester.engine.vllm.frontend.answers import with_parsers
from harvester.engine.vllm.frontend.client import HarvestLLM
from harvester.engine.vllm.platform import Additional, additional, on_cpu
from harvester.errors import ConfigError, EngineStartError

# Every process of vLLM sets this again. If it is the first variable of the environment, setproctitle cannot find the command line any more,
# and no engine process has its name.
SET_BY_VLLM = "TORCHINDUCTOR_COMPILE_THREADS"
PRELOADED = ("tcmalloc", "iomp", "libomp")  # libraries that can be loaded only at the start of a process

log = logging.getLogger(__name__)


class HarvestEngineArgs(AsyncEngineArgs):
    """vLLM's, with harvester's default slots and steps on CUDA in place of vLLM's for an API server."""

    @classmethod
    def get_batch_defaults(cls, world_size: int) -> tuple[dict[Any, int], dict[Any, int]]:
        tokens, slots = super().get_batch_defaults(world_size)
        if on_cpu():
            return tokens, slots
        server = UsageContext.OPENAI_API_SERVER
        return tokens | {server: CUDA_STEP_TOKENS}, slots | {server: CUDA_SLOTS}


def namespace(values: Mapping[str, Any]) -> tuple[Namespace, HarvestEngineArgs]:
    """vLLM's parsed command line and its engine arguments for ``values``. Raises `ConfigError` for a name vLLM does not have."""
    defaults = vars(make_arg_parser(FlexibleArgumentParser()).parse_args([]))
    fields = {field.name: field for field in dataclasses.fields(HarvestEngineArgs)}
    for key in values:
        if key not in defaults and key not in fields:
            near = difflib.get_close_matches(key, [*defaults, *fields], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"engine: vLLM has no argument {key}{hint}")
    try:
        engine = HarvestEngineArgs(**{key: _typed(fields[key].type, value) for key, value in values.items() if key in fields})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"engine: vLLM refuses these arguments: {' '.join(str(error).split())}") from error
    front = {key: value for key, value in values.items() if key not in fields}
    if front.get("lora_modules"):  # words on a command line; here a mapping for each
        front["lora_modules"] = _adapters(front["lora_modules"])
    return Namespace(**(defaults | front | vars(engine))), engine


def _typed(kind: Any, value: Any) -> Any:
    """A mapping for an argument that is one of vLLM's config classes becomes one: ``structured_outputs_config: {backend: xgrammar}``."""
    classes = [item for item in (get_args(kind) or (kind,)) if isinstance(item, type) and dataclasses.is_dataclass(item)]
    return TypeAdapter(classes[0]).validate_python(value) if classes and isinstance(value, dict) else value


def _adapters(given: Any) -> list[LoRAModulePath]:
    try:
        return TypeAdapter(list[LoRAModulePath]).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"engine: lora_modules {'.'.join(map(str, first['loc']))}: {first['msg']}; name them under adapters instead"
        ) from error


def configure(values: Mapping[str, Any]) -> tuple[Namespace, VllmConfig]:
    """vLLM's parsed command line and its finished configuration. Says in the log what is off, and why. Raises `ConfigError`."""
    values = with_parsers(values, lambda plain: namespace(plain)[1].create_model_config())
    args, engine_args = namespace(values)
    vllm_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    if KEY not in additional(vllm_config):
        return args, vllm_config
    lines = []
    if why := abilities.without_checkpoints(asked_of(vllm_config)):
        args, engine_args = namespace({**values, "kv_transfer_config": None})  # anew: vLLM has fitted other values to the connector
        vllm_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        lines.append(f"KV checkpoints are off: {'; '.join(why)}")
    settled = abilities.settle(asked_of(vllm_config), additional(vllm_config))
    lines += settled.lines
    for line in lines:
        log.warning(line)
    vllm_config.scheduler_config.scheduler_cls = settled.scheduler_cls
    found = {**settled.additional, **({abilities.OFF_KEY: lines} if lines else {})}
    vllm_config.additional_config = Additional(found, ours=(KEY, SAFEPOINTS_KEY, abilities.OFF_KEY))
    return args, vllm_config


def asked_of(vllm_config: VllmConfig) -> Asked:
    """The part of a finished configuration that decides which parts of harvester work."""
    parallel, model, transfer = vllm_config.parallel_config, vllm_config.model_config, vllm_config.kv_transfer_config
    scheduler, limits = vllm_config.scheduler_config, model.multimodal_config
    own, offload = scheduler.scheduler_cls, vllm_config.offload_config
    uva = offload.uva.cpu_offload_gb > 0
    return Asked(
        model=model.model,
        runner_type=model.runner_type,
        is_diffusion=model.is_diffusion,
        is_encoder_decoder=model.is_encoder_decoder,
        is_recurrent=model.is_hybrid or model.is_attention_free or model.has_inner_state,
        takes_images=model.is_multimodal_model and not (limits is not None and limits.language_model_only),
        speculative=vllm_config.speculative_config is not None,
        parallel=Parallel(
            data=parallel.data_parallel_size,
            pipeline=parallel.pipeline_parallel_size,
            context=max(parallel.prefill_context_parallel_size, parallel.decode_context_parallel_size),
            micro_batches=parallel.use_ubatching,
            apart=parallel.nnodes > 1 or parallel.distributed_executor_backend == "ray",
        ),
        async_scheduling=bool(scheduler.async_scheduling),
        scheduler_cls=own,
        kv_connector=None if transfer is None else transfer.kv_connector or "",
        ec_connector=vllm_config.ec_transfer_config is not None,
        moves_weights=offload.offload_backend == "prefetch" or offload.prefetch.offload_group_size > 0 or (uva and not is_uva_available()),
    )


def start_llm(values: Mapping[str, Any]) -> tuple[Namespace, HarvestLLM]:
    """vLLM's parsed command line, and the front end of an engine that answers.

    Raises `EngineStartError` with vLLM's own reason, `EngineError` for a vLLM that lacks something, and `ConfigError` for what
    `harvester.engine.launch.abilities` refuses.
    """
    os.environ.pop(SET_BY_VLLM, None)
    surface.require()
    try:
        with forked.method_kept() as may_fork:
            args, vllm_config = configure(values)
            _keep_cores(vllm_config)
            with _forked_core(vllm_config) if may_fork else nullcontext():
                llm = HarvestLLM.from_vllm_config(vllm_config, usage_context=UsageContext.OPENAI_API_SERVER, disable_log_stats=False)
    except ConfigError:
        raise
    except Exception as error:
        raise EngineStartError(f"vLLM did not start with model {values['model']}: {' '.join(str(error).split())[:600]}") from error
    assert isinstance(llm, HarvestLLM)
    return args, llm


@contextmanager
def _forked_core(vllm_config: VllmConfig) -> Iterator[None]:
    """An engine core that is started in here is forked, where it can be (`harvester.engine.processes.forked`). vLLM would spawn it."""
    context: forked.ServedContext | forked.ForkedContext | None = None
    if not vllm_config.parallel_config.numa_bind and (on_cpu() or platforms.current_platform.is_cuda()):
        if forked.has_begun():
            context = forked.ServedContext(_in_core)
        elif forked.is_single() and not torch.cuda.is_initialized():
            context = forked.ForkedContext(_in_core)
    if context is None:
        yield
        return
    starts: Any = utils
    stock = starts.get_mp_context
    starts.get_mp_context = lambda: stock() and context  # vLLM's has effects that stay
    try:
        yield
    finally:
        starts.get_mp_context = stock


def _in_core(arguments: Mapping[str, Any]) -> None:
    """Fork the workers of a CPU engine too, where each computes on one core: vLLM spawns them to bind the threads of OpenMP."""
    vllm_config: VllmConfig = arguments["vllm_config"]
    if not on_cpu() or any(name in os.environ.get("LD_PRELOAD", "") for name in PRELOADED):
        return
    cores = _cores(vllm_config)
    if cores and all(len(those) == 1 for those in cores):
        starts: Any = multiproc_executor
        context = forked.ForkedContext(_in_worker)
        starts.get_mp_context = lambda: context


def _in_worker(arguments: Mapping[str, Any]) -> None:
    os.sched_setaffinity(0, _cores(arguments["vllm_config"])[arguments["local_rank"]])
    torch.set_num_threads(1)


def _cores(vllm_config: VllmConfig) -> list[list[int]]:
    """Logical CPUs of each worker of this machine, as vLLM binds them; empty if it binds none. Keeps vLLM from logging them once more."""
    told = logging.getLogger(OMPProcessManager.__module__)
    before = told.level
    told.setLevel(logging.WARNING)
    try:
        return OMPProcessManager(vllm_config).cpu_lists
    finally:
        told.setLevel(before)


def _keep_cores(vllm_config: VllmConfig) -> None:
    """Give a CPU worker as many cores with checkpoints as without.

    With a KV connector vLLM 0.32 keeps one more core of each rank free, for transfers that take a core; ours take 1% of one. If there are
    not enough cores it keeps none free, and the worker's threads then contend with the engine core for theirs.
    """
    if on_cpu() and vllm_config.kv_transfer_config is not None:
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", str(vllm_config.parallel_config.world_size))


@asynccontextmanager
async def engine(values: Mapping[str, Any], shared: SharedState | None = None) -> AsyncIterator[HarvestLLM]:
    """An engine without an application around it, for as long as the block runs. With a ``shared`` it signals arrivals, as a replica does.

    Raises `EngineError`. One engine a process: its metrics can be registered once.
    """
    _, llm = start_llm(values)
    try:
        if shared is not None:
            llm.enable_scheduling(shared)
        yield llm
    finally:
        llm.shutdown()
        if shared is not None:
            shared.remove()
