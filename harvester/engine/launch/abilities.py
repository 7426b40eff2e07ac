"""Which parts of harvester work with which model and arguments: decided from vLLM's finished configuration, before an engine is made of it.

A combination is refused in one line that says what to do instead, or runs without safepoints or checkpoints, which one line says. The
scheduler is chosen here too, since vLLM has the last word on async scheduling and a scheduler of the other kind breaks the engine.
`docs/models.md` is the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harvester.engine.shared.settings import KEY
from harvester.engine.shared.steporder import SAFEPOINTS_KEY
from harvester.errors import ConfigError

OUR_CONNECTOR = "CheckpointConnector"
SCHEDULERS = "harvester.engine.vllm.core.scheduler."
OFF_KEY = "harvester_off"  # in vLLM's `additional_config`: a line for each part that is off with this model and these arguments


@dataclass(frozen=True, slots=True)
class Parallel:
    """Parallel sizes of one engine. ``context``: the larger of prefill's and decode's; ``micro_batches``: two in flight (DBO).

    ``apart``: its workers may be on several machines.
    """

    data: int = 1
    pipeline: int = 1
    context: int = 1
    micro_batches: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """Model and arguments. ``scheduler_cls``: the user's own; ``kv_connector``: the connector's name; None: there is none."""

    model: str
    runner_type: str = "generate"
    is_diffusion: bool = False
    is_encoder_decoder: bool = False
    is_recurrent: bool = False  # keeps a state beside KV
    takes_images: bool = False  # or sound, or video
    speculative: bool = False
    parallel: Parallel = Parallel()
    async_scheduling: bool = False
    scheduler_cls: str | type[object] | None = None
    kv_connector: str | None = None
    ec_connector: bool = False
    moves_weights: bool = False  # layers' weights come to the device while it computes others (vLLM's `offload_config`)

    @property
    def foreign_connector(self) -> bool:
        return self.kv_connector is not None and self.kv_connector != OUR_CONNECTOR


@dataclass(frozen=True, slots=True)
class Settled:
    """The configuration without the parts that cannot work. ``lines``: one for each part that is off, to be logged once."""

    scheduler_cls: str | type[object]
    additional: Mapping[str, Any]
    lines: list[str]


def settle(asked: Asked, additional: Mapping[str, Any]) -> Settled:
    """Settle an engine that is to have harvester's scheduler. ``additional``: vLLM's `additional_config`. Raises `ConfigError`."""
    _refuse(asked)
    lines = []
    why = without_safepoints(asked)
    if why and SAFEPOINTS_KEY in additional:
        settings = {**additional[KEY], "schedule": {**additional[KEY].get("schedule", {}), "safepoints": "off"}}
        additional = {name: value for name, value in additional.items() if name != SAFEPOINTS_KEY} | {KEY: settings}
        lines.append(f"safepoints are off, a running step is not ended for an arrival: {'; '.join(why)}")
    if asked.foreign_connector and additional[KEY].get("checkpoint", {}).get("enabled") is True:
        lines.append("KV checkpoints are off: engine.kv_transfer_config names another connector")
    ours = SCHEDULERS + ("AsyncHarvestScheduler" if asked.async_scheduling else "HarvestScheduler")
    return Settled(ours if asked.scheduler_cls is None else asked.scheduler_cls, additional, lines)


def _refuse(asked: Asked) -> None:
    if asked.parallel.data > 1:
        raise ConfigError(
            f"engine.data_parallel_size={asked.parallel.data}: an engine has one scheduler here; "
            f"leave it out and set replicas: {asked.parallel.data}"
        )
    if asked.is_diffusion:
        raise ConfigError(f"model {asked.model}: diffusion models need a scheduler of vLLM's own; serve it with `vllm serve`")


def without_safepoints(asked: Asked) -> list[str]:
    """Why steps cannot end early; empty if they can by the configuration. The model's layers may still forbid it: `places.find`."""
    parallel = asked.parallel
    return _reasons(
        asked,
        (
            (parallel.pipeline > 1, "pipeline parallel: a stage may be past the step that another ends"),
            (parallel.context > 1, "context parallel: not proven"),
            (asked.moves_weights, "weight offloading: a step that ends within a layer would leave another layer's weights in its place"),
            (parallel.micro_batches, "two micro-batches in flight (DBO) end at different places"),
            (parallel.apart, "workers on several machines: those on another one do not see the signal"),
            (asked.speculative, "speculative decoding: the drafts that a step checks are gone when it is done again"),
            (asked.runner_type == "pooling", "pooling models: vLLM expects an answer of each step"),
            (asked.takes_images and asked.async_scheduling, "multimodal inputs with async scheduling: not proven"),
            (asked.foreign_connector, "engine.kv_transfer_config: its connector is not told of steps that end early"),
            (asked.ec_connector, "engine.ec_transfer_config: its connector is not told of steps that end early"),
        ),
    )


def without_checkpoints(asked: Asked) -> list[str]:
    """Why there can be no KV checkpoints; empty if there can. The planner finds models with several kinds of attention."""
    if asked.kv_connector is None or asked.foreign_connector:
        return []
    return _reasons(
        asked,
        (
            (asked.parallel.context > 1, "context parallel: not proven"),
            (asked.speculative, "speculative decoding: not proven"),
            (asked.runner_type == "pooling", "pooling models keep no KV"),
        ),
    )


def _reasons(asked: Asked, checks: Iterable[tuple[bool, str]]) -> list[str]:
    """The reasons that apply. What the model keeps beside KV comes first."""
    kept = []
    if asked.is_encoder_decoder:
        kept = ["encoder-decoder models: what the encoder made is kept over steps"]
    elif asked.is_recurrent:
        kept = ["recurrent layers (Mamba, linear attention): a step done again would advance their state twice"]
    return kept + [why for applies, why in checks if applies]
