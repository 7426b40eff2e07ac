"""The embedded model: a small Llama that the package ships, so that everything runs with no download and no GPU."""

from harvester.engine.embedded.folder import EMBEDDED_NAME, EMBEDDED_NOTE, embedded_model

__all__ = ["EMBEDDED_NAME", "EMBEDDED_NOTE", "embedded_model"]
