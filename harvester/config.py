"""Configuration of a deployment: one frozen tree, loaded from YAML, every field with its default, bound and meaning in one place."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from connectors.credentials import without_login
from harvester.access_config import AccessConfig, TierConfig
from harvester.errors import ConfigError
from harvester.logs import LogConfig
from harvester.model_config import ModelConfig
from harvester.traces import TraceConfig
from jobs.config import (
    BatchConfig,
    DeadlineConfig,
    HarvestConfig,
    JobsConfig,
    PriceConfig,
    SecretConfig,
    SourcesConfig,
    TwiceError,
    read_yaml,
)

ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]  # part of a path


class ServeConfig(ModelConfig):
    """One deployment: the first model, further models, and the settings that they share."""

    models: dict[ModelName, ModelConfig] = Field(
        default_factory=dict, description="Further models, each with replicas of its own, by the name that clients and jobs ask for."
    )
    served_model_name: str | None = Field(default=None, description="Model name that clients use. None: the model's own.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=1, le=65535)
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Host names that the server answers to beside localhost and addresses, such as that of a proxy before it. "
        "None given: a server on loopback answers to no other, one on the network to all.",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    drain_s: float = Field(
        default=120.0, ge=0.0, description="Longest wait of a replica that is stopped or replaced for its open requests to end."
    )
    address: str | None = Field(default=None, description="Head of a running Ray cluster, HOST:PORT or auto. None: start one here.")
    ingress: Literal["auto", "haproxy", "proxy"] = Field(
        default="auto",
        description="Who has the port: HAProxy, or Ray Serve's own proxy. auto: HAProxy, unless Ray does not ship it, Serve runs with "
        "proxies in the cluster that is joined, or that cluster's server has a loopback address as its host.",
    )
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
    storage: str | None = Field(
        default=None,
        description="Where results, uploads and all else that several machines need lies: s3://BUCKET/PREFIX, another address of a file "
        "system, or a folder. The state folder is then each machine's own, a copy. None: the state folder, which all machines see.",
    )
    price: PriceConfig | None = Field(default=None, description="Token prices. None: estimates show no price.")

    @field_validator("address")
    @classmethod
    def _is_head(cls, given: str | None) -> str | None:
        if given is None or given == "auto":
            return given
        host, _, port = given.rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise ValueError(
                f"{given!r} is no Ray cluster's head; give HOST:PORT, such as 10.0.0.1:6379, or auto for a cluster of this machine"
            )
        return given

    @field_validator("ledger")
    @classmethod
    def _is_database(cls, given: str | None) -> str | None:
        if given is not None and not given.startswith(("postgresql://", "postgres://")):
            raise ValueError("not a PostgreSQL database; give postgresql://USER@HOST/DATABASE, or nothing for the state folder")
        return given

    @field_validator("storage")
    @classmethod
    def _is_address(cls, given: str | None) -> str | None:
        if given is not None and "://" not in given and not given.startswith("/"):
            raise ValueError(f"{given} is neither an address nor an absolute path; give s3://BUCKET/PREFIX or /FOLDER")
        return given

    @model_validator(mode="after")
    def _keeps_storage_apart(self) -> Self:
        if self.storage is None:
            return self
        if self.address is not None and self.ledger is None:
            raise ValueError(
                "storage on a joined cluster needs the ledger in a database that all nodes reach; give ledger: postgresql://..."
            )
        place = without_login(self.storage.partition("?")[0]).rstrip("/")
        for entry in self.sources.hosts or ():
            plain = entry.rstrip("/")
            if "://" in entry and (f"{place}/".startswith(f"{plain}/") or f"{plain}/".startswith(f"{place}/")):
                raise ValueError(f"sources.hosts: {entry} lets clients read the storage {place}; list narrower addresses")
        return self

    @model_validator(mode="after")
    def _names_models_once(self) -> Self:
        for name, one in self.models.items():
            if name in (self.served_model_name, *self.adapters) or any(name in other.adapters for other in self.models.values()):
                raise ValueError(f"models: {name} is the name of another model or adapter; give it another")
            if "api_key" in one.engine or "VLLM_API_KEY" in one.env:
                raise ValueError(f"models.{name} has an API key of its own; keys are the server's: make one with harvester key add")
        if self.models and self.replicas.sleeps:
            raise ValueError("replicas.min=0: replicas of the first model send requests on to those under models; set it to 1 or more")
        return self

    def of(self, name: str | None) -> ServeConfig:
        """Configuration for the replicas of one model: this deployment, with the further model ``name`` in place of the first.

        None: the first. It forwards requests to further models by name only, so other changes of those must not redeploy it.
        """
        if name is None:
            return self.model_copy(update={"models": dict.fromkeys(self.models, ModelConfig())})
        own = self.models[name]
        ours = {field: getattr(own, field) for field in ModelConfig.model_fields}
        keys = {"api_key": self.engine["api_key"]} if "api_key" in self.engine else {}
        key = {"VLLM_API_KEY": self.env["VLLM_API_KEY"]} if "VLLM_API_KEY" in self.env else {}
        ours |= {"engine": own.engine | keys, "env": own.env | key, "served_model_name": name, "models": {}}
        return self.model_copy(update=ours)

    @property
    def sleeps(self) -> bool:
        """Whether any of the models may scale to zero replicas."""
        return any(one.replicas.sleeps for one in (self, *self.models.values()))

    @property
    def api_keys(self) -> tuple[str, ...]:
        """Every request to `/v1` and `/api` must carry one of these; empty: no key is required. Read where vLLM reads them."""
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


def _keys_beside(place: Sequence[int | str]) -> list[str]:
    """Keys of the section that holds the last part of ``place``. A name that the user chose, such as a model's, is not a key."""
    kinds: list[type[BaseModel]] = [ServeConfig]
    for word in place[:-1]:
        found = [part for kind in kinds if word in kind.model_fields for part in _sections_in(kind.model_fields[str(word)].annotation)]
        kinds = found or kinds
    return [name for kind in kinds for name in kind.model_fields]


