"""A TCP proxy that cuts connections where it is told to, as a network does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 16


@dataclass
class Proxy:
    """``cuts``: for each connection in turn, ``("up" | "down", bytes)`` after which it is cut; then none are."""

    target_port: int
    loop: asyncio.AbstractEventLoop
    cuts: list[tuple[str, int]] = field(default_factory=list)
    up_bytes: int = 0  # sent to the server, over all connections
    connections: int = 0
    port: int = 0
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self, *cuts: tuple[str, int]) -> None:
        """Close the connections that are open and idle, and cut the next ones as ``cuts`` says. Counts restart at zero."""

        async def end() -> None:
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            self.cuts, self.connections, self.up_bytes = list(cuts), 0, 0

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(30)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        way, limit = self.cuts.pop(0) if self.cuts else ("none", 0)
        to_server = await asyncio.open_connection("127.0.0.1", self.target_port)
        up = self._copy(reader, to_server[1], limit if way == "up" else None, counts=True)
        down = self._copy(to_server[0], writer, limit if way == "down" else None)
        tasks = [asyncio.ensure_future(up), asyncio.ensure_future(down)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            for one in tasks:
                one.cancel()
            for end in (writer, to_server[1]):
                end.transport.abort()
            self._open.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None, *, counts: bool = False) -> None:
        """Copy until the stream ends, or until more than ``limit`` bytes would be sent."""
        copied = 0
        with suppress(ConnectionError):
            while piece := await reader.read(CHUNK_BYTES):
                copied += len(piece)
                if limit is not None and copied > limit:
                    return
                self.up_bytes += len(piece) if counts else 0
                writer.write(piece)
                await writer.drain()


@contextmanager
def cutting(port: int) -> Iterator[Proxy]:
    """A proxy before ``port`` of this machine, for the block."""
    with asyncio.Runner() as runner:
        proxy, ended = Proxy(port, runner.get_loop()), asyncio.Event()
        started = threading.Event()

        async def serve() -> None:
            async with await asyncio.start_server(proxy.handle, "127.0.0.1", 0) as server:
                proxy.port = server.sockets[0].getsockname()[1]
                started.set()
                await ended.wait()

        thread = threading.Thread(target=runner.run, args=(serve(),), name="proxy")
        thread.start()
        started.wait(30)
        try:
            yield proxy
        finally:
            proxy.cut()
            proxy.loop.call_soon_threadsafe(ended.set)
            thread.join()
