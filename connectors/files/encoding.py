"""The encoding of text files: detected by a byte order mark or the place of zero bytes, given by the user, or refused; never guessed."""

from __future__ import annotations

import codecs
import re

from connectors.errors import SourceError

HEAD_BYTES = 1 << 16
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, which it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ASCII_SHARE = 0.6  # of the characters of a text in UTF-16 that must be ASCII to tell it without a mark
_MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
UTF8 = ("utf-8", "utf-8-sig")


def checked_encoding(name: str | None) -> str | None:
    """Python's name of the encoding. Raises `SourceError` for a name that is no text encoding."""
    if name is None:
        return None
    try:
        found = codecs.lookup(name)
        "a".encode(found.name)
    except (LookupError, UnicodeError) as error:
        raise SourceError(f"unknown encoding {name!r}; name one such as utf-8, cp1252, latin-1, utf-16, shift_jis or gb18030") from error
    return "utf-8-sig" if found.name == "utf-8" else found.name


def encoding_of(head: bytes, given: str | None = None) -> str:
    """The encoding by a file's first bytes; by default ``utf-8-sig``, which reads UTF-8 with or without a mark.

    ``given`` overrides the bytes, because the user knows.
    """
    if given is not None:
        return given
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    return _without_mark(head) or "utf-8-sig"


def _without_mark(head: bytes) -> str | None:
    """UTF-16 without a byte order mark: each ASCII character has a zero byte, always on the same side."""
    pairs = len(head) // 2
    if pairs < 2:
        return None
    even, odd = head[0 : 2 * pairs : 2], head[1 : 2 * pairs : 2]
    for low, high, name in ((even, odd, "utf-16-le"), (odd, even, "utf-16-be")):
        if high.count(0) >= _ASCII_SHARE * pairs and low.count(0) == 0:
            return name
    return None


class Utf8Evidence:
    """Collects evidence for and against UTF-8 in the cells of a file taken for UTF-8.

    A few invalid cells among valid ones are errors of their rows. If there are invalid cells, but no valid multi-byte character anywhere,
    the file is in another encoding and refused.
    """

    def __init__(self) -> None:
        self.good = 0
        self.first_bad: tuple[str, int] | None = None  # where, and the byte

    def see(self, where: str, raw: bytes) -> None:
        try:
            if raw.isascii() or b"\0" in raw:  # with zero bytes it is no text in any of these encodings: an error of its row
                return
            raw.decode("utf-8")
            self.good += 1
        except UnicodeDecodeError as error:
            self.good += bool(_MULTIBYTE.search(raw))
            self.first_bad = self.first_bad or (where, raw[error.start])

    def check(self) -> None:
        """Raise `SourceError` if there was an invalid cell, and no cell with a valid multi-byte character."""
        if self.first_bad is not None and self.good == 0:
            where, byte = self.first_bad
            raise SourceError(f"{where} is not UTF-8 (byte {byte:#04x}); {advice(byte)}")


def advice(byte: int) -> str:
    """What to do about a byte that is not UTF-8."""
    likely = "cp1252" if 0x80 <= byte <= 0x9F else "latin-1"
    return f"name the file's encoding, such as --encoding {likely}, or write it as UTF-8"


def undecodable(where: str, error: UnicodeError, encoding: str) -> SourceError:
    """The error for text that cannot be decoded with its encoding."""
    plain = encoding.removesuffix("-sig")
    if isinstance(error, UnicodeDecodeError) and isinstance(error.object, bytes) and error.start < len(error.object):
        byte = error.object[error.start]
        return SourceError(f"{where} is not {plain}: byte {byte:#04x}, {error.reason}; name another with --encoding")
    return SourceError(f"{where} is not {plain}: {error}; name another with --encoding")
