"""Configuration of a deployment: one frozen tree, loaded from YAML, every field with its default, bound and meaning in one place."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from harvester.access_config import AccessConfig, TierConfig
from harvester.errors import ConfigError
from harvester.logs import LogConfig
from harvester.policy.parts import TABLES, check_name
from harvester.scale_config import ReplicasConfig
from harvester.traces import TraceConfig
from jobs.config import BatchConfig, DeadlineConfig, HarvestConfig, JobsConfig, PriceConfig, SecretConfig, Section, SourcesConfig

DEFAULT_URL = "http://127.0.0.1:8000"


class ShareConfig(Section):
    """Fixed shares of a replica for offline work: used until the latency model is fitted, or as `schedule` says."""

    reserved_slots: int = Field(default=4, ge=0, description="Slots (of `max_num_seqs`) kept free of offline requests.")
    reserved_kv: float = Field(default=0.1, ge=0.0, lt=1.0, description="Share of KV blocks kept free of offline requests.")
    reserve_s: float = Field(default=60.0, ge=0.0, description="Seconds after the last online request for which the reserve is kept.")
    offline_step_tokens: int = Field(
        default=256, ge=1, description="Maximum offline tokens in a step with online work, under the fixed budget."
    )


class Objective(Section):
    """SLO of one class of online requests, in ms. None: the deployment's."""

    ttft_slo_ms: float | None = Field(default=None, gt=0.0)
    tpot_slo_ms: float | None = Field(default=None, gt=0.0)


class SloConfig(Section):
    """SLO of online requests. The offline work of each step is sized to meet it (ConServe 4.5). `slo: auto`: no numbers, `max_slowdown`."""

    ttft_slo_ms: float | None = Field(default=None, gt=0.0, description="Time to first token (TTFT), in ms. None: `max_slowdown` holds.")
    tpot_slo_ms: float | None = Field(
        default=None, gt=0.0, description="Time from one output token to the next (TPOT), in ms. None: `max_slowdown` holds."
    )
    max_slowdown: float = Field(
        default=1.25,
        gt=1.0,
        description="Where no SLO is given: a first token, or a gap between tokens, takes at most so many times as long as without jobs.",
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
        description="Longest delay of an arrival by offline work, as a share of `slo.ttft_slo_ms`: by the rest of an offline step, or by a "
        "longer step beside online work. Where such a step is long without, by half of it.",
    )
    reserve: str = Field(
        default="bursts",
        description="Room for arrivals. bursts: as large as recent bursts; fixed: `share.reserved_slots` and `share.reserved_kv`.",
    )
    tpot: str = Field(
        default="each",
        description="What the TPOT SLO is of. each: every gap between two tokens; mean: the mean gap of a request, and single gaps may be "
        "late.",
    )
    safepoints: Literal["auto", "all", "off"] = Field(
        default="auto",
        description="auto: an arrival may end a running offline step between two layers; all: also one that chat decodes in, early in it.",
    )
    preempt_detect_ms: float = Field(default=30.0, gt=0.0, description="Maximum ms from that signal to the end of the step.")

    @field_validator(*TABLES)
    @classmethod
    def _is_known(cls, name: str, info: ValidationInfo) -> str:
        check_name(str(info.field_name), name)
        return name


