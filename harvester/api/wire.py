"""HTTP transports, blocking and async. Both execute the steps of `harvester.api.flow`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import httpx

from harvester.api.errors import HarvesterError, RefusedError, UnreachableError, error_of
from harvester.api.flow import Ask, Flow, HttpAnswer, Pause, Step, T, Work, drive, drive_async
from harvester.client_environment import DEFAULT_URL, default_api_key, default_url, is_here, is_key

CONNECT_S = 3.0
ANSWER_S = 60.0
# The server runs the source's query, an hour until a database gives rows, and stores them before the job exists.
SUBMIT_S = 7200.0


class Address:
    """A server and the key for it. ``url`` None: HARVESTER_URL, else this machine's port 8000; ``api_key`` None: HARVESTER_API_KEY.

    Raises `RefusedError` for what is no URL, or can be no key.
    """

    def __init__(self, url: str | None, api_key: str | None) -> None:
        self.url = url.rstrip("/") if url else default_url()
        self._key = api_key or default_api_key()
        if not self.url.startswith(("http://", "https://")):
            raise RefusedError(f"{self.url!r} is not a URL; use one like {DEFAULT_URL}", "usage")
        if self._key is not None and not is_key(self._key):
            named = "api_key" if api_key else "HARVESTER_API_KEY"
            raise RefusedError(f"{named} contains characters that no API key has; give one of the server's API keys", "usage")

    def options(self) -> dict[str, Any]:
        """Arguments for `httpx.Client` and `httpx.AsyncClient`."""
        return {
            "base_url": self.url,
            "headers": {"authorization": f"Bearer {self._key}"} if self._key else {},
            "timeout": httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            "trust_env": not is_here(self.url),  # no proxy of the environment for a server on this machine
        }

    @contextmanager
    def reached(self) -> Iterator[Callable[[], float]]:
        """Raise `UnreachableError` in place of httpx's transport and decoding errors. Yields what tells the seconds since the beginning."""
        began_s = monotonic()
        try:
            yield lambda: monotonic() - began_s
        except httpx.TransportError as error:
            is_unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            what = "no server answers" if is_unsent else "lost the connection to the server"
            do = "start one with: harvester serve" if is_unsent else "check that it runs"
            told = f"{what} at {self.url} ({error or type(error).__name__}); {do}"
            raise UnreachableError(told, is_unsent=is_unsent, took_s=monotonic() - began_s) from error
        except httpx.DecodingError as error:
            told = f"the answer from {self.url} came damaged ({error}); check the proxies in between"
            raise UnreachableError(told, took_s=monotonic() - began_s) from error


class Wire:
    """Blocking transport. Several threads may use it at once."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._http = httpx.Client(**address.options())

    def close(self) -> None:
        self._http.close()

    def run(self, flow: Flow[T]) -> T:
        return drive(flow, self._do)

    @contextmanager
    def stream(self, path: str, params: dict[str, Any]) -> Iterator[Iterator[bytes]]:
        """The body of a GET answer, streamed. Raises `UnreachableError`, also if the body breaks off.

        Asks for an answer that is not compressed. One that a proxy has compressed all the same is read too.
        """
        headers = {"accept-encoding": "identity"}
        with self.address.reached(), self._http.stream("GET", path, params=params, headers=headers) as answer:
            if answer.status_code >= 400:
                answer.read()
                raise error_of(answer.status_code, _answer(answer).body)
            yield answer.iter_bytes(1 << 20)

    def _do(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return sleep(step.seconds)
        if isinstance(step, Work):
            return step.call()
        with self.address.reached() as took_s:
            return _answer(self._http.request(step.method, step.path, **_timed(step)), took_s())


class AsyncWire:
    """Async transport. Arrow streams are read through `blocking`, in threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.blocking = Wire(address)
        self._http = httpx.AsyncClient(**address.options())

    async def close(self) -> None:
        self.blocking.close()
        await self._http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._do)

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Work):
            return await asyncio.to_thread(step.call)
        with self.address.reached() as took_s:
            return _answer(await self._http.request(step.method, step.path, **_timed(step)), took_s())


def _timed(step: Ask) -> dict[str, Any]:
    """The step's options, with ``timeout_s`` converted to httpx's ``timeout``."""
    options = dict(step.options)
    if "timeout_s" in options:
        options["timeout"] = httpx.Timeout(options.pop("timeout_s"), connect=CONNECT_S)
    return options


def _answer(answer: httpx.Response, took_s: float = 0.0) -> HttpAnswer:
    try:
        body = answer.json()
    except ValueError as error:
        told = f"{answer.url} answered {answer.status_code} with what is not JSON: {answer.text[:200]!r}"
        if answer.status_code < 400:
            raise HarvesterError(f"{told}; check that it is a harvester server") from error
        body = {"message": told}
    return HttpAnswer(answer.status_code, body, retry_after_s(answer), took_s)


def retry_after_s(answer: httpx.Response) -> float | None:
    """Seconds of the answer's ``Retry-After``; None where it has none."""
    told = answer.headers.get("retry-after", "")
    return float(told) if told.isdecimal() else None
