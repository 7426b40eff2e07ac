"""Configuration of one model: its engine, its replicas, and how chat and jobs share them."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from harvester.policy.parts import TABLES, check_name
from jobs.config import Section


class ShareConfig(Section):
    """Fixed shares of a replica for offline work: used until the latency model is fitted, or where `schedule` selects them."""

    reserved_slots: int = Field(default=4, ge=0, description="Slots (of `max_num_seqs`) kept free of offline requests.")
    reserved_kv: float = Field(default=0.1, ge=0.0, lt=1.0, description="Share of KV blocks kept free of offline requests.")
    reserve_s: float = Field(
        default=60.0, ge=0.0, allow_inf_nan=True, description="Seconds after the last online request for which the reserve is kept."
    )
    offline_step_tokens: int = Field(
        default=256, ge=1, description="Maximum offline tokens in a step with online work, under the fixed budget."
    )


class Objective(Section):
    """SLO of one class of online requests, in ms. None: the deployment's; infinite: none."""

    ttft_slo_ms: float | None = Field(default=None, gt=0.0, allow_inf_nan=True)
    tpot_slo_ms: float | None = Field(default=None, gt=0.0, allow_inf_nan=True)


class SloConfig(Section):
    """SLO of online requests. The offline work of each step is sized to meet it (ConServe 4.5). `slo: auto`: only `max_slowdown`."""

    ttft_slo_ms: float | None = Field(
        default=None, gt=0.0, allow_inf_nan=True, description="Time to first token (TTFT), in ms. None: `max_slowdown` holds."
    )
    tpot_slo_ms: float | None = Field(
        default=None,
        gt=0.0,
        allow_inf_nan=True,
        description="Time from one output token to the next (TPOT), in ms. None: `max_slowdown` holds.",
    )
    max_slowdown: float = Field(
        default=1.25,
        gt=1.0,
        description="Where no SLO is given: a first token, and the mean gap between tokens, takes at most so many times as long as without "
        "jobs. A single gap takes up to 0.3 of its time more, where work would else stand still.",
    )
    classes: dict[str, Objective] = Field(
        default_factory=dict, description="SLO by class; a request names its class as `slo_class` in `vllm_xargs`."
    )

    @model_validator(mode="before")
    @classmethod
    def _auto(cls, given: Any) -> Any:
        return {} if given == "auto" else given


class ScheduleConfig(Section):
    """Parts of the scheduler, by name, and their numbers."""

    online_order: str = Field(
        default="mlfq",
        description="Among online requests. mlfq: skip-join MLFQ; naive_mlfq: without the join; fcfs: first come, first served; "
        "sjf: shortest predicted time left; edf: earliest answer due, by SLO class and predicted length; econo: EconoServe's (range of "
        "the deadline, KV, predicted length); fixed: shortest prompt.",
    )
    offline_order: str = Field(
        default="fair", description="Among offline rows. fair: jobs by tokens served; fcfs: first come, first served."
    )
    admission: str = Field(
        default="expected",
        description="KV that offline rows are counted with. expected: what they will hold together by the job's median answer; "
        "worst: prompt and longest allowed answer of each.",
    )
    budget: str = Field(
        default="slo", description="Offline tokens per step. slo: by the latency model; fixed: `share.offline_step_tokens`."
    )
    max_ttft_delay_fraction: float = Field(
        default=0.2,
        ge=0.0,
        le=1.0,
        description="Maximum delay of a first token by offline work, as a fraction of `slo.ttft_slo_ms`: by the rest of an offline step, "
        "or by a longer step beside online work. Beside online work half of it, up to all of it where the decodes alone take long.",
    )
    reserve: str = Field(
        default="bursts",
        description="Room for arrivals. bursts: as large as recent bursts; fixed: `share.reserved_slots` and `share.reserved_kv`.",
    )
    tpot: str = Field(
        default="each",
        description="What the TPOT SLO applies to. each: every gap between two tokens; mean: the mean gap of a request, and single gaps "
        "may be late.",
    )
    safepoints: Literal["auto", "all", "off"] = Field(
        default="auto",
        description="auto: an arrival may end a running offline step between two layers; all: also one that chat decodes in, early in it.",
    )
    preempt_detect_ms: float = Field(
        default=30.0,
        gt=0.0,
        description="Target time in ms from an arrival to the end of the offline step that it ends: sets how far apart safepoints are. "
        "Missed where they would cost over 1% of a step; without effect on a CPU without tensor parallelism.",
    )

    @field_validator(*TABLES)
    @classmethod
    def _is_known(cls, name: str, info: ValidationInfo) -> str:
        check_name(str(info.field_name), name)
        return name


