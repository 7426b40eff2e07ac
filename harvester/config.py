"""Configuration of a deployment: one frozen tree, loaded from YAML, every field with its default, bound and meaning in one place."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from harvester.core import ServiceTier
from harvester.errors import ConfigError, ParameterError
from harvester.policy.parts import TABLES, check_name

DEFAULT_URL = "http://127.0.0.1:8000"


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShareConfig(Section):
    """What offline work may hold of a replica, so that an online arrival finds room without evicting anything."""

    reserved_slots: int = Field(default=4, ge=0, description="Of vLLM's `max_num_seqs`, kept free of offline requests.")
    reserved_kv: float = Field(default=0.1, ge=0.0, lt=1.0, description="Share of KV blocks kept free of offline requests.")
    reserve_s: float = Field(
        default=60.0, ge=0.0, description="How long after the last online request the two reserves are kept; idle GPUs then work in full."
    )
    offline_step_tokens: int = Field(
        default=256, ge=1, description="Most offline tokens in a step that also holds online work; no bound without online work."
    )


class Objective(Section):
    """What one class of online requests is promised, in ms. None: the deployment's."""

    ttft_slo_ms: float | None = Field(default=None, gt=0.0)
    tpot_slo_ms: float | None = Field(default=None, gt=0.0)


class SloConfig(Section):
    """What online requests are promised. A step's offline work is sized so that these hold (ConServe 4.5)."""

    ttft_slo_ms: float = Field(default=500.0, gt=0.0, description="Time to first token.")
    tpot_slo_ms: float = Field(default=100.0, gt=0.0, description="Time from one output token to the next.")
    classes: dict[str, Objective] = Field(default_factory=dict, description="Others, by the `slo_class` of a request's `vllm_xargs`.")


class ScheduleConfig(Section):
    """Parts of the scheduler, by name, and their numbers."""

    online_order: str = Field(
        default="mlfq",
        description="Among online requests. mlfq: skip-join MLFQ; naive_mlfq: without the join; fcfs: first come, first served; "
        "sjf: shortest expected answer; edf: earliest first token due; fixed: shortest prompt.",
    )
    offline_order: str = Field(
        default="fair", description="Among offline rows. fair: jobs by tokens served; fcfs: first come, first served."
    )
    admission: str = Field(default="worst", description="KV that an offline row is counted with. worst: prompt and longest allowed answer.")
    budget: str = Field(
        default="slo", description="Offline tokens of a step. slo: by the latency model; fixed: `share.offline_step_tokens`."
    )
    max_ttft_delay_fraction: float = Field(
        default=0.1,
        ge=0.0,
        le=1.0,
        description="Share of `slo.ttft_slo_ms` that an arrival may wait for offline work: for a longer step beside chat, or the end of "
        "a step without chat. 1: only the SLO counts.",
    )
    reserve: str = Field(
        default="bursts",
        description="bursts: room for recent bursts of arrivals; fixed: `share.reserved_slots` and `share.reserved_kv`.",
    )
    safepoints: Literal["auto", "off"] = Field(default="auto", description="auto: an arrival may end a running step of offline work.")
    preempt_detect_ms: float = Field(default=30.0, gt=0.0, description="Most ms from the signal to the end of such a step.")
    mlfq_levels: int = Field(default=12, ge=1, le=16, description="Queues; the time a request may take in one doubles from queue to queue.")
    starvation_ms: float = Field(
        default=300.0,
        gt=0.0,
        description="An online request that waited this long in the first queue, twice as long in the next and so on, goes to the front.",
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
        description="auto: on where `harvester verify` has found tokens and KV copies right with this model on this machine. "
        "Off where the engine has a `kv_transfer_config` of its own.",
    )
    host_gib: float | None = Field(
        default=None,
        gt=0.0,
        description="Host memory of one replica for checkpoints; None: a quarter of what is free, shared by `replicas`.",
    )
    start_free: float = Field(default=0.5, gt=0.0, le=1.0, description="Share of free KV below which requests begin to be covered.")
    full_free: float = Field(default=0.1, ge=0.0, lt=1.0, description="Share of free KV at which every offline request is covered.")
    online: bool = Field(default=True, description="Cover online requests too, under twice the pressure.")
    partial_blocks: bool = Field(default=True, description="Save the last, partly filled block of a request that loses its KV.")
    wait_blocks: int | None = Field(
        default=None,
        ge=0,
        description="Most blocks that a step waits for, of the requests that make room in it; None: what takes 2% of `slo.ttft_slo_ms`.",
    )
    copy_cost: float | None = Field(
        default=None,
        gt=0.0,
        description="Of a copy's time, what the step beside it takes longer, which may be 2% of a step with online work; "
        "None: all of it on a CPU, 0.04 of it on CUDA, whose copy engines take a fiftieth of the memory's rate.",
    )
    verify: bool = Field(default=False, description="Checksum every host block; one that changed is computed again. For tests and doubts.")

    @model_validator(mode="after")
    def _check(self) -> CheckpointConfig:
        if self.full_free >= self.start_free:
            raise ValueError(f"full_free={self.full_free} must be below start_free={self.start_free}")
        return self


