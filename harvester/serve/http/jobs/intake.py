"""What clients send to be stored: how much each key may still send, and whether the disk has room for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from connectors.durable import storage_error
from harvester.errors import TooLargeError
from harvester.serve.access.identity import Identity
from jobs.batches.files import FileStore
from jobs.storage.folder import StateFolder
from jobs.threads import with_storage

CHECK_BYTES = 64 << 20  # received between two looks at the disk


class Intake:
    """Counts the bytes of each key: of its files and uploads, and of those being received. One in a process; used from its event loop.

    What this process receives counts as it comes; what another receives, with the next look at the disk.
    """

    def __init__(self, files: FileStore, folder: StateFolder | None = None, min_free_bytes: int = 0) -> None:
        """``folder``: whose uploads count too, and whose disk is to keep ``min_free_bytes``. None: only files count."""
        self._files = files
        self._folder = folder
        self._min_free_bytes = min_free_bytes
        self._accounts: dict[str | None, _Account] = {}
        self._unchecked_bytes = 0

    @asynccontextmanager
    async def receiving(self, who: Identity, path: Path) -> AsyncIterator[Receipt]:
        """A receipt for the file that grows at ``path`` within the block; what is there already counts.

        Raises `TooLargeError` if the key's other files are as large as they may be, `LowDiskError` if the disk is nearly full.
        """
        self._check_free()
        account = self._accounts.setdefault(who.name, _Account())
        receipt = Receipt(self, account, who, path, size_of(path))
        limit = who.limits.max_stored_bytes
        account.receipts.add(receipt)
        try:
            if limit is not None:
                await self.measure(account, who)
                others_bytes = account.bytes - receipt.bytes
                if others_bytes >= limit:
                    raise TooLargeError(f"the files of this key hold {others_bytes:,} bytes; the limit is {limit:,}: delete some", "file")
            yield receipt
        finally:
            receipt.has_ended = True
            if limit is None:
                account.receipts.discard(receipt)
            if all(one.has_ended for one in account.receipts):
                self._accounts.pop(who.name, None)

    async def count(self, account: _Account, who: Identity, added_bytes: int) -> None:
        """Count bytes that a receipt has come to, and look at the disk where it is time to. Raises `TooLargeError`, `LowDiskError`."""
        self._unchecked_bytes += added_bytes
        if self._unchecked_bytes >= CHECK_BYTES:
            self._check_free()
        limit = who.limits.max_stored_bytes
        account.unmeasured_bytes += added_bytes
        if limit is not None and (account.unmeasured_bytes >= CHECK_BYTES or account.bytes > limit):
            await self.check(account, who)

    async def check(self, account: _Account, who: Identity) -> None:
        """Measure the key's files. Raises `TooLargeError` if they hold, with what is being received, more than they may."""
        limit = who.limits.max_stored_bytes
        if limit is not None:
            await self.measure(account, who)
            if account.bytes > limit:
                raise TooLargeError(
                    f"the files of this key would hold {account.bytes:,} bytes; the limit is {limit:,}: delete some", "file"
                )

    async def measure(self, account: _Account, who: Identity) -> None:
        """Look at the disk for what the key's files hold, those being received apart."""
        async with account.measuring:
            ended = {receipt for receipt in account.receipts if receipt.has_ended}
            besides = {receipt.path for receipt in account.receipts - ended}
            account.unmeasured_bytes = 0
            account.measured_bytes = await with_storage(self._stored_bytes, who, besides)
            account.receipts -= ended

    def _stored_bytes(self, who: Identity, besides: Collection[Path]) -> int:
        own = [stored for stored in self._files.list() if stored.owner == who.name and stored.purpose == "batch"]
        files_bytes = sum(stored.bytes for stored in own if self._files.content(stored.id) not in besides)
        if self._folder is None:
            return files_bytes
        uploads = (Path(base, name) for base, _, names in os.walk(self._folder.uploads / who.folder) for name in names)
        return files_bytes + sum(size_of(path) for path in uploads if path not in besides)

    def _check_free(self) -> None:
        self._unchecked_bytes = 0
        if self._folder is not None:
            self._folder.check_free(self._min_free_bytes)


@dataclass(eq=False, slots=True)
class Receipt:
    """A file that is being received."""

    _intake: Intake
    _account: _Account
    _who: Identity
    path: Path
    bytes: int
    has_ended: bool = False

    async def grow(self, to_bytes: int) -> None:
        """Count the file as of ``to_bytes``, before it is. Raises `TooLargeError` if the key may not store as much, `LowDiskError`."""
        added_bytes = to_bytes - self.bytes
        if added_bytes > 0:
            self.bytes = to_bytes
            await self._intake.count(self._account, self._who, added_bytes)

    async def check(self) -> None:
        """Look at the disk once more, before other processes see the file. Raises `TooLargeError`."""
        await self._intake.check(self._account, self._who)

    def left_bytes(self) -> int | None:
        """How much more the key may store; None: no limit."""
        limit = self._who.limits.max_stored_bytes
        return None if limit is None else max(0, limit - self._account.bytes)


@dataclass(slots=True)
class _Account:
    """Of one key. A receipt that has ended counts until the next measurement: before, its file may or may not be in the last one."""

    receipts: set[Receipt] = field(default_factory=set)
    measured_bytes: int = 0  # of all files but those of ``receipts``
    unmeasured_bytes: int = 0  # received since
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def bytes(self) -> int:
        return self.measured_bytes + sum(receipt.bytes for receipt in self.receipts)


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none, or no longer. Raises `StorageError`."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise storage_error("read", path, error) from error
