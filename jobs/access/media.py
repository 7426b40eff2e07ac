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
_HOLDERS = _FIELDS | {"source"}
_INNER = (dict, list)
_INNER_SET = frozenset(_INNER)
_LISTS = frozenset({"images"})  # of addresses
_NAMES = _HOLDERS | _LISTS
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
            if not _HOLDERS.isdisjoint(one):
                yield from _held(one)
            left += [(field, inner) for field, inner in one.items() if isinstance(inner, _INNER) or field in _LISTS]
        elif isinstance(one, list) and (name in _LISTS or not _INNER_SET.isdisjoint(map(type, one))):  # a prompt may have a million numbers
            left += [(name, item) for item in one if name in _LISTS or (isinstance(item, _INNER) and not _is_plain(item))]
        elif isinstance(one, str) and name in _LISTS and one:
            yield name, one


def _is_plain(item: dict[str, Any] | list[Any]) -> bool:
    """Whether it is an object without any address, further object or list. A body may hold hundreds of thousands."""
    return isinstance(item, dict) and _NAMES.isdisjoint(item) and _INNER_SET.isdisjoint(map(type, item.values()))


def _held(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The addresses in the fields of one object."""
    for field in _HOLDERS & part.keys():
        inner = part[field]
        address = inner.get("url") if isinstance(inner, dict) else inner if field in _FIELDS else None
        if isinstance(address, str) and address:
            yield "source.url" if field == "source" else field, address


def _host(address: str) -> str | None:
    """Of a plain http or https address; None for any other."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    is_plain = parts.scheme in ("http", "https") and not _ODD.search(address) and "@" not in parts.netloc and port != 0
    return host if is_plain else None
