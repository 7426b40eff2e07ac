"""What `harvester.connect` and what comes of it raise. `code` is the server's word for it."""

from __future__ import annotations

from typing import Any


class HarvesterError(Exception):
    """Something failed; the message says what, with which value, and what to do."""

    def __init__(self, message: str, code: str = "failed") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class RefusedError(HarvesterError):
    """The server refused the request: a wrong value, a key without the role, a limit."""


class NotFoundError(RefusedError):
    """There is nothing of this name."""


class UnreachableError(HarvesterError):
    """No server answers."""


class JobFailedError(HarvesterError):
    """A job ended without answers."""


def error_of(status: int, body: Any) -> HarvesterError:
    """The error that an answer of ``status`` holds in OpenAI's shape."""
    told = body.get("error", body) if isinstance(body, dict) else {}
    told = told if isinstance(told, dict) else {"message": str(told)}
    message, code = str(told.get("message") or f"the server answered with status {status}"), str(told.get("code") or status)
    kind = NotFoundError if status == 404 else RefusedError if status < 500 else HarvesterError
    return kind(message, code)
