"""``splits.log`` in a job's folder: the splits of its slices since it was submitted, so that a rebuilt ledger repeats them."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.durable import storage_error, sync_folder
from jobs.spec import SliceSpec

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror

NAME = "splits.log"


@dataclass(frozen=True, slots=True)
class Split:
    """Slice ``slice_id`` keeps its first ``keep_rows`` rows; ``new_id`` has the others."""

    slice_id: int
    keep_rows: int
    new_id: int


def note_split(job: Path, split: Split, mirror: Mirror | None = None) -> None:
    """Append a split, durably. ``job``: the job's folder, a local copy of ``mirror``. Raises `StorageError`."""
    path = job / NAME
    if mirror is not None:
        mirror.fetch(path)
        job.mkdir(mode=0o700, parents=True, exist_ok=True)
    payload = json.dumps(astuple(split)).encode()
    data = b"\n%08x %b\n" % (zlib.crc32(payload), payload)  # a writer that died may have torn the last line
    is_new = not path.exists()
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.write(file, data) < len(data):  # a disk that fills up takes a part and says nothing
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        finally:
            os.close(file)
        if is_new:
            sync_folder(job)
    except OSError as error:
        raise storage_error("write", path, error) from error
    if mirror is not None:
        mirror.send(path)


def noted_splits(job: Path) -> list[Split]:
    """The splits in order, without torn or damaged lines. Of several with the same new slice only the last one took effect."""
    path = job / NAME
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise storage_error("read", path, error) from error
    whole = [line[9:] for line in lines if line[:9] == b"%08x " % zlib.crc32(line[9:])]
    found = [Split(*json.loads(payload)) for payload in whole]
    last = {split.new_id: split for split in found}
    return [split for split in found if last[split.new_id] is split]


def cut(slices: Iterable[SliceSpec], splits: Iterable[Split]) -> tuple[SliceSpec, ...]:
    """The slices as they are after ``splits``, by id."""
    found = {one.slice_id: one for one in slices}
    for split in splits:
        one = found.get(split.slice_id)
        if one is None or split.keep_rows >= one.row_count or split.new_id in found:
            continue
        moved = {"offset": one.offset + split.keep_rows, "row_start": one.row_start + split.keep_rows}
        rest = one.row_count - split.keep_rows
        found[split.new_id] = one.model_copy(update={"slice_id": split.new_id, "row_count": rest, **moved})
        found[split.slice_id] = one.model_copy(update={"row_count": split.keep_rows})
    return tuple(found[slice_id] for slice_id in sorted(found))
