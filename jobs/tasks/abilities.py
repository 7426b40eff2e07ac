"""What a served model can, and the checks of a task against it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ConfigDict, Field

from connectors.errors import UsageError
from jobs.errors import TaskError, did_you_mean
from jobs.frozen import Frozen
from jobs.tasks.embedding import Gives
from jobs.tasks.spec import Task
from jobs.tasks.thinking import ModelThinking


class Abilities(Frozen):
    """Told by a replica; part of ``GET /api/server``. None: nobody asked it."""

    model_config = ConfigDict(extra="ignore")

    context_tokens: int | None = Field(default=None, description="Most tokens of prompt and answer together.")
    thinking: ModelThinking | None = None
    gives: tuple[Gives, ...] | None = Field(default=None, description="What it makes of a prompt.")
    max_images: int | None = Field(default=None, description="Of one prompt; 0: it takes none.")
    adapters: tuple[str, ...] | None = Field(default=None, description="Names of the LoRA adapters that it is served with.")


UNKNOWN = Abilities()


def check_served(model: str, served: Collection[str]) -> None:
    """Raises `UsageError` where ``model`` is not one of the server's models, ``served``."""
    if model not in served:
        raise UsageError(f"this server runs {', '.join(served)}, not {model}; remove --model, or serve {model}")


def abilities_of(info: Mapping[str, Any], model: str | None) -> Abilities | None:
    """Abilities of a job's model, from the answer of ``GET /api/server``; None where no replica of a further model has reported yet."""
    further = info.get("models") or {}
    if model is None or model not in further:
        return Abilities.model_validate(dict(info))  # of the first model; the planner refuses an unknown name
    return None if further[model] is None else Abilities.model_validate(further[model])


def check_images(task: Task, model: str, max_images: int | None) -> None:
    """Raises `TaskError` where ``model`` does not take the task's images. ``max_images``: of one prompt; None where nobody asked it."""
    wanted = len(task.images)
    if not wanted or max_images is None or wanted <= max_images:
        return
    if max_images == 0:
        raise TaskError(
            f"{model} takes no images, so task {task.name} cannot show it column {task.images[0]}; serve a vision-language model, "
            "or leave --image out"
        )
    raise TaskError(
        f"{model} takes {max_images} images in one prompt, and task {task.name} shows {wanted}; name fewer columns with --image, "
        "or raise engine.limit_mm_per_prompt in the server's config"
    )


def check_adapter(task: Task, model: str, adapters: Collection[str] | None) -> None:
    """Raises `TaskError` where ``model`` is not served with the task's adapter. ``adapters``: None where nobody asked the server."""
    if task.adapter is None or adapters is None or task.adapter in adapters:
        return
    if not adapters:
        raise TaskError(
            f"{model} is served without adapters, so task {task.name} cannot run on {task.adapter[:80]}; name it under adapters in the "
            "server's config, or leave --adapter out"
        )
    raise TaskError(f"{model} has no adapter {task.adapter[:80]!r}{did_you_mean(task.adapter[:80], sorted(adapters), 'its adapters')}")
