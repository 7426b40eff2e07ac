"""The base of the error tree, and what a table that is read or written can raise. `harvester.errors` draws the whole tree."""

from __future__ import annotations

from typing import ClassVar


class HarvesterError(Exception):
    """Base of the tree. ``code`` is stable and goes into HTTP answers, ``exit_code`` into the shell."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def to_json(self) -> dict[str, dict[str, str]]:
        """The body of an HTTP error answer: ``{"error": {"code": ..., "message": ...}}``."""
        return {"error": {"code": self.code, "message": self.message}}


class UsageError(HarvesterError):
    """The request is invalid."""

    code = "wrong_use"
    exit_code = 2
    http_status = 400


class SourceError(UsageError):
    """The source (a file, table or query) cannot be used."""

    code = "bad_source"


class SourceAwayError(SourceError):
    """A source that cannot be reached for now: a network failure, or a store that throttles."""

    code = "source_away"
    http_status = 503


class CopyTooLargeError(SourceError):
    """The rows of a source take more bytes than may be copied for this client."""

    code = "copy_too_large"
    http_status = 413


class ColumnError(UsageError):
    """A column of the source cannot be used."""

    code = "bad_column"


class StorageError(HarvesterError):
    """A part, the ledger or the state folder cannot be written or read."""

    code = "storage"


class DamageError(StorageError):
    """A part or the ledger is not as it was written."""

    code = "damaged"
