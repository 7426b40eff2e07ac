"""What works with what: decided from vLLM's finished configuration, before an engine is made of it.

A combination is refused in one line that says what to do instead, or runs without safepoints or checkpoints, which one line says. The
scheduler is taken here too, since vLLM has the last word on async scheduling and a scheduler of the other kind breaks the engine.
`docs/models.md` is the table.
"""

from __future__ import annotations

from typing import Any

from harvester.engine.shared.settings import KEY
from harvester.engine.worker.preemptible import SAFEPOINTS_KEY
from harvester.errors import ConfigError

OUR_CONNECTOR = "CheckpointConnector"
SCHEDULERS = "harvester.engine.vllm.scheduler."


def settle(vllm_config: Any) -> list[str]:
    """Fit the configuration to what it can do. Returns one line for each thing that is off, to be logged once.

    Called on the configuration of an engine that is to have harvester's scheduler; for another it does nothing. Raises `ConfigError` for
    what cannot run.
    """
    ours = vllm_config.additional_config
    if KEY not in ours:
        return []
    _refuse(vllm_config)
    _take_scheduler(vllm_config.scheduler_config)
    lines = []
    why = without_safepoints(vllm_config)
    if why and SAFEPOINTS_KEY in ours:
        settings = {**ours[KEY], "schedule": {**ours[KEY].get("schedule", {}), "safepoints": "off"}}
        vllm_config.additional_config = {name: value for name, value in ours.items() if name != SAFEPOINTS_KEY} | {KEY: settings}
        lines.append(f"safepoints are off, a running step is not ended for an arrival: {'; '.join(why)}")
    if _foreign_connector(vllm_config) and ours[KEY].get("checkpoint", {}).get("enabled") is True:
        lines.append("KV checkpoints are off: engine.kv_transfer_config names another connector")
    return lines


def _refuse(vllm_config: Any) -> None:
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    if parallel.data_parallel_size > 1:
        raise ConfigError(
            f"engine.data_parallel_size={parallel.data_parallel_size}: an engine has one scheduler here; "
            f"leave it out and set replicas: {parallel.data_parallel_size}"
        )
    if model.is_diffusion:
        raise ConfigError(f"model {model.model}: diffusion models need a scheduler of vLLM's own; serve it with `vllm serve`")


def _take_scheduler(scheduler: Any) -> None:
    if scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = SCHEDULERS + ("AsyncHarvestScheduler" if scheduler.async_scheduling else "HarvestScheduler")


def without_safepoints(vllm_config: Any) -> list[str]:
    """Why steps cannot end early; empty where they can, as far as the configuration shows. The layers have a say: `places.find`."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    both = parallel.prefill_context_parallel_size, parallel.decode_context_parallel_size
    kept = _kept_state(model)
    checks = (
        (kept is not None, kept),
        (parallel.pipeline_parallel_size > 1, "pipeline parallel: a stage may be past the step that another ends"),
        (max(both) > 1, "context parallel: not proven"),
        (parallel.use_ubatching, "two micro-batches in flight (DBO) end at different places"),
        (vllm_config.speculative_config is not None, "speculative decoding: the drafts that a step checks are gone when it is done again"),
        (model.runner_type == "pooling", "pooling models: vLLM expects an answer of each step"),
        (_sees(model) and vllm_config.scheduler_config.async_scheduling, "multimodal inputs with async scheduling: not proven"),
        (_foreign_connector(vllm_config), "engine.kv_transfer_config: its connector is not told of steps that end early"),
        (vllm_config.ec_transfer_config is not None, "engine.ec_transfer_config: its connector is not told of steps that end early"),
    )
    return [why for applies, why in checks if applies and why is not None]


def without_checkpoints(vllm_config: Any) -> list[str]:
    """Why KV checkpoints cannot be; empty where they can. Models with several kinds of attention are found by the planner."""
    if vllm_config.kv_transfer_config is None or _foreign_connector(vllm_config):
        return []
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    both = parallel.prefill_context_parallel_size, parallel.decode_context_parallel_size
    kept = _kept_state(model)
    checks = (
        (kept is not None, kept),
        (max(both) > 1, "context parallel: not proven"),
        (vllm_config.speculative_config is not None, "speculative decoding: not proven"),
        (model.runner_type == "pooling", "pooling models keep no KV"),
    )
    return [why for applies, why in checks if applies and why is not None]


def _kept_state(model: Any) -> str | None:
    """What the model keeps beside KV, if anything."""
    if model.is_encoder_decoder:
        return "encoder-decoder models: what the encoder made is kept over steps"
    if model.is_hybrid or model.is_attention_free or model.has_inner_state:
        return "recurrent layers (Mamba, linear attention): a step done again would advance their state twice"
    return None


def _sees(model: Any) -> bool:
    """Whether a request may hold images, sound or video."""
    if not model.is_multimodal_model:
        return False
    limits = model.multimodal_config
    return not (limits is not None and limits.language_model_only)


def _foreign_connector(vllm_config: Any) -> bool:
    transfer = vllm_config.kv_transfer_config
    return transfer is not None and transfer.kv_connector != OUR_CONNECTOR
