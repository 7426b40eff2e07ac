"""A connection to the ledger's SQLite file that the end of its process does not close.

SQLite copies the log into the file when the last connection is closed, whoever closes it. The interpreter closes what is left when it ends,
and then nobody sums the changed pages: the next owner would take them for damage. Python 3.11 cannot turn that copy off.
"""

from __future__ import annotations

import ctypes
import sqlite3
from typing import Any


class LastingConnection(sqlite3.Connection):
    """Only `close` closes it. Without one it ends with the process, as if that had been killed: the log stays for the next owner."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_kept = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # so the interpreter never frees it

    def close(self) -> None:
        super().close()
        if self._is_kept:
            self._is_kept = False
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self))
