"""Answers of ``POST /sql/answers``: files that their clients read in their own time, within an hour."""

from __future__ import annotations

import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from harvester.errors import NotFoundError
from harvester.serve.access.identity import Identity
from jobs.storage.folder import StateFolder

ANSWER_S = 3600.0  # an answer is kept for so long
_ANSWER = re.compile(r"[0-9a-f]{32}")


class Answers:
    """Answer files, in one folder for each key's name."""

    def __init__(self, folder: StateFolder) -> None:
        self._root = folder.answers

    def new(self, who: Identity) -> Path:
        """Path for a new answer. Removes old ones."""
        self.sweep()
        path = self.path(secrets.token_hex(16), who)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def path(self, answer_id: str, who: Identity) -> Path:
        """Path of an answer. Raises `NotFoundError` for an invalid id."""
        if not _ANSWER.fullmatch(answer_id):
            raise NotFoundError(f"there is no answer {answer_id[:80]!r}; ask again")
        return self._root / who.folder / f"{answer_id}.arrow"

    def opened(self, answer_id: str, who: Identity) -> Path:
        """Path of a complete answer. Raises `NotFoundError` if there is none, or it is older than an hour."""
        path = self.path(answer_id, who)
        with suppress(FileNotFoundError):
            if not _is_old(path):
                return path
        raise NotFoundError(f"there is no answer {answer_id}, or no longer: it is kept for an hour; ask again")

    def sweep(self) -> None:
        """Remove answers older than an hour, and what queries that were killed have left. What cannot be read or removed stays."""
        with suppress(OSError):
            for path in self._root.glob("*/*"):
                with suppress(OSError):
                    if _is_old(path):
                        path.unlink()


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > ANSWER_S
