"""Environment variables of clients, with their defaults: server URL, API key and state folder; and what their values may be."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8000"


def default_state_dir() -> Path:
    """``HARVESTER_STATE``, else the user's state folder (``$XDG_STATE_HOME/harvester``)."""
    given = os.environ.get("HARVESTER_STATE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "harvester"


def default_api_key() -> str | None:
    """``HARVESTER_API_KEY``: the key for the server that commands talk to; None if unset."""
    return os.environ.get("HARVESTER_API_KEY") or None


def default_url() -> str:
    return (os.environ.get("HARVESTER_URL") or DEFAULT_URL).rstrip("/")


def is_key(key: str) -> bool:
    """Whether it can be an API key: an HTTP header takes it as it is."""
    return key.isascii() and key.isprintable()


def is_here(url: str) -> bool:
    """Whether ``url`` is one of this machine, by a loopback address. No proxy of the environment leads there."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
