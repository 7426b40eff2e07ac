"""What the user tells about text files, because the files do not: encoding and ragged rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextForm:
    """``encoding``: Python's name of it; None: detected from the file. ``ragged``: rows of CSV may be shorter or longer than the header."""

    encoding: str | None = None
    ragged: bool = False
