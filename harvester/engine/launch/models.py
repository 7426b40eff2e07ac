"""Which model a run uses: the user's, checked before anything is started, or the embedded one."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from connectors.processes.pickled import across_versions
from harvester.config import ServeConfig
from harvester.engine.embedded import EMBEDDED_NAME, EMBEDDED_NOTE, embedded_model
from harvester.engine.launch.adapters import placed
from harvester.errors import ConfigError, EngineError

HUB_WAIT_S = 10.0


@across_versions
@dataclass(frozen=True, slots=True)
class ModelChoice:
    path: str  # what vLLM loads
    name: str  # what clients call it
    note: str | None  # what a user should know about it
    embedded: bool


def choose_model(model: str | None, served_name: str | None, *, elsewhere: bool = False) -> ModelChoice:
    """Resolve ``ServeConfig.model``. Raises `ConfigError` for a folder without a model or an id the hub does not have.

    ``elsewhere``: other machines load the model and check it (`on_this_machine`); here it need not exist. Raises `EngineError` where the
    hub cannot be reached.
    """
    if model is None:
        return ModelChoice(str(embedded_model()), served_name or EMBEDDED_NAME, EMBEDDED_NOTE, embedded=True)
    folder = Path(os.path.expanduser(model))  # noqa: PTH111 - the home of an unknown user stays as it is written
    is_folder = model.startswith((".", "/", "~")) or model.count("/") > 1
    if elsewhere:
        path = str(folder.absolute()) if is_folder or folder.is_dir() else model
        return ModelChoice(path, served_name or (folder.name if path != model or is_folder else model), None, embedded=False)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model folder {folder} has no config.json; give a Hugging Face model folder or id")
        return ModelChoice(str(folder.absolute()), served_name or folder.name, None, embedded=False)
    if is_folder:
        raise ConfigError(f"model folder {model} does not exist; give a Hugging Face model folder or id, such as Qwen/Qwen3-8B")
    _check_hub(model)
    return ModelChoice(model, served_name or model, None, embedded=False)


def settled(config: ServeConfig, first: str) -> tuple[ServeConfig, dict[str, ModelChoice]]:
    """The configuration with its adapters' folders absolute, and its further models by name. ``first``: the name of the first model.

    Raises `ConfigError` as `choose_model` and `placed` do.
    """
    elsewhere = config.address is not None
    if first in config.models:
        raise ConfigError(f"models: {first} is the name of the first model; give it another, or set served_model_name")
    further = {name: choose_model(one.model, name, elsewhere=elsewhere) for name, one in config.models.items()}
    models = {
        name: one.model_copy(update={"adapters": placed(one.adapters, name, elsewhere=elsewhere)}) for name, one in config.models.items()
    }
    adapters = placed(config.adapters, first, elsewhere=elsewhere)
    return config.model_copy(update={"adapters": adapters, "models": models}), further


def on_this_machine(choice: ModelChoice) -> ModelChoice:
    """The model, checked on the machine that is to load it. Raises `ConfigError`, with the machine's name, if it is not there, and
    `EngineError` likewise where the hub cannot be reached.
    """
    if choice.embedded:
        return replace(choice, path=str(embedded_model()))
    try:
        choose_model(choice.path, choice.name)
    except (ConfigError, EngineError) as error:
        raise type(error)(f"on {socket.gethostname()}: {error.message}") from error
    return choice


def _check_hub(model: str) -> None:
    """Find the model's config.json in the local cache, or ask the hub for it once: vLLM itself would try for minutes.

    Raises `ConfigError` for an id that the hub does not have, `EngineError` if it cannot be reached: another try may help then.
    """
    from huggingface_hub import constants, get_token, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    token = get_token()
    url = f"{constants.ENDPOINT}/{model}/resolve/main/config.json"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.head(url, headers=headers, timeout=HUB_WAIT_S, follow_redirects=True)
    except httpx.HTTPError as error:
        raise EngineError(
            f"model {model} is not in the local cache and the Hugging Face hub cannot be reached; download it first, or give a folder"
        ) from error
    if answer.status_code in (401, 403, 404):
        raise ConfigError(f"model {model} is not on the Hugging Face hub, or needs HF_TOKEN; check the name, or give a folder")
