"""The spools of a replica's slices in work. Where there is a storage they are sent there, so that another machine can go on from them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Container
from pathlib import Path

from connectors.durable import publish
from connectors.errors import StorageError
from jobs.run.spool.records import Spool, spooled_rows
from jobs.run.telling import despite_cancellation
from jobs.spec import Lease
from jobs.storage.folder import StateFolder
from jobs.storage.mirror import Mirror
from jobs.threads import with_storage

log = logging.getLogger("harvester.runner")

SENT_S = 5.0  # longest wait of a leaving replica for a spool to be sent


class Spools:
    """``every_s``: seconds between two sendings of a spool: the death of a machine costs at most so much work."""

    def __init__(self, folder: StateFolder, every_s: float) -> None:
        self._folder = folder
        self._every_s = every_s
        self._sent: dict[Path, int] = {}  # bytes, of spools in work
        self._sending = threading.Lock()  # a spool that is on its way is not removed before it has arrived

    def open(self, lease: Lease, kept: Container[int] = ()) -> Spool:
        """Open the spool of a slice, with the records of earlier holders on any machine. Call it from a thread. Raises `StorageError`.

        A retry takes answers from the spools before it too: a holder that was stopped or died may have published none of them. ``kept``:
        row_ids with a published answer, which stays.
        """
        path, mirror = self._path(lease), self._folder.mirror
        sent = 0 if mirror is None else _take_over(path, mirror)
        spool = Spool(path)
        spool.leave_out_others(lease.slice.row_ids)
        for earlier in self._earlier(lease):
            if mirror is not None:
                _take_over(earlier, mirror)
            for row in spooled_rows(earlier).values():
                is_new = row.row_id in lease.slice.row_ids and row.row_id not in spool.rows and row.row_id not in kept
                if row.status == "ok" and is_new:
                    spool.finish(row)
        if mirror is not None:
            self._sent[path] = sent
        return spool

    async def close(self, spool: Spool, *, is_left: bool) -> None:
        """``is_left``: its rows are not published, and the slice goes to another holder."""
        sent = self.close_unsent(spool)
        if is_left and sent is not None:
            await despite_cancellation(with_storage(self._send, spool.path, sent, is_last=True), SENT_S)

    def close_unsent(self, spool: Spool) -> int | None:
        """Close the spool without sending it. Returns how many bytes of it are in the storage; None without a storage."""
        spool.close()
        return self._sent.pop(spool.path, None)

    async def forget(self, lease: Lease) -> None:
        """Remove the spool, after its rows were committed. A copy that cannot be removed from the storage stays, and nobody reads it."""
        paths = [self._path(lease), *self._earlier(lease)]
        for path in paths:  # at once: a runner that is cancelled now leaves no spool of a slice that is done
            path.unlink(missing_ok=True)
        if self._folder.mirror is not None:
            await despite_cancellation(with_storage(self._remove, paths), SENT_S)

    def _remove(self, paths: list[Path]) -> None:
        assert self._folder.mirror is not None
        try:
            with self._sending:
                for path in paths:
                    self._folder.mirror.remove(path)
        except StorageError as error:
            log.warning("spool_left %s", error.message)

    async def run(self) -> None:
        """Send what has grown, until cancelled. Ends at once where there is no storage."""
        while self._folder.mirror is not None:
            await asyncio.sleep(self._every_s)
            for path, sent in tuple(self._sent.items()):
                now_sent = await with_storage(self._send, path, sent)
                if path in self._sent:
                    self._sent[path] = now_sent

    def _send(self, path: Path, sent: int, *, is_last: bool = False) -> int:
        """Send the whole records, if there are more than ``sent`` bytes of them. Returns how many bytes are there now."""
        assert self._folder.mirror is not None
        with self._sending:
            if not is_last and path not in self._sent:  # published or given back meanwhile
                return sent
            try:
                data = path.read_bytes()
                data = data[: data.rfind(b"\n") + 1]
                if len(data) > sent:
                    self._folder.mirror.put(path, data)
                    return len(data)
            except (OSError, StorageError) as error:
                log.warning("spool_not_sent path=%s %s", path, error)
            except Exception:  # the rows go on
                log.exception("spool_not_sent path=%s", path)
            return sent

    def _path(self, lease: Lease) -> Path:
        return self._folder.spool(lease.job.id, lease.slice.slice_id, lease.generation)

    def _earlier(self, lease: Lease) -> list[Path]:
        """Spools of the generations before a retry. Most do not exist."""
        return [self._folder.spool(lease.job.id, lease.slice.slice_id, generation) for generation in range(lease.generation)]


def _take_over(path: Path, mirror: Mirror) -> int:
    """Merge what earlier holders sent into the local spool. Returns its bytes if the storage has the same ones, else 0."""
    there = mirror.read(path)
    if there is None:
        return 0
    here = path.read_bytes() if path.exists() else b""
    both = merged(here, there)
    if both != here:
        with publish(path) as file:
            file.write(both)
    return len(there) if both == there else 0


def merged(here: bytes, there: bytes) -> bytes:
    """Merge two copies of a spool that diverged: each record occurs as often as in the copy that has it more often."""
    if there.startswith(here):
        return there
    if here.startswith(there):
        return here
    own = here.split(b"\n")
    more = Counter(there.split(b"\n")) - Counter(own)
    return b"\n".join([*own, *more.elements(), b""])
