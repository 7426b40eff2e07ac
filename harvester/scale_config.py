"""How many replicas a server has: a number, or a range within which chat decides."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from jobs.config import Section


class ReplicasConfig(Section):
    """`replicas: 2` is two of them; `replicas: {min: 1, max: 4}` as many as open chats need. Batch work never asks for one."""

    min: int = Field(default=1, ge=1, description="Minimum number of replicas.")
    max: int = Field(default=1, ge=1, description="Maximum number of replicas.")
    target: float = Field(default=16.0, gt=0.0, description="Open chats of one replica; more of them on average ask for another.")
    up_s: float = Field(default=10.0, ge=0.0, description="Seconds for which chats must be too many before a replica is added.")
    down_s: float = Field(default=300.0, ge=0.0, description="Seconds for which they must be few enough before one is taken away.")

    @model_validator(mode="before")
    @classmethod
    def _of_number(cls, given: Any) -> Any:
        return {"min": given, "max": given} if isinstance(given, int) else given

    @model_validator(mode="after")
    def _check(self) -> ReplicasConfig:
        if self.max < self.min:
            raise ValueError(f"replicas.max={self.max} must be at least replicas.min={self.min}")
        return self

    @property
    def is_fixed(self) -> bool:
        return self.min == self.max
