"""The end of an error message about a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str], what: str) -> str:
    """``; did you mean NEAREST?``, or all known names (``what`` says what they are) where none is near."""
    names = list(known)
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(given.casefold(), folded, n=1)
    if near:
        return f"; did you mean {folded[near[0]]}?"
    return f"; {what}: {', '.join(names) or 'none'}"
