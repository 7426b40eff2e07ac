"""What a user says of text files that the files do not say themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextForm:
    """``encoding``: Python's name of it; None: told by the file. ``ragged``: rows of CSV may be shorter or longer than the header."""

    encoding: str | None = None
    ragged: bool = False
