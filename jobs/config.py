"""How a configuration is read, and the sections of a deployment's that jobs use. `harvester.config` composes the whole tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, Field, model_validator

from jobs.frozen import Frozen


class TwiceError(ValueError):
    """A key is given twice in one mapping, where YAML's readers keep the last one without a word."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        found: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key in (one for one, _ in found.value if isinstance(one, yaml.ScalarNode)):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise TwiceError(f"key {key.value[:80]} is given twice, in lines {lines[name]} and {line}; keep one")
            lines[name] = line
        return found


def read_yaml(path: Path) -> Any:
    """What a file says. Raises `OSError`, `UnicodeDecodeError`, `yaml.YAMLError`, and `TwiceError` for a key that is given twice."""
    return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a safe one


class Section(Frozen):
    """Values of one key of the file. Numbers are finite, unless a field says otherwise."""

    model_config = ConfigDict(allow_inf_nan=False)


class HarvestConfig(Section):
    """How a replica takes work from the ledger."""

    max_slice_rows: int = Field(default=256, ge=1, le=100_000, description="Maximum rows of one lease.")
    min_slice_rows: int = Field(default=4, ge=1, description="Minimum rows of one lease, for small jobs.")
    slices_per_job: int = Field(default=32, ge=1, description="A small job is cut into about this many slices.")
    concurrency: int | None = Field(
        default=None, ge=1, description="Offline prompts kept in the engine of one replica. None: twice its offline slots."
    )
    lease_s: float = Field(default=15.0, gt=0.0, description="Seconds after which a lease that was not renewed goes to another replica.")
    heartbeat_s: float = Field(default=1.0, gt=0.0, description="Seconds between two renewals of a replica's leases.")
    idle_poll_s: float = Field(default=0.5, gt=0.0, description="Seconds between two requests of an idle replica for work.")
    spool_send_s: float = Field(
        default=5.0, gt=0.0, description="Seconds between two sendings of a slice's finished rows to the storage, where there is one."
    )
    min_free_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description="Free bytes of the state folder's disk below which no job is taken and no slice is begun.",
    )
    row_attempts: int = Field(
        default=10,
        ge=2,
        description="Attempts, cancelled ones apart, after which an unfinished row ends as an error: it seems to kill the engine.",
    )

    max_image_bytes: int = Field(
        default=20 << 20, ge=1024, description="Maximum bytes of an image of a row, which is held in memory; a larger one ends the row."
    )

    @model_validator(mode="after")
    def _check(self) -> HarvestConfig:
        if self.heartbeat_s * 3 > self.lease_s:
            raise ValueError(f"lease_s={self.lease_s} must be at least three times heartbeat_s={self.heartbeat_s}")
        if self.min_slice_rows > self.max_slice_rows:
            raise ValueError(f"min_slice_rows={self.min_slice_rows} is above max_slice_rows={self.max_slice_rows}")
        return self


class JobsConfig(Section):
    """What becomes of jobs that have ended."""

    retention_days: float | None = Field(
        default=None,
        gt=0.0,
        description="Days after its end when a job is removed with its results, as `harvester rm` does. A batch's job goes once its files "
        "were deleted. None: never.",
    )


class BatchConfig(Section):
    """Limits of `/v1/files` and `/v1/batches`. None: no limit."""

    max_lines: int | None = Field(default=None, ge=1, description="Maximum requests of one batch. OpenAI: 50,000.")
    max_file_bytes: int | None = Field(default=None, ge=1, description="Maximum bytes of an upload. OpenAI: 200,000,000.")
    max_line_bytes: int = Field(default=64 << 20, ge=1024, description="Maximum bytes of an input line, which is held in memory.")


class DeadlineConfig(Section):
    """What a job that would miss its deadline gets beside its weight."""

    max_boost: float = Field(default=8.0, ge=1.0, le=1000.0, description="Maximum factor on the weight of a late job. 1: no boost.")
    share_cap: float = Field(
        default=0.25,
        ge=0.0,
        le=0.9,
        description="Maximum share of slots and KV guaranteed to a late job; it may use the reserve. The SLO still comes first.",
    )
    above_slo: bool = Field(default=False, description="Guarantee the share of step time too, even if that breaks the SLO.")


class SourcesConfig(Section):
    """What jobs of HTTP clients may read. The server's own user on its machine reads all that the user may (`harvester submit` does)."""

    roots: tuple[str, ...] | None = Field(
        default=None,
        description="Folders whose files may be read; links are followed first. Never read: names that begin with a dot, the state folder, "
        "/proc, /sys, /dev. None: the working directory of a server that listens on loopback, else no folder.",
    )
    hosts: tuple[str, ...] | None = Field(
        default=None,
        description="What may be reached: hosts for http and https (*.example.com, 10.1.2.3), beginnings of other addresses (s3://bucket), "
        "databases as they are attached, or all of a kind (postgres:). None: http and https at public addresses.",
    )

    @model_validator(mode="after")
    def _check(self) -> SourcesConfig:
        for root in self.roots or ():
            if not Path(root).is_absolute():
                raise ValueError(f"roots: {root} is not an absolute path")
        return self

    def with_roots(self, here: Path | None) -> SourcesConfig:
        """A copy with ``here`` as the only root if no roots are configured; with no root where ``here`` is None or the whole disk."""
        if self.roots is not None:
            return self
        return self.model_copy(update={"roots": () if here is None or here == Path(here.anchor) else (str(here),)})


class SecretConfig(Section):
    """A credential of sources, written as `${NAME}` in their addresses and looked up whenever one is opened."""

    env: str | None = Field(default=None, min_length=1, description="Environment variable that holds it.")
    file: str | None = Field(default=None, min_length=1, description="File that holds it; a line break at its end is left out.")
    prefix: str = Field(min_length=1, description="Beginning of the addresses that it may stand in, such as postgres://db.internal/.")

    @model_validator(mode="after")
    def _check(self) -> SecretConfig:
        if (self.env is None) == (self.file is None):
            raise ValueError("a secret needs either env or file")
        return self


class PriceConfig(Section):
    """Prices, for estimates of jobs and for the report of what they took (`harvested`)."""

    prompt_per_million: float = Field(ge=0.0, description="Price of a million prompt tokens.")
    output_per_million: float = Field(ge=0.0, description="Price of a million output tokens.")
    per_gpu_hour: float | None = Field(
        default=None, ge=0.0, description="Price of a GPU for an hour, for the report of what was harvested. None: by the token prices."
    )
    currency: str = Field(default="USD", min_length=1, max_length=8)
