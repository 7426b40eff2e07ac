"""What a job, a task, a query or a batch can raise, beside the errors of `connectors`. `harvester.errors` draws the whole tree."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from connectors.errors import HarvesterError, StorageError, UsageError


class TaskError(UsageError):
    """A task, its template, its options or its schema is invalid."""

    code = "bad_task"


class QueryError(UsageError):
    """A SQL query is refused or fails."""

    code = "bad_query"


class TooManyQueriesError(HarvesterError):
    """No process is free for a SQL query. ``retry_after_s``: whole seconds after which one may be."""

    code = "too_many_queries"
    http_status = 429

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ParameterError(UsageError):
    """``param`` names the parameter of an HTTP request, as a path (``metadata.topic``); None where no single one is at fault."""

    code = "invalid_value"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class TooLargeError(ParameterError):
    """A request above one of its limits."""

    code = "too_large"
    http_status = 413


class NotFoundError(UsageError):
    """The job, task or file that the user named does not exist."""

    code = "not_found"
    http_status = 404


class StateError(HarvesterError):
    """A job is in a state that forbids the change."""

    code = "bad_state"
    http_status = 409


class LowDiskError(StorageError):
    """The disk has less free space than the configured minimum."""

    code = "low_disk"
    http_status = 503


class OwnerError(StorageError):
    """Another server has taken over the ledger since; this one may not write to it."""

    code = "not_owner"
    http_status = 503


class ReopenError(StorageError):
    """What the ledger remembers may not be what its store has, as after a broken connection: open the ledger again."""

    code = "reopen"
    http_status = 503


class EngineError(HarvesterError):
    """The model or the engine could not do its work."""

    code = "engine"


def did_you_mean(given: str, known: Iterable[str], what: str) -> str:
    """End of a message about an unknown name: suggests the nearest one; where none is near, lists all ``known``, introduced by ``what``."""
    names = list(known)
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(given.casefold(), folded, n=1)
    if near:
        return f"; did you mean {folded[near[0]]}?"
    return f"; {what}: {', '.join(names) or 'none'}"
