"""What vLLM fetches for a client: from the hosts it was told, never from loopback by another name, never by a redirect."""

from __future__ import annotations

from typing import Any

import aiohttp
from vllm.connections import HTTPConnection
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector

from connectors.paths.rules import SourceRules
from connectors.paths.web import checked_connector

NAME = "http"  # vLLM's usual connector


class CheckedConnection(HTTPConnection):
    """Looks each host up once and connects where ``rules`` permit. Used within one event loop."""

    def __init__(self, rules: SourceRules) -> None:
        super().__init__()
        self._rules = rules
        self._client: aiohttp.ClientSession | None = None

    async def get_async_client(self) -> aiohttp.ClientSession:
        if self._client is None:
            # Without the environment's proxies: what they reach is not known here.
            self._client = aiohttp.ClientSession(connector=checked_connector(self._rules), raise_for_status=_no_redirect)
        return self._client

    async def async_get_bytes(self, url: str, **options: Any) -> bytes:
        """Raises `VLLMValidationError`, which is answered with 400, for all that cannot be fetched."""
        try:
            return await super().async_get_bytes(url, **{**options, "allow_redirects": False})
        except (aiohttp.ClientError, OSError) as error:
            cause = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
            raise VLLMValidationError(f"the media of this request cannot be fetched: {cause}; send it as a data: URL") from error

    def get_bytes(self, url: str, **options: Any) -> bytes:
        raise VLLMValidationError("media is fetched on the event loop alone; send it as a data: URL")


async def _no_redirect(response: aiohttp.ClientResponse) -> None:
    if 300 <= response.status < 400:
        raise VLLMValidationError("the media of this request is elsewhere, and redirects are not followed; give its own address")
    response.raise_for_status()


def fetch_checked(hosts: tuple[str, ...]) -> None:
    """From here on this process fetches media by a `CheckedConnection`. ``hosts``: those that the configuration lists."""
    connection = CheckedConnection(SourceRules(hosts=hosts))

    class CheckedConnector(MediaConnector):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "connection": connection})

    MEDIA_CONNECTOR_REGISTRY.register(NAME)(CheckedConnector)
