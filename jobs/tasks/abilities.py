"""What a served model can, as a job is checked against it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from connectors.errors import UsageError
from jobs.tasks.embedding import Gives
from jobs.tasks.thinking import ModelThinking


class Abilities(BaseModel):
    """Told by a replica; part of ``GET /api/server``. None: nobody asked it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    context_tokens: int | None = Field(default=None, description="Most tokens of prompt and answer together.")
    thinking: ModelThinking | None = None
    gives: tuple[Gives, ...] | None = Field(default=None, description="What it makes of a prompt.")
    max_images: int | None = Field(default=None, description="Of one prompt; 0: it takes none.")
    adapters: tuple[str, ...] | None = Field(default=None, description="Names of the LoRA adapters that it is served with.")


UNKNOWN = Abilities()


def check_served(model: str, served: Collection[str]) -> None:
    """Raises `UsageError` for a model that a server, which runs those, does not run."""
    if model not in served:
        raise UsageError(f"this server runs {', '.join(served)}, not {model}; remove --model, or serve {model}")


def abilities_of(info: Mapping[str, Any], model: str | None) -> Abilities | None:
    """Of a model that a job asks for, by ``GET /api/server``; None where no replica of a further model has told yet."""
    further = info.get("models") or {}
    if model is None or model not in further:
        return Abilities.model_validate(dict(info))  # of the first; the planner refuses a name that there is not
    return None if further[model] is None else Abilities.model_validate(further[model])
