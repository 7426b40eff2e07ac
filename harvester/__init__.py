"""harvester: batch LLM jobs over tables, on the replicas that answer chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harvester import own
from harvester.core import __version__

if own.is_ours():  # a process that harvester started, such as a worker of Ray; never one of the user's
    own.claim()

if TYPE_CHECKING:
    from harvester.api.client import AsyncHarvester, Harvester

__all__ = ["__version__", "connect", "connect_async"]


def connect(url: str | None = None, *, api_key: str | None = None) -> Harvester:
    """A client of the server at ``url``. Default: HARVESTER_URL, else http://127.0.0.1:8000; the key: HARVESTER_API_KEY.

    Raises `harvester.api.errors.UnreachableError` where no server answers.
    """
    from harvester.api.client import Harvester

    return Harvester(url, api_key=api_key)


async def connect_async(url: str | None = None, *, api_key: str | None = None) -> AsyncHarvester:
    """As `connect`; the client's methods are coroutines."""
    from harvester.api.client import AsyncHarvester

    return await AsyncHarvester(url, api_key=api_key).open()
