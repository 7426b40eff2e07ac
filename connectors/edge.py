"""Where errors of the libraries beneath become ours: one line, what failed, on what, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from connectors.credentials import masked
from connectors.errors import HarvesterError, SourceError

MAX_TOLD = 300  # characters of a library's own message


def first_line(error: BaseException) -> str:
    """The first line of a library's message; the class name where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()


def shown(uri: str) -> str:
    """The address as it may stand in a message: without the credentials that an address can hold."""
    return masked(uri)


@contextmanager
def reading(what: str, kind: str = "Parquet") -> Iterator[None]:
    """Raise `SourceError` naming ``what``, of that kind, for every error of the library calls inside. Wrap nothing else in it.

    It catches `Exception`, because a file system reached through fsspec may raise any class of its own.
    """
    try:
        yield
    except (HarvesterError, AssertionError):
        raise
    except FileNotFoundError as error:
        raise SourceError(f"{shown(what)} no longer exists; give a path that exists") from error
    except PermissionError as error:
        raise SourceError(f"cannot read {shown(what)}: permission denied; ask for the right to read it") from error
    except pa.ArrowInvalid as error:
        raise SourceError(f"{shown(what)} is not {kind}, or is damaged: {_plain(error)}; write it again") from error
    except OSError as error:
        if error.errno is None and "://" not in what:  # Arrow's: the bytes are there, and wrong
            raise SourceError(f"{shown(what)} is damaged: {_plain(error)}; write it again") from error
        raise SourceError(f"cannot read {shown(what)}: {_plain(error)}; check the address and that it can be reached") from error
    except Exception as error:
        raise SourceError(f"cannot read {shown(what)}: {_plain(error)}; check the address and that it can be reached") from error


def _plain(error: Exception) -> str:
    told = shown(first_line(error)).rstrip(".")
    return told if len(told) <= MAX_TOLD else f"{told[:MAX_TOLD]}..."
