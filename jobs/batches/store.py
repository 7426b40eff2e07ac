"""The records of all batches: one JSON file each, replaced whole, all of them in memory. One process writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from connectors.durable import storage_error, sweep
from connectors.errors import StorageError
from jobs.batches.record import BatchRecord
from jobs.errors import NotFoundError
from jobs.frozen import of_newer
from jobs.storage.publish import publish_to

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror


def no_such_batch(batch_id: str) -> NotFoundError:
    return NotFoundError(f"No such Batch object: {batch_id[:80]}; list them with GET /v1/batches")


class BatchStore:
    """Opened by the one process that owns the batches. `put` syncs to disk: call it from a thread."""

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        """``mirror``: what the folder is a copy of, where the next owner may be on another machine."""
        self._folder = folder
        self._mirror = mirror
        self._records: dict[str, BatchRecord] = {}
        if mirror is not None:
            mirror.fetch_folder(folder, ".json")
        try:
            sweep(folder)
            paths = sorted(folder.glob("batch_*.json"))
        except OSError as error:
            raise storage_error("list", folder, error) from error
        for path in paths:
            try:
                record = BatchRecord.model_validate_json(path.read_bytes())
            except (OSError, ValueError) as error:
                told = of_newer(path, error) if isinstance(error, ValueError) else None
                raise StorageError(told or f"{path} is damaged; move it away and start the server again") from error
            self._records[record.id] = record

    def put(self, record: BatchRecord) -> None:
        """Keep a new record, or the new state of one; it is seen once it is on disk."""
        with publish_to(self._mirror, self._folder / f"{record.id}.json") as file:
            file.write(record.model_dump_json(exclude_defaults=True).encode())  # an earlier version refuses fields that it lacks
        self._records[record.id] = record

    def get(self, batch_id: str) -> BatchRecord:
        """Raises `NotFoundError`."""
        if batch_id not in self._records:
            raise no_such_batch(batch_id)
        return self._records[batch_id]

    def list(self) -> list[BatchRecord]:
        """Newest first."""
        return sorted(self._records.values(), key=lambda record: (record.created_at_s, record.id), reverse=True)
