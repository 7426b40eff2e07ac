"""Images, audio and video that a request to the model names by an address: fetched from listed hosts, else refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from connectors.credentials import masked
from jobs.errors import ParameterError

# Fields of content parts in chat, responses, messages and embeddings that hold an address, or an object with `url`.
_FIELDS = frozenset({"image_url", "audio_url", "video_url", "file_url"})
_LISTS = frozenset({"images"})  # of addresses
_NOT_CONTENT = frozenset({"tools", "response_format", "structured_outputs", "text", "output_config", "output_format", "metadata"})
_ODD = re.compile(r"[\\\x00-\x20\x7f]")  # characters for which two parsers may read two different hosts


def check_media(body: Mapping[str, Any], hosts: Collection[str]) -> None:
    """Raise `ParameterError` for an address in ``body`` that is neither ``data:`` nor http(s) at one of ``hosts``."""
    for param in body:
        if param in _NOT_CONTENT:
            continue
        for field, address in _addresses(param, body[param]):
            if address[:5].lower() != "data:" and not is_fetched(address, hosts):
                raise ParameterError(
                    f"{field} names {masked(address)[:120]!r}, which this server does not fetch; send the content as a data: URL, "
                    "or have its host listed under engine.allowed_media_domains in the server's config",
                    param,
                )


def is_fetched(address: str, hosts: Collection[str]) -> bool:
    """Whether ``address`` is http(s) at one of ``hosts``."""
    return _host(address) in hosts


def _addresses(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Fields and their addresses, however deep."""
    left = [(name, value)]
    while left:
        name, one = left.pop()
        if isinstance(one, dict):
            for field, inner in one.items():
                is_holder = isinstance(inner, dict)
                if field in _FIELDS or (is_holder and field == "source"):
                    address = inner.get("url") if is_holder else inner
                    if isinstance(address, str) and address:
                        yield "source.url" if field == "source" else field, address
                if is_holder or isinstance(inner, list) or field in _LISTS:
                    left.append((field, inner))
        elif isinstance(one, list):
            kinds = (list, dict, str) if name in _LISTS else (list, dict)  # a prompt may have a million token ids
            left += [(name, item) for item in one if isinstance(item, kinds)]
        elif isinstance(one, str) and name in _LISTS and one:
            yield name, one


def _host(address: str) -> str | None:
    """Of a plain http or https address; None for any other."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    is_plain = parts.scheme in ("http", "https") and not _ODD.search(address) and "@" not in parts.netloc and port != 0
    return host if is_plain else None
