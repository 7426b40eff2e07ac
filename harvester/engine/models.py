"""Which model a run uses: the user's, checked before anything is started, or the embedded one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harvester.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelChoice:
    path: str  # what vLLM loads
    name: str  # what clients call it
    note: str | None  # what a user should know about it
    embedded: bool


def choose_model(model: str | None, served_name: str | None, models_dir: Path) -> ModelChoice:
    """Resolve ``ServeConfig.model``. Raises `ConfigError` for a folder without a model or an id the hub does not have."""
    if model is None:
        from harvester.engine.embedded import EMBEDDED_NOTE, embedded_model

        path = embedded_model(models_dir)
        return ModelChoice(str(path), served_name or path.name, EMBEDDED_NOTE, embedded=True)
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model folder {folder} has no config.json; give a Hugging Face model folder or id")
        return ModelChoice(str(folder.absolute()), served_name or folder.name, None, embedded=False)
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(f"model folder {model} does not exist; give a Hugging Face model folder or id, such as Qwen/Qwen3-8B")
    _check_hub(model)
    return ModelChoice(model, served_name or model, None, embedded=False)


def _check_hub(model: str) -> None:
    """Find the model's config.json in the cache or on the hub."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        hf_hub_download(model, "config.json", etag_timeout=5)
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise ConfigError(f"model {model} is not on the Hugging Face hub; check the name, or give a folder") from error
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"model {model} is not in the local cache and the Hugging Face hub cannot be reached; download it first, or give a folder"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ConfigError(f"model {model} cannot be read from the Hugging Face hub: {str(error).splitlines()[0]}") from error
