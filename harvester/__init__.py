"""harvester: batch LLM jobs over tables, on the replicas that answer chat."""

from harvester.core import __version__

__all__ = ["__version__"]
