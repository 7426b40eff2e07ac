"""Where commands and programs find a server, and what they show it: the environment's variables and their defaults."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8000"


def default_state_dir() -> Path:
    """``HARVESTER_STATE``, else the user's state folder (``$XDG_STATE_HOME/harvester``)."""
    given = os.environ.get("HARVESTER_STATE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "harvester"


def default_api_key() -> str | None:
    """Of the server that commands talk to; None where it asks for none."""
    return os.environ.get("HARVESTER_API_KEY") or None


def default_url() -> str:
    return (os.environ.get("HARVESTER_URL") or DEFAULT_URL).rstrip("/")
