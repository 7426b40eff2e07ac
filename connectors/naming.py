"""The name a person calls a source by, made from its path or table."""

from __future__ import annotations

import re
import unicodedata

MAX_LETTERS = 32


def source_name(*candidates: str) -> str:
    """The first candidate that holds a letter or digit, as lower-case letters, digits and ``-``, at most 32 of them.

    ``table`` where no candidate holds any.
    """
    for candidate in candidates:
        plain = unicodedata.normalize("NFKD", candidate).encode("ascii", "ignore").decode().lower()
        name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_LETTERS].rstrip("-")
        if name:
            return name
    return "table"
