"""Folders that queries spill to: named by their owner, and removed once it is gone."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "harvester-sql-"


def make_scratch(owner: str) -> Path:
    """A folder among temporary files, whose name has ``owner`` in it."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner}-"))


def is_scratch(path: Path) -> bool:
    """Whether a folder of `make_scratch` is still there, and not another user's or a link in its place."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def forget_scratch(owner: str) -> None:
    """Remove the folders of ``owner``, whose processes are all dead. A process that a server has killed removes nothing itself."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{owner}-*"):
        with suppress(FileNotFoundError):  # gone meanwhile
            if path.lstat().st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)
