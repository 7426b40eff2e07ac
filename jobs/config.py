"""The sections of a deployment's configuration that jobs read. `harvester.config` composes the whole tree."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Values of one key of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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


class BatchConfig(Section):
    """Limits of `/v1/files` and `/v1/batches`. None: no limit."""

    max_lines: int | None = Field(default=None, ge=1, description="Most requests of one batch; OpenAI's is 50,000.")
    max_file_bytes: int | None = Field(default=None, ge=1, description="Largest upload; OpenAI's is 200,000,000.")
    max_line_bytes: int = Field(default=64 << 20, ge=1024, description="Longest line of an input file: what is held in memory at once.")


class DeadlineConfig(Section):
    """What a job that would miss its deadline gets beyond its weight."""

    max_boost: float = Field(default=8.0, ge=1.0, le=1000.0, description="Most times its weight, among jobs. 1 raises none.")
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
