"""Every error a user can meet, as one tree.

    HarvesterError               exit 1   something failed
    ├── UsageError               exit 2   the user asked for something that cannot be
    │   ├── ConfigError                   a config file or value
    │   ├── SourceError                   a file, table or query to read
    │   │   ├── SourceAwayError           one that cannot be reached for now
    │   │   └── CopyTooLargeError         one whose rows take more than may be copied
    │   ├── ColumnError                   a column of the source
    │   ├── TaskError                     a task, its template or its schema
    │   ├── QueryError                    a SQL query
    │   ├── ParameterError                a parameter of an HTTP request
    │   │   └── TooLargeError             one that is above a limit
    │   ├── SlowBodyError                 a request whose body came too slowly
    │   ├── CrossSiteError                a request that another site made a browser send
    │   ├── KeyRefusedError               an API key that is missing or unknown
    │   ├── RoleError                     an API key without the role that is needed
    │   ├── QuotaError                    an API key that is above its limit for now
    │   └── NotFoundError                 a job, task or file named by the user
    ├── StateError               exit 1   a job is in a state that forbids the change
    ├── StorageError             exit 1   a part, ledger or state folder cannot be written or read
    │   ├── LowDiskError                  the disk has less room than is kept free
    │   ├── OwnerError                    another server has taken over the ledger
    │   ├── ReopenError                   the ledger's memory may differ from its store; it is opened again
    │   └── DamageError                   stored data is not as it was written
    ├── TooManyQueriesError      exit 1   no process is free for a SQL query
    ├── OverloadError            exit 1   a chat request whose first token would come too late
    ├── BusyError                exit 1   the server is at its limit for this kind of work
    ├── EngineError              exit 1   the model or the engine could not do its work
    │   ├── EngineStartError              vLLM did not start
    │   └── NoReplicaError                no replica is up; one may be starting
    └── UnreachableError         exit 3   no server answers

Each package owns the errors that it raises: `connectors.errors` the base, `jobs.errors` those of jobs, this file the rest.
A message says what is wrong, with which value, and what to do about it, on one line. No traceback reaches a user unless
``--debug`` was given.
"""

from __future__ import annotations

from connectors.errors import (
    ColumnError,
    CopyTooLargeError,
    DamageError,
    HarvesterError,
    SourceAwayError,
    SourceError,
    StorageError,
    UsageError,
)
from jobs.errors import (
    EngineError,
    LowDiskError,
    NotFoundError,
    OwnerError,
    ParameterError,
    QueryError,
    ReopenError,
    StateError,
    TaskError,
    TooLargeError,
    TooManyQueriesError,
)

__all__ = [
    "BusyError",
    "ColumnError",
    "ConfigError",
    "CopyTooLargeError",
    "CrossSiteError",
    "DamageError",
    "EngineError",
    "EngineStartError",
    "HarvesterError",
    "KeyRefusedError",
    "LowDiskError",
    "NoReplicaError",
    "NotFoundError",
    "OverloadError",
    "OwnerError",
    "ParameterError",
    "QueryError",
    "QuotaError",
    "ReopenError",
    "RoleError",
    "SlowBodyError",
    "SourceAwayError",
    "SourceError",
    "StateError",
    "StorageError",
    "TaskError",
    "TooLargeError",
    "TooManyQueriesError",
    "UnreachableError",
    "UsageError",
    "from_json",
]


class ConfigError(UsageError):
    code = "bad_config"


class CrossSiteError(UsageError):
    code = "cross_site"
    http_status = 403


class KeyRefusedError(UsageError):
    code = "invalid_api_key"
    http_status = 401


class SlowBodyError(UsageError):
    code = "request_timeout"
    http_status = 408


class RoleError(UsageError):
    code = "insufficient_role"
    http_status = 403


class QuotaError(UsageError):
    """``retry_after_s``: seconds until the same request would pass; ``counted``: what the limit counts, requests or tokens."""

    code = "rate_limit_exceeded"
    http_status = 429

    def __init__(self, message: str, retry_after_s: float = 1.0, counted: str = "requests") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.counted = counted


class OverloadError(HarvesterError):
    """``retry_after_s``: predicted seconds until a request is let in again."""

    code = "overloaded"
    http_status = 429

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BusyError(HarvesterError):
    code = "busy"
    http_status = 503


class EngineStartError(EngineError):
    code = "engine_start"


class NoReplicaError(EngineError):
    """``retry_after_s``: seconds until one may answer."""

    code = "no_replica"
    http_status = 503
    retry_after_s: float = 1.0


class UnreachableError(HarvesterError):
    code = "unreachable"
    exit_code = 3
    http_status = 503


def _tree(root: type[HarvesterError]) -> dict[str, type[HarvesterError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def from_json(body: object, status: int) -> HarvesterError:
    """Turn an HTTP error answer back into the error the server raised.

    An answer of another shape (a proxy's page, vLLM's own error) becomes a `UsageError` for a 4xx status and a plain
    `HarvesterError` otherwise.
    """
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        kind = _tree(HarvesterError).get(str(error.get("code")))
        fallback = UsageError if 400 <= status < 500 else HarvesterError
        return (kind or fallback)(error["message"])
    kind = UsageError if 400 <= status < 500 else HarvesterError
    return kind(f"the server answered {status}: {str(body)[:200]}")
