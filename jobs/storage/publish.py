"""A file that is in the storage before it is here, where there is a storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from connectors.durable import publish

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror


@contextmanager
def publish_to(mirror: Mirror | None, path: Path) -> Iterator[BinaryIO]:
    """`connectors.durable.publish`. With a ``mirror`` the file is there first, so that none is here that others lack."""
    with publish(path) as file:
        yield file
        if mirror is not None:
            file.flush()
            mirror.send(path, source=Path(file.name))
