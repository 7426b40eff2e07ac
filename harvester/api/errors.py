"""Exceptions of `harvester.connect` and of the objects that it returns.

HarvesterError          something failed
  RefusedError          the server refused the request: a wrong value, a key without the role, a limit
    NotFoundError       there is nothing of this name
  UnreachableError      no server answers
  JobFailedError        a job did not complete, or no row was answered
  MissingPackageError   a package is needed that is not installed
"""

from __future__ import annotations

import importlib
from typing import Any


class HarvesterError(Exception):
    """Something failed; the message says what, with which value, and what to do. ``code``: the server's error code, or the client's own."""

    def __init__(self, message: str, code: str = "failed") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class RefusedError(HarvesterError):
    """The server refused the request: a wrong value, a key without the role, a limit."""


class NotFoundError(RefusedError):
    """There is nothing of this name."""


class UnreachableError(HarvesterError):
    """No server answers. ``is_unsent``: the request cannot have reached it, so that a retry is safe. ``took_s``: until that was clear."""

    def __init__(self, message: str, *, is_unsent: bool = False, took_s: float = 0.0) -> None:
        super().__init__(message, "unreachable")
        self.is_unsent = is_unsent
        self.took_s = took_s


class JobFailedError(HarvesterError):
    """A job did not complete, or no row was answered. ``code`` is its state."""


class MissingPackageError(HarvesterError, ImportError):
    """A package is needed that is not installed."""


def error_of(status: int, body: Any) -> HarvesterError:
    """The exception for an error answer. ``body``: in OpenAI's error shape, or anything else."""
    told = body.get("error", body) if isinstance(body, dict) else {}
    told = told if isinstance(told, dict) else {"message": str(told)}
    message, code = str(told.get("message") or f"the server answered with status {status}"), str(told.get("code") or status)
    kind = NotFoundError if status == 404 else RefusedError if status < 500 else HarvesterError
    return kind(message, code)


def needed(package: str, what: str) -> Any:
    """The module ``package``. Raises `MissingPackageError`, which says that ``what`` needs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(f"{what} needs {package}, which is not installed; pip install {package}", "missing_package") from error
