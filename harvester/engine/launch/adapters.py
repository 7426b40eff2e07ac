"""LoRA adapters: the arguments that vLLM serves them with, and what is wrong with one before an engine is started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harvester.errors import ConfigError

MAX_TOGETHER = 8  # adapters in one step: each keeps its weights on the device
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


def adapter_arguments(adapters: Mapping[str, str]) -> dict[str, Any]:
    """vLLM's arguments for ``adapters``: folder or Hugging Face id by name. No adapters: no arguments.

    The maximum rank is the largest that a folder needs; vLLM's own if all are from the hub. Raises `ConfigError` as `placed` does.
    """
    if not adapters:
        return {}
    found = {"enable_lora": True, "max_loras": min(len(adapters), MAX_TOGETHER)}
    modules = [{"name": name, "path": str(_folder(path) or path)} for name, path in adapters.items()]
    ranks = [rank for rank in _ranks(adapters).values() if rank]
    return found | {"lora_modules": modules} | ({"max_lora_rank": _room(max(ranks))} if ranks else {})


def placed(adapters: Mapping[str, str], model: str, *, elsewhere: bool = False) -> dict[str, str]:
    """The adapters with absolute folders, for a replica, which runs in another folder. ``model``: the name that clients use.

    ``elsewhere``: other machines load and check them. Raises `ConfigError` for a folder that is not there or holds no adapter that can be
    served, and for an adapter that has the model's name.
    """
    if model in adapters:
        raise ConfigError(f"adapter {model} has the name of the model; give it another, or set served_model_name")
    if not elsewhere:
        _ranks(adapters)
    return {name: str(_folder(path) or path) for name, path in adapters.items()}


def _ranks(adapters: Mapping[str, str]) -> dict[str, int]:
    """Rank of each adapter by name; 0 for one from the hub."""
    return {name: 0 if (folder := _folder(path)) is None else _rank(name, folder) for name, path in adapters.items()}


def _folder(path: str) -> Path | None:
    """The adapter's folder; None for an id of the Hugging Face hub."""
    folder = Path(os.path.expanduser(path))  # noqa: PTH111 - the home of an unknown user stays as it is written
    is_folder = path.startswith((".", "/", "~")) or path.count("/") != 1 or folder.is_dir()
    return folder.absolute() if is_folder else None


def _rank(name: str, folder: Path) -> int:
    file = folder / "adapter_config.json"
    try:
        rank = json.loads(file.read_text(encoding="utf-8"))["r"]
    except OSError as error:
        raise ConfigError(
            f"adapter {name}: {file} cannot be read: {error.strerror}; give the folder of a LoRA adapter, or a Hugging Face id"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"adapter {name}: {file} says no rank `r`; give the folder of a LoRA adapter in PEFT's format") from error
    if not isinstance(rank, int) or not 1 <= rank <= RANKS[-1]:
        raise ConfigError(f"adapter {name} has rank {str(rank)[:40]}; vLLM serves ranks from 1 to {RANKS[-1]}")
    return rank


def _room(rank: int) -> int:
    return next(room for room in RANKS if room >= rank)
