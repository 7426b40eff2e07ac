"""Calls from the other applications to the replicas of the chat application."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException

from harvester.errors import NoReplicaError
from harvester.serve.deployments.seam import answers

CHAT_APP = "chat"  # of the first model
FURTHER = "model-"  # before the name of a further one
ANSWER_WAIT_S = 20.0
EACH_WAIT_S = 3.0  # for each replica when all are asked: a machine without power is silent until Ray notices


def chat_app_of(model: str | None) -> str:
    """The application that answers chat with a further model; None: with the first."""
    return CHAT_APP if model is None else f"{FURTHER}{model}"


class Replicas:
    """Calls to replicas of the first model and of ``further`` ones. Serve picks the replica that answers.

    `info` and `profile` raise `NoReplicaError` if there is none, or if it dies meanwhile.
    """

    def __init__(self, further: Collection[str] = ()) -> None:
        self._further = tuple(further)
        self._handles: dict[str | None, Any] = {}

    async def info(self) -> dict[str, Any]:
        """`Replica.info` of the first model."""
        return dict(await self._ask("info", wait_s=ANSWER_WAIT_S))

    async def answered(self, model: str | None) -> None:
        """Return once a replica of ``model`` answers, however long that takes. Serve starts one for it where there is none."""
        await self._chat(model).info.remote()

    async def further(self, names: Collection[str]) -> list[dict[str, Any]]:
        """`info` of every replica of the further models ``names`` that answers, with its model as ``model``. Loads none that sleeps."""
        told = await asyncio.gather(*(self._each_of(name, "info") for name in names), return_exceptions=True)
        return [one for of_model in told if not isinstance(of_model, BaseException) for one in of_model]

    async def profile(self, seconds: float | None) -> dict[str, Any]:
        await self.info()  # raises where there is no replica; the measurement itself may take any time
        return dict(await self._ask("profile", seconds))

    async def now(self) -> list[dict[str, Any]]:
        """`Replica.now` of every replica that answers; one that is dying is left out. Raises `NoReplicaError` if none answers."""
        return await self._each("now")

    async def metrics(self) -> list[dict[str, Any]]:
        """Of every replica that answers: its rank as ``replica``, ``id``, and `/metrics` as ``text``. Raises `NoReplicaError`."""
        return await self._each("metrics")

    async def _each(self, method: str) -> list[dict[str, Any]]:
        told = await asyncio.gather(*(self._each_of(name, method) for name in (None, *self._further)), return_exceptions=True)
        found = [one for of_model in told if not isinstance(of_model, BaseException) for one in of_model]
        others = [one for one in told if isinstance(one, BaseException) and not isinstance(one, RayActorError | RayServeException)]
        if not found and others:  # of several models one that answers is enough
            raise others[0]
        if not found:
            raise NoReplicaError("no replica answers; it may be restarting: try again in a moment")
        return found

    async def _each_of(self, model: str | None, method: str) -> list[dict[str, Any]]:
        told = await answers(self._chat(model).broadcast(method), EACH_WAIT_S)
        named = {} if model is None else {"model": model}
        return [{**one, **named} for one in told if not isinstance(one, BaseException)]

    def _chat(self, model: str | None = None) -> Any:
        if model not in self._handles:
            self._handles[model] = serve.get_app_handle(chat_app_of(model))
        return self._handles[model]

    async def _ask(self, method: str, *given: Any, wait_s: float | None = None) -> Any:
        try:
            async with asyncio.timeout(wait_s):
                return await getattr(self._chat(), method).remote(*given)
        except TimeoutError as error:
            if wait_s is None:  # a timeout of the replica itself
                raise
            raise NoReplicaError(f"no replica answered within {wait_s:g} s; it may be starting: try again in a moment") from error
        except (RayActorError, RayServeException) as error:
            raise NoReplicaError("no replica answers; it may be restarting: try again in a moment") from error