def _sections_in(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [section for part in get_args(kind) for section in _sections_in(part)]


def _explain(error: ValidationError, origin: str) -> str:
    found = error.errors()
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])  # a key that is misspelt is also missing
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        name, beside = str(first["loc"][-1]), _keys_beside(first["loc"])
        near = difflib.get_close_matches(name, beside, n=1)
        elsewhere = {} if near or len(first["loc"]) > 1 else _known_keys(ServeConfig)
        near = near or [elsewhere[key] for key in difflib.get_close_matches(name, elsewhere, n=1)]
        hint = f"; did you mean {near[0]}?" if near else f"; known keys: {', '.join(beside)}"
        return f"{origin}: unknown key {where}{hint}"
    if first["type"] in ("model_type", "model_attributes_type"):
        wanted = "a number, or a range such as {min: 1, max: 4}" if where.endswith("replicas") else "a section of keys and values"
        return f"{origin}: {where}: give {wanted} (given {first['input']!r})"
    message = first["msg"].removeprefix("Value error, ")
    named = first["type"] == "value_error"  # raised by our validators, whose messages state the value
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
            loaded = read_yaml(path)
        except OSError as error:
            raise ConfigError(f"cannot read config file {path}: {error.strerror}; give the path of a YAML file") from error
        except TwiceError as error:
            raise ConfigError(f"config file {path}: {error}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from error
        if loaded is not None and not isinstance(loaded, dict):
            raise ConfigError(f"config file {path} holds a {type(loaded).__name__}; it must be a mapping of keys to values")
        values = dict(loaded or {})
        parse_config(values, str(path))
    values |= {key: value for key, value in (overrides or {}).items() if value is not None}
    return parse_config(values, "command line" if path is None else f"{path} with the command line")
