"""Maps errors of the underlying libraries to ours: one line with what failed, on what, and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from connectors.credentials import masked
from connectors.errors import HarvesterError, SourceAwayError, SourceError

MAX_TOLD = 300  # characters of a library's own message
_AWAY_NUMBERS = (
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.EHOSTDOWN,
    errno.EPIPE,
)
# Words in the messages of Arrow's file systems, whose errors have no errno, and of fsspec's.
_AWAY_WORDS = re.compile(
    r"NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|THROTTLING|REQUEST_TIMEOUT|INTERNAL_FAILURE|\bUNAVAILABLE\b|DEADLINE_EXCEEDED"
    r"|time(?:d )?out|could ?n.t (?:connect|resolve)|could not (?:connect|resolve)|name resolution"
    r"|connection (?:reset|refused|aborted|closed)",
    re.IGNORECASE,
)


def first_line(error: BaseException) -> str:
    """The first line of a library's message; the class name where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()


def shown(uri: str) -> str:
    """The address as messages show it: with its credentials masked."""
    return masked(uri)


@contextmanager
def reading(what: str, kind: str = "Parquet") -> Iterator[None]:
    """Raise `SourceError` naming ``what``, of that kind, for every error of the library calls inside. Wrap nothing else in it.

    `SourceAwayError` if the same may work later.

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
    except Exception as error:
        if _is_away(error):
            raise SourceAwayError(_unread(what, error)) from error
        raise _refused(what, kind, error) from error


def _is_away(error: Exception) -> bool:
    if isinstance(error, pa.ArrowInvalid):  # about the data read: its message may quote any of it
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _AWAY_NUMBERS or isinstance(error, ConnectionError | TimeoutError)
    return isinstance(error, ConnectionError | TimeoutError) or _AWAY_WORDS.search(first_line(error)) is not None


def _refused(what: str, kind: str, error: Exception) -> SourceError:
    if isinstance(error, pa.ArrowInvalid):
        return SourceError(f"{shown(what)} is not {kind}, or is damaged: {_plain(error)}; write it again")
    if isinstance(error, OSError) and error.errno is None and "://" not in what:  # Arrow's: the bytes were read, and are wrong
        return SourceError(f"{shown(what)} is damaged: {_plain(error)}; write it again")
    return SourceError(_unread(what, error))


def _unread(what: str, error: Exception) -> str:
    return f"cannot read {shown(what)}: {_plain(error)}; check the address and that it can be reached"


def _plain(error: Exception) -> str:
    return quoted(first_line(error))


def quoted(text: str) -> str:
    """A line of a library as part of a message: without credentials, and not too long."""
    line = shown(text).rstrip(".")
    return line if len(line) <= MAX_TOLD else f"{line[:MAX_TOLD]}..."