class HarvestConfig(Section):
    """How a replica takes work from the ledger."""

    max_slice_rows: int = Field(default=256, ge=1, le=100_000, description="Most rows of one lease.")
    min_slice_rows: int = Field(default=4, ge=1, description="Fewest rows of one lease, for small jobs.")
    slices_per_job: int = Field(default=32, ge=1, description="A small job is cut into about this many slices.")
    concurrency: int | None = Field(
        default=None, ge=1, description="Offline prompts kept in the engine of one replica; None: twice its offline slots."
    )
    lease_s: float = Field(default=15.0, gt=0.0, description="A lease not renewed for this long is given to another replica.")
    heartbeat_s: float = Field(default=1.0, gt=0.0, description="How often a replica renews its leases.")
    idle_poll_s: float = Field(default=0.5, gt=0.0, description="How often an idle replica asks for work.")
    row_attempts: int = Field(
        default=10, ge=2, description="How often a row is begun before it is taken to be what kills the engine and ends as an error."
    )

    @model_validator(mode="after")
    def _check(self) -> HarvestConfig:
        if self.heartbeat_s * 3 > self.lease_s:
            raise ValueError(f"lease_s={self.lease_s} must be at least three times heartbeat_s={self.heartbeat_s}")
        if self.min_slice_rows > self.max_slice_rows:
            raise ValueError(f"min_slice_rows={self.min_slice_rows} is above max_slice_rows={self.max_slice_rows}")
        return self


class TierConfig(Section):
    """Which tier a chat request gets that leaves it open: no `service_tier`, or `auto`."""

    default: ServiceTier = Field(default=ServiceTier.DEFAULT, description="Of requests without a key, or with one not named below.")
    keys: dict[str, ServiceTier] = Field(default_factory=dict, description="By API key (`Authorization: Bearer KEY`).")

    def resolve(self, asked: object, key: str | None) -> ServiceTier | None:
        """The tier of a request; None where neither it, its key nor `default` chooses one. Raises `ParameterError` for an unknown one."""
        if asked in (None, "auto"):
            own = self.keys.get(key, self.default) if key is not None else self.default
            return None if own is ServiceTier.DEFAULT and asked is None else own
        try:
            return ServiceTier(str(asked))
        except ValueError as error:
            known = ", ".join(["auto", *ServiceTier])
            raise ParameterError(f"service_tier {str(asked)[:40]!r} is none; use one of: {known}", "service_tier") from error


class BatchConfig(Section):
    """Limits of `/v1/files` and `/v1/batches`. None: no limit."""

    max_lines: int | None = Field(default=None, ge=1, description="Most requests of one batch; OpenAI's is 50,000.")
    max_file_bytes: int | None = Field(default=None, ge=1, description="Largest upload; OpenAI's is 200,000,000.")
    max_line_bytes: int = Field(default=64 << 20, ge=1024, description="Longest line of an input file: what is held in memory at once.")


class DeadlineConfig(Section):
    """What a job that would miss its deadline gets beyond its weight."""

    most_boost: float = Field(default=8.0, ge=1.0, le=1000.0, description="Most times its weight, among jobs. 1 raises none.")
    share_cap: float = Field(
        default=0.25,
        ge=0.0,
        le=0.9,
        description="Most of the slots and KV guaranteed to it, room kept for chat included. Chat's SLO comes first all the same.",
    )
    above_slo: bool = Field(
        default=False, description="Guarantee the share of a step's time too, even where chat's SLO does not hold then."
    )


class PriceConfig(Section):
    """What tokens cost, for estimates."""

    prompt_per_million: float = Field(ge=0.0, description="Of a million prompt tokens.")
    output_per_million: float = Field(ge=0.0, description="Of a million output tokens.")
    currency: str = Field(default="USD", min_length=1, max_length=8)


class ServeConfig(Section):
    """One deployment: a model, its replicas, and how they share chat and jobs."""

    model: str | None = Field(default=None, description="Hugging Face id or folder; None takes the embedded model.")
    served_model_name: str | None = Field(default=None, description="Name that clients use; None takes the model's own.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535)
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="Names by which browsers reach a server that listens on loopback: those of a proxy before it."
    )
    replicas: int = Field(default=1, ge=1, description="Replicas, each with an engine of its own.")
    num_cpus: float | None = Field(default=None, gt=0.0, description="Ray CPUs of one replica; None: what fits `replicas` on this machine.")
    num_gpus: float | None = Field(default=None, ge=0.0, description="Ray GPUs of one replica; None: the engine's tensor x pipeline size.")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    address: str | None = Field(default=None, description="A running Ray cluster to join; None starts one here.")
    ingress: Literal["auto", "haproxy", "proxy"] = Field(default="auto", description="auto: HAProxy where Ray ships it.")
    engine: dict[str, Any] = Field(default_factory=dict, description="vLLM engine arguments, passed through as they are.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment of the replicas, e.g. VLLM_CPU_KVCACHE_SPACE.")
    slo: SloConfig = SloConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    share: ShareConfig = ShareConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    harvest: HarvestConfig = HarvestConfig()
    service_tiers: TierConfig = TierConfig()
    batches: BatchConfig = BatchConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    price: PriceConfig | None = Field(default=None, description="None: estimates name no price.")

    @property
    def api_keys(self) -> tuple[str, ...]:
        """One of these must come with every request to `/v1` and `/api`; none: no key is asked for. As vLLM finds them."""
        given = self.engine.get("api_key") or self.env.get("VLLM_API_KEY") or os.environ.get("VLLM_API_KEY")
        return tuple(str(key) for key in (given if isinstance(given, list | tuple) else [given]) if key)


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
    given = "" if isinstance(first["input"], dict) else f" (given {first['input']!r})"
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
