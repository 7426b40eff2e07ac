"""harvester: batch LLM jobs over tables, on the replicas that answer chat."""

from harvester import own
from harvester.core import __version__

if own.is_ours():  # a process that harvester started, such as a worker of Ray; never one of the user's
    own.claim()

__all__ = ["__version__"]
