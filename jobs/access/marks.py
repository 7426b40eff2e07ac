"""Marks of a chat's structure, such as ``<|im_end|>``: in the text of a row they are text, as any other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import pairwise

GAP = "\u200b"  # zero width space
MAX_DEPTH = 40  # of nested groups: a pattern is compiled by recursion
Span = tuple[int, int]  # begin and end in a text


class Marks:
    """The texts that a tokenizer would read as control tokens. `parted` puts a ``gap`` behind the first character of each.

    A mark of one character, or of spaces alone, cannot be parted and is left out.
    """

    def __init__(self, texts: Iterable[str] = (), gap: str = GAP) -> None:
        self.texts = frozenset(text for text in texts if len(text) > 1 and not text.isspace())
        self.gap = gap
        self._pattern = _pattern(self.texts)
        self._wholes = {self.parted(text): text for text in self.texts}
        self._parted_pattern = _pattern(self._wholes.keys())

    def parted(self, text: str, within: Sequence[Span] | None = None) -> str:
        """``text`` without its marks. ``within``: the spans that came from a row: a mark outside them stays; None: all of the text.

        A text without marks is returned as it is.
        """
        places = sorted({place for span in self._found(text) if (place := _place(span, within)) is not None})
        if not places:
            return text
        bounds = [0, *places, len(text)]
        return self.gap.join(text[begin:end] for begin, end in pairwise(bounds))

    def whole(self, text: str) -> str:
        """``text`` with each mark that `parted` had parted as it was."""
        count = 1 if self.gap in text else 0
        while count:  # marks that overlap: one pass makes the first of them whole
            text, count = self._parted_pattern.subn(lambda found: self._wholes[found[0]], text)
        return text

    def _found(self, text: str) -> Iterator[Span]:
        """The longest mark at each place. Marks may overlap."""
        match = self._pattern.search(text)
        while match is not None:
            yield match.span()
            match = self._pattern.search(text, match.start() + 1)


def _pattern(texts: Set[str]) -> re.Pattern[str]:
    return re.compile(_tree(texts) if texts else r"(?!)")


def _tree(texts: Set[str], depth: int = 0) -> str:
    """A pattern for the longest of ``texts``, with one branch for each next character: a model may have a thousand marks."""
    if depth > MAX_DEPTH:
        return f"(?:{'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})"
    rests: dict[str, set[str]] = {}
    for text in texts - {""}:
        rests.setdefault(text[0], set()).add(text[1:])
    branches = "|".join(re.escape(first) + _tree(rest, depth + 1) for first, rest in sorted(rests.items()))
    return f"(?:{branches}){'?' if '' in texts else ''}" if branches else ""


def _place(mark: Span, within: Sequence[Span] | None) -> int | None:
    """Where to part a mark: behind its first character, or where the first of the row's spans begins in it; None: it is not of the row."""
    begin, end = mark
    if within is None:
        return begin + 1
    return next((max(begin + 1, first) for first, last in within if first < end and last > begin and last > first), None)


UNMARKED = Marks()
