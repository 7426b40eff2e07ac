"""Publishes a file to the storage, if there is one, before it appears here."""

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