class CheckpointConfig(Section):
    """KV checkpoints in host memory: a request that loses its KV gets it back instead of computing it again (ConServe 4.4)."""

    enabled: bool | Literal["auto"] = Field(
        default="auto",
        description="auto: on if `harvester verify` found tokens and KV copies right with this model, machine and engine. "
        "Always off if the engine has a `kv_transfer_config` of its own.",
    )
    host_gib: float | None = Field(
        default=None,
        gt=0.0,
        description="Host memory for the checkpoints of one replica. None: a quarter of what is free, divided by `replicas`.",
    )
    start_free: float = Field(default=0.5, gt=0.0, le=1.0, description="Share of free KV below which checkpoints begin.")
    full_free: float = Field(default=0.1, ge=0.0, lt=1.0, description="Share of free KV at which every offline request is checkpointed.")
    online: bool = Field(
        default=True, description="Checkpoint online requests too, past the midpoint between `start_free` and `full_free`."
    )
    partial_blocks: bool = Field(default=True, description="Also save the partly filled last block of a request that loses its KV.")
    wait_blocks: int | None = Field(
        default=None,
        ge=0,
        description="Maximum unsaved blocks of victims that a step waits for. None: as many as take 2% of `slo.ttft_slo_ms`, or 10 ms.",
    )
    copy_cost: float | None = Field(
        default=None,
        gt=0.0,
        description="Slowdown of the concurrent step per second of copying. None: 1.0 on CPU, 0.04 on CUDA.",
    )
    verify: bool = Field(default=False, description="Checksum every host block and recompute those that changed. For tests.")

    @model_validator(mode="after")
    def _check(self) -> CheckpointConfig:
        if self.full_free >= self.start_free:
            raise ValueError(f"full_free={self.full_free} must be below start_free={self.start_free}")
        return self


class ReplicasConfig(Section):
    """`replicas: 2` is fixed. `{min: 1, max: 4}` follows open chats; it follows jobs only with `jobs`, `at_risk` or `min: 0`."""

    min: int = Field(
        default=1, ge=0, description="Minimum number of replicas. 0: none while nobody chats and no job has rows to do; needs HAProxy."
    )
    max: int = Field(default=1, ge=1, description="Maximum number of replicas.")
    target: float = Field(default=16.0, gt=0.0, description="Open chats of one replica; more of them on average ask for another.")
    up_s: float = Field(default=10.0, ge=0.0, description="Seconds for which chats must be too many before a replica is added.")
    down_s: float = Field(default=300.0, ge=0.0, description="Seconds for which they must be few enough before one is taken away.")
    jobs: int | None = Field(
        default=None, ge=1, description="Minimum number while a job has rows to do for this model. None: batch work asks for no replica."
    )
    at_risk: int | None = Field(
        default=None, ge=1, description="Minimum number while a job may end after its deadline. None: a deadline asks for no replica."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_number(cls, given: Any) -> Any:
        return {"min": given, "max": given} if isinstance(given, int) else given

    @model_validator(mode="after")
    def _check(self) -> ReplicasConfig:
        if self.max < self.min:
            raise ValueError(f"replicas.max={self.max} must be at least replicas.min={self.min}")
        for name, number in (("jobs", self.jobs), ("at_risk", self.at_risk)):
            if number is not None and not self.min <= number <= self.max:
                raise ValueError(f"replicas.{name}={number} must be from replicas.min={self.min} to replicas.max={self.max}")
        return self

    @property
    def is_fixed(self) -> bool:
        return self.min == self.max

    @property
    def sleeps(self) -> bool:
        """Whether it may scale to zero; the next chat or job then loads the model again."""
        return self.min == 0

    @property
    def floors(self) -> tuple[int, int]:
        """Minimum numbers for jobs, within a range: while one has rows to do, and while one is at risk. 0: jobs ask for none."""
        return (0, 0) if self.is_fixed else (self.jobs or int(self.sleeps), self.at_risk or 0)

    @property
    def follows_jobs(self) -> bool:
        return any(self.floors)


class ModelConfig(Section):
    """A model: its replicas, their engines, and how chat and jobs share them."""

    model: str | None = Field(default=None, description="Hugging Face id or folder. None: the embedded model.")
    replicas: ReplicasConfig = Field(default=ReplicasConfig(), description="Number of replicas, each with its own engine, or a range.")
    num_cpus: float | None = Field(default=None, gt=0.0, description="Ray CPUs of one replica, for Ray's accounting. None: 1.")
    num_gpus: float | None = Field(
        default=None, ge=0.0, description="Ray GPUs of one replica. None: the engine's tensor x pipeline parallel size."
    )
    engine: dict[str, Any] = Field(default_factory=dict, description="vLLM engine arguments, passed through unchanged.")
    adapters: dict[str, str] = Field(
        default_factory=dict, description="LoRA adapters, by the name that chats and jobs ask for: a folder or a Hugging Face id."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the replicas, e.g. VLLM_CPU_KVCACHE_SPACE.")
    slo: SloConfig = SloConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    share: ShareConfig = ShareConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="after")
    def _names_adapters_once(self) -> Self:
        if self.adapters and "lora_modules" in self.engine:
            raise ValueError("adapters and engine.lora_modules both name LoRA adapters; keep them under adapters")
        return self

    @property
    def media_hosts(self) -> tuple[str, ...]:
        """Hosts that images, audio and video of a request may be fetched from: vLLM's `allowed_media_domains`. None listed: no host."""
        given = self.engine.get("allowed_media_domains") or ()
        return tuple(str(host).lower() for host in ([given] if isinstance(given, str) else given))
