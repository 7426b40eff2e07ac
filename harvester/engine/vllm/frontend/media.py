"""Media that vLLM reads, fetched only from allowed hosts and never by a redirect; and prompts of job rows with images.

Images of a row are read by vLLM's image reader, then their prompt is made by its renderer, as for a chat.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import aiohttp
from vllm.connections import HTTPConnection
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector
from vllm.multimodal.media.image import ImageMediaIO
from vllm.renderers.params import ChatParams, TokenizeParams
from vllm.utils.mistral import is_mistral_tokenizer

from connectors.paths.rules import SourceRules
from connectors.paths.web import checked_connector
from jobs.access.images import BAD_IMAGE
from jobs.engine import Message, RowError

if TYPE_CHECKING:
    from harvester.engine.vllm.frontend.client import HarvestLLM

NAME = "http"  # vLLM's usual connector
FETCH_S = 10  # most time for one image
COUNTED = 1024  # rows' images whose token counts are remembered


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


class BoundedImage(ImageMediaIO):
    """Reads at most ``most_bytes`` from an address; None: as many as vLLM reads."""

    def __init__(self, most_bytes: int | None) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def get_max_bytes(self) -> int | None:
        return self._most_bytes


class Images:
    """Prompts with images, for one engine, after `fetch_checked`. Used from one event loop; decoding is in vLLM's threads.

    ``chat_template``: the user's; None: the model's. ``max_bytes``: the limit for an image that is fetched.
    """

    def __init__(self, llm: HarvestLLM, chat_template: str | None, max_bytes: int | None) -> None:
        self._llm = llm
        self._chat_template = chat_template
        self._reader = BoundedImage(max_bytes)
        self._counts: OrderedDict[bytes, int] = OrderedDict()  # tokens by the digest of a row's images

    async def prompt(self, messages: Sequence[Message], images: Sequence[str], template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What `HarvestLLM.complete` takes as ``rendered``: tokens, and the images as the model's processor made them.

        The user's first message shows ``images``, data: URLs or addresses at allowed hosts, before its text. The result must be sent to the
        engine: vLLM assumes that what it rendered once is known there. Raises `RowError`: ``bad_image``, or ``refused`` for the rest.
        """
        return await self._rendered(messages, images, template_kwargs, is_sent=True)

    async def count(self, images: Sequence[str], template_kwargs: Mapping[str, Any]) -> int:
        """Tokens that ``images`` take in a prompt, and those of an empty conversation around them. Raises what `prompt` raises."""
        digest = hashlib.blake2b("\n".join(images).encode(), digest_size=16).digest()
        if digest not in self._counts:
            found = await self._rendered(({"role": "user", "content": ""},), images, template_kwargs, is_sent=False)
            self._counts[digest] = len(found["prompt_token_ids"])
            while len(self._counts) > COUNTED:
                self._counts.popitem(last=False)
        return self._counts[digest]

    async def _rendered(
        self, messages: Sequence[Message], images: Sequence[str], template_kwargs: Mapping[str, Any], *, is_sent: bool
    ) -> dict[str, Any]:
        loaded = await asyncio.gather(*map(self._loaded, images))
        is_whole = is_mistral_tokenizer(self._llm.get_tokenizer())  # whose renderer tokenizes at once
        about = {**template_kwargs, "add_generation_prompt": True, "tokenize": is_whole}
        params = ChatParams(chat_template=self._chat_template, chat_template_kwargs=about)
        tokens = TokenizeParams(max_total_tokens=self._llm.sizes.context_tokens, add_special_tokens=False)
        asked: Any = showing(messages, loaded)
        try:
            _, found = await self._llm.renderer.render_chat_async([asked], params, tokens, skip_mm_cache=not is_sent)
        except Exception as error:  # the prompt is too long, the template takes no such conversation, the processor no such image
            raise RowError("refused", " ".join(str(error).split())[:500] or type(error).__name__) from error
        return dict(found[0])

    async def _loaded(self, address: str) -> Any:
        """The image as vLLM's own chat route would load it."""
        connector = MEDIA_CONNECTOR_REGISTRY.load(NAME, allowed_media_domains=self._llm.model_config.allowed_media_domains)
        try:
            return await connector.load_from_url_async(address, self._reader, fetch_timeout=FETCH_S)
        except Exception as error:  # decoders raise whatever a damaged file makes them raise
            told = " ".join(str(error).split())[:300] or type(error).__name__
            raise RowError(BAD_IMAGE, f"the image cannot be read: {told}; put a whole one in its place") from error


def showing(messages: Sequence[Message], images: Sequence[Any]) -> list[dict[str, Any]]:
    """The conversation, with ``images`` before the text of the user's first message."""
    shown: list[dict[str, Any]] = [dict(message) for message in messages]
    first = next(message for message in shown if message["role"] == "user")
    text = [{"type": "text", "text": first["content"]}] if first["content"] else []
    first["content"] = [*({"type": "image_pil", "image_pil": image} for image in images), *text]
    return shown


def max_images(llm: HarvestLLM) -> int:
    """Images that a prompt may have, by the model and ``limit_mm_per_prompt``; 0 where it takes none."""
    processor = llm.renderer.mm_processor if llm.model_config.is_multimodal_model else None
    return 0 if processor is None else int(processor.info.allowed_mm_limits.get("image", 0))
