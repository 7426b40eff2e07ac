"""Where the ledger keeps its tables: the contract of a store, who may write to it, and what its errors say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from connectors.errors import DamageError, StorageError
from jobs.errors import OwnerError
from jobs.ledger.store.statements import SCHEMA_VERSION

COMMITS = ".commits"  # in place of the ledger's suffix
GO_ON = "stop the server and run: harvester repair"


class Store(Protocol):
    """Statements of ``ledger.sql`` by name, used from one thread.

    Opening makes the caller the one owner: it raises the epoch, and every change of an earlier owner fails with `OwnerError` from then
    on, however long it was paused. Other failures are `StorageError`; `DamageError` where what is stored is not what was written.
    """

    name: str  # as messages name it

    def run(self, name: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows that the statement gives. A change outside of `transaction` is one of its own."""
        ...

    def many(self, name: str, rows: Iterable[Sequence[object]]) -> None:
        """Run the statement for each row. Call within a transaction."""
        ...

    def rows(self, name: str, values: Sequence[object] = ()) -> list[dict[str, Any]]: ...

    def arrow(self, table: str, without: tuple[str, ...] = ()) -> pa.Table:
        """All rows of a table, with the columns of `jobs.ledger.store.statements.columns`."""
        ...

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[None]:
        """Commit all of the block's changes or none; they are on disk when it ends. Not to be nested.

        Without ``durable`` a power cut may undo it, until the next durable transaction. Durable ones before it stay.
        """
        ...

    def missing(self) -> int | None:
        """How many changes were lost; None where nobody counted them. Raises `DamageError` where the count is damaged."""
        ...

    def confirm(self) -> None:
        """Accept the stored changes as complete, after a repair."""
        ...

    def close(self) -> None: ...


@contextmanager
def closed_on_error(store: Store) -> Iterator[None]:
    """Close the store if the block raises."""
    try:
        yield
    except BaseException:
        store.close()
        raise


def is_change(statement: str) -> bool:
    return statement.startswith(("INSERT", "UPDATE", "DELETE"))


def is_in_memory(path: object) -> bool:
    return isinstance(path, Path) and path.name.startswith(":memory:")


def check_version(name: str, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise StorageError(
            f"the ledger {name} is of version {version}, this harvester writes version {SCHEMA_VERSION}; run the version that made it"
        )


def check_count(name: object, count: int, told: int | None) -> None:
    """Raise `DamageError` where changes are missing. ``count``: of the ledger; ``told``: of the file beside it, None without a file."""
    if told is not None and count < told:
        raise DamageError(
            f"the ledger {name} lacks its last {told - count} changes: it or its log was cut, removed or replaced by an older copy; {GO_ON}"
        )


def refused(name: str, epoch: int, count: int, now: tuple[int, int] | None) -> StorageError:
    """The error of a change that the store refused. ``now``: epoch and count of changes in the store."""
    if now is None or now[0] != epoch:
        return taken_over(name)
    return DamageError(f"the ledger {name} was put back from {count} changes to {now[1]} while it was in use; {GO_ON}")


def taken_over(name: str) -> OwnerError:
    return OwnerError(f"another server has taken over the ledger {name}; this one may not write to it any more: stop it")


def unwritable(name: str, cause: str) -> StorageError:
    """``name``: of the statement."""
    return StorageError(f"the ledger cannot be written or read ({name}): {cause}; check the disk of the state folder")