class CheckpointConfig(Section):
    """KV checkpoints in host memory: a request that loses its KV gets it back instead of computing it again (ConServe 4.4)."""

    enabled: bool | Literal["auto"] = Field(
        default="auto",
        description="auto: on if `harvester verify` found tokens and KV copies right with this model on this machine. "
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


class ServeConfig(Section):
    """One deployment: a model, its replicas, and how they share chat and jobs."""

    model: str | None = Field(default=None, description="Hugging Face id or folder. None: the embedded model.")
    served_model_name: str | None = Field(default=None, description="Model name that clients use. None: the model's own.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535)
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Host names that the server answers to beside localhost and addresses, such as that of a proxy before it. "
        "None given: a server on loopback answers to no other, one on the network to all.",
    )
    replicas: ReplicasConfig = Field(default=ReplicasConfig(), description="Number of replicas, each with its own engine, or a range.")
    num_cpus: float | None = Field(
        default=None, gt=0.0, description="Ray CPUs of one replica. None: as many as fit `replicas` on this machine."
    )
    num_gpus: float | None = Field(
        default=None, ge=0.0, description="Ray GPUs of one replica. None: the engine's tensor x pipeline parallel size."
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    drain_s: float = Field(
        default=120.0, ge=0.0, description="Longest wait of a replica that is stopped or replaced for its open requests to end."
    )
    address: str | None = Field(default=None, description="Address of a running Ray cluster. None: start one here.")
    ingress: Literal["auto", "haproxy", "proxy"] = Field(default="auto", description="auto: HAProxy if Ray ships it.")
    engine: dict[str, Any] = Field(default_factory=dict, description="vLLM engine arguments, passed through unchanged.")
    adapters: dict[str, str] = Field(
        default_factory=dict, description="LoRA adapters, by the name that chats and jobs ask for: a folder or a Hugging Face id."
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the replicas, e.g. VLLM_CPU_KVCACHE_SPACE.")
    slo: SloConfig = SloConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    share: ShareConfig = ShareConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    harvest: HarvestConfig = HarvestConfig()
    service_tiers: TierConfig = TierConfig()
    access: AccessConfig = AccessConfig()
    jobs: JobsConfig = JobsConfig()
    batches: BatchConfig = BatchConfig()
    sources: SourcesConfig = SourcesConfig()
    secrets: dict[str, SecretConfig] = Field(default_factory=dict, description="Credentials of sources by name.")
    deadlines: DeadlineConfig = DeadlineConfig()
    logs: LogConfig = LogConfig()
    traces: TraceConfig = TraceConfig()
    ledger: str | None = Field(
        default=None,
        description="PostgreSQL database of jobs and leases, for a cluster: postgresql://USER@HOST/DATABASE. Its password is best left to "
        "~/.pgpass or PGPASSWORD. None: an SQLite file in the state folder.",
    )
    price: PriceConfig | None = Field(default=None, description="Token prices. None: estimates show no price.")

    @field_validator("ledger")
    @classmethod
    def _is_database(cls, given: str | None) -> str | None:
        if given is not None and not given.startswith(("postgresql://", "postgres://")):
            raise ValueError("not a PostgreSQL database; give postgresql://USER@HOST/DATABASE, or nothing for the state folder")
        return given

    @model_validator(mode="after")
    def _names_adapters_once(self) -> ServeConfig:
        if self.adapters and "lora_modules" in self.engine:
            raise ValueError("adapters and engine.lora_modules both name LoRA adapters; keep them under adapters")
        if self.served_model_name in self.adapters:
            raise ValueError(f"adapter {self.served_model_name} has the name of the model; give it another")
        return self

    @property
    def api_keys(self) -> tuple[str, ...]:
        """One of these must come with every request to `/v1` and `/api`; none: no key is asked for. As vLLM finds them."""
        given = self.engine.get("api_key") or self.env.get("VLLM_API_KEY") or os.environ.get("VLLM_API_KEY")
        return tuple(str(key) for key in (given if isinstance(given, list | tuple) else [given]) if key)

    @property
    def media_hosts(self) -> tuple[str, ...]:
        """Hosts that images, audio and video of a request may be fetched from: vLLM's `allowed_media_domains`. None listed: no host."""
        given = self.engine.get("allowed_media_domains") or ()
        return tuple(str(host).lower() for host in ([given] if isinstance(given, str) else given))


def _known_keys(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Every key of the tree, as ``{"lease_s": "harvest.lease_s", ...}``."""
    keys: dict[str, str] = {}
    for name, field in model.model_fields.items():
        keys[name] = prefix + name
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys |= _known_keys(kind, f"{prefix}{name}.")
    return keys


def _explain(error: ValidationError, origin: str) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        keys = _known_keys(ServeConfig)
        near = difflib.get_close_matches(str(first["loc"][-1]), keys, n=1)
        hint = f"; did you mean {keys[near[0]]}?" if near else f"; known keys: {', '.join(ServeConfig.model_fields)}"
        return f"{origin}: unknown key {where}{hint}"
    message = first["msg"].removeprefix("Value error, ")
    named = first["type"] == "value_error"  # of ours, whose message says the value
    given = "" if named or isinstance(first["input"], dict) else f" (given {first['input']!r})"
    return f"{origin}: {where + ': ' if where else ''}{message}{given}"


def parse_config(values: dict[str, Any], origin: str) -> ServeConfig:
    """Check values from ``origin`` (a file or "command line"). Raises `ConfigError` naming the key and the nearest valid one."""
    try:
        return ServeConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, origin)) from error


def load_config(path: Path | None, overrides: dict[str, Any] | None = None) -> ServeConfig:
    """Read a YAML file and lay ``overrides`` (command-line options, None meaning not given) over it."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read config file {path}: {error.strerror}; give the path of a YAML file") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from error
        if loaded is not None and not isinstance(loaded, dict):
            raise ConfigError(f"config file {path} holds a {type(loaded).__name__}; it must be a mapping of keys to values")
        values = dict(loaded or {})
        parse_config(values, str(path))
    values |= {key: value for key, value in (overrides or {}).items() if value is not None}
    return parse_config(values, "command line" if path is None else f"{path} with the command line")


def default_state_dir() -> Path:
    """``HARVESTER_STATE``, else the user's state folder (``$XDG_STATE_HOME/harvester``)."""
    given = os.environ.get("HARVESTER_STATE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "harvester"


def default_api_key() -> str | None:
    """Of the server that commands talk to; None where it asks for none."""
    return os.environ.get("HARVESTER_API_KEY") or None


def default_url() -> str:
    return os.environ.get("HARVESTER_URL", DEFAULT_URL).rstrip("/")
