"""The embedded model: a small Llama that the package makes itself, so that everything runs with no download and no GPU."""

from harvester.engine.embedded.folder import EMBEDDED_NOTE, embedded_model

__all__ = ["EMBEDDED_NOTE", "embedded_model"]
