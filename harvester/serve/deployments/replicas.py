"""Calls from the other applications to the replicas of the chat application."""

from __future__ import annotations

import asyncio
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException

from harvester.errors import NoReplicaError

CHAT_APP = "chat"
ANSWER_WAIT_S = 20.0


class Replicas:
    """Serve picks the replica that answers. `info` and `profile` raise `NoReplicaError` if there is none, or if it dies meanwhile."""

    def __init__(self) -> None:
        self._handle: Any = None

    async def info(self) -> dict[str, Any]:
        return dict(await self._ask("info", wait_s=ANSWER_WAIT_S))

    async def profile(self, seconds: float | None) -> dict[str, Any]:
        await self.info()  # a measurement takes its time, but only where somebody measures
        return dict(await self._ask("profile", seconds))

    async def now(self) -> list[dict[str, Any]]:
        """Of every replica that answers. Raises `NoReplicaError` if none does; one that is dying is left out."""
        return await self._each("now")

    async def metrics(self) -> list[dict[str, Any]]:
        """Of every replica that answers its rank as ``replica``, its ``id``, and its `/metrics` as ``text``. Raises `NoReplicaError`."""
        return await self._each("metrics")

    async def _each(self, method: str) -> list[dict[str, Any]]:
        told = await self._chat().broadcast(method).results_async(return_exceptions=True)
        found = [dict(one) for one in told if not isinstance(one, BaseException)]
        if not found:
            raise NoReplicaError("no replica answers; it may be restarting: try again in a moment")
        return found

    def _chat(self) -> Any:
        if self._handle is None:
            self._handle = serve.get_app_handle(CHAT_APP)
        return self._handle

    async def _ask(self, method: str, *given: Any, wait_s: float | None = None) -> Any:
        try:
            async with asyncio.timeout(wait_s):
                return await getattr(self._chat(), method).remote(*given)
        except TimeoutError as error:
            if wait_s is None:  # the replica's own
                raise
            raise NoReplicaError(f"no replica answered within {wait_s:g} s; it may be starting: try again in a moment") from error
        except (RayActorError, RayServeException) as error:
            raise NoReplicaError("no replica answers; it may be restarting: try again in a moment") from error
