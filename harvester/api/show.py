"""Progress display of a watched job: an updating bar in a notebook, a line on stderr elsewhere."""

from __future__ import annotations

import importlib
import sys
from typing import Any


class Progress:
    """``wanted``: whether to show it; None: only in a notebook or on a terminal."""

    def __init__(self, shown: Any, wanted: bool | None) -> None:
        self._shown = shown
        self._is_notebook = wanted is not False and in_notebook()
        self._is_line = not self._is_notebook and (sys.stderr.isatty() if wanted is None else wanted)
        self._handle: Any = None

    def update(self, is_over: bool) -> None:
        if self._is_notebook and self._handle is None:
            display: Any = importlib.import_module("IPython.display").display  # there, since a notebook runs this
            self._handle = display(self._shown, display_id=True)
        elif self._is_notebook:
            self._handle.update(self._shown)
        elif self._is_line:
            sys.stderr.write(f"\r\x1b[K{self._shown}" + ("\n" if is_over else ""))
            sys.stderr.flush()


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel, which has a display."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
