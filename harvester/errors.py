"""Every error a user can meet, as one tree.

    HarvesterError               exit 1   something failed
    ├── UsageError               exit 2   the user asked for something that cannot be
    │   ├── ConfigError                   a config file or value
    │   ├── SourceError                   a file, table or query to read
    │   ├── ColumnError                   a column of the source
    │   ├── TaskError                     a task, its template or its schema
    │   ├── QueryError                    a SQL query
    │   ├── ParameterError                a parameter of an HTTP request
    │   ├── TooLargeError                 an upload above the server's limit
    │   ├── CrossSiteError                a request that another site made a browser send
    │   ├── KeyRefusedError               an API key that is missing or unknown
    │   └── NotFoundError                 a job, task or file named by the user
    ├── StateError               exit 1   a job is in a state that forbids the change
    ├── StorageError             exit 1   a part, ledger or state folder cannot be written or read
    ├── BusyError                exit 1   the server does as much of this as it will
    ├── EngineError              exit 1   the model or the engine could not do its work
    │   └── NoReplicaError                no replica is there to do it; one may be starting
    └── UnreachableError         exit 3   no server answers

A message says what is wrong, with which value, and what to do about it, on one line. No traceback reaches a user unless
``--debug`` was given.
"""

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
    code = "wrong_use"
    exit_code = 2
    http_status = 400


class ConfigError(UsageError):
    code = "bad_config"


class SourceError(UsageError):
    code = "bad_source"


class ColumnError(UsageError):
    code = "bad_column"


class TaskError(UsageError):
    code = "bad_task"


class QueryError(UsageError):
    code = "bad_query"


class ParameterError(UsageError):
    """``param`` names the parameter, as a path (``metadata.topic``); None where no single one is at fault."""

    code = "invalid_value"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class TooLargeError(UsageError):
    code = "too_large"
    http_status = 413


class CrossSiteError(UsageError):
    code = "cross_site"
    http_status = 403


class KeyRefusedError(UsageError):
    code = "invalid_api_key"
    http_status = 401


class NotFoundError(UsageError):
    code = "not_found"
    http_status = 404


class StateError(HarvesterError):
    code = "bad_state"
    http_status = 409


class StorageError(HarvesterError):
    code = "storage"


class BusyError(HarvesterError):
    code = "busy"
    http_status = 503


class EngineError(HarvesterError):
    code = "engine"


class NoReplicaError(EngineError):
    code = "no_replica"
    http_status = 503


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
