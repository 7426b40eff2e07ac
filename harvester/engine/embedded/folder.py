"""The folder of the embedded model, as the package ships it."""

from __future__ import annotations

from pathlib import Path

from harvester.errors import ConfigError

EMBEDDED_NAME = "harvester-toy"
EMBEDDED_NOTE = (
    "The embedded model is a toy: it gives back first sentences, labels and fields, and knows nothing. "
    "For a real one: harvester serve --model Qwen/Qwen3-8B"
)

SHIPPED = Path(__file__).parent / "model"


def embedded_model(shipped: Path = SHIPPED) -> Path:
    """Folder of the embedded model, as vLLM and `transformers` load it. Raises `ConfigError` where the installation lacks it."""
    if not (shipped / "model.safetensors").is_file():
        raise ConfigError(f"this installation lacks the embedded model ({shipped}); install harvester again, or give a model with --model")
    return shipped
