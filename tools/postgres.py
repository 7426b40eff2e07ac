"""A real PostgreSQL for tests and benchmarks, from Debian's package, in a folder of its own, on a unix socket, as a user without rights."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 60


class NoPostgres(Exception):
    """Says why no PostgreSQL can run here."""


def _programs() -> Path:
    """The folder of ``initdb`` and ``postgres``, installed first where that can be."""
    found = _installed()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
            subprocess.run(["apt-get", "-q", *words], capture_output=True, env=quiet, timeout=600, check=False)
        found = _installed()
    if found is None:
        raise NoPostgres("no PostgreSQL here, and it cannot be installed: run as root where apt-get has the package postgresql")
    return found


def _installed() -> Path | None:
    return max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), default=None)


def _user() -> str | None:
    """PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise NoPostgres("PostgreSQL refuses root, and there is no other user")


class Postgres:
    """A running one. ``url`` names its database ``postgres``; `new` makes an empty one."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._programs, self._folder, self._user = programs, folder, user
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        options = ["-A", "trust", "-U", "harvester", "--no-sync", "-E", "UTF8", "--locale=C"]
        self._run(["initdb", "-D", folder / "data", *options])
        self.start()

    def address(self, database: str) -> str:
        return f"postgresql://harvester@/{database}?host={self._folder}"

    def _run(self, words: list[object]) -> None:
        program = [str(self._programs / str(words[0])), *map(str, words[1:])]
        done = subprocess.run(program, user=self._user, capture_output=True, text=True, cwd=self._folder, timeout=WAIT_S, check=False)
        if done.returncode:
            raise NoPostgres(f"{words[0]} failed: {done.stderr.strip().splitlines()[-1]}")

    def start(self) -> None:
        words = [self._programs / "postgres", "-D", self._folder / "data", "-k", self._folder, "-c", "listen_addresses="]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*map(str, words)], user=self._user, stdout=log, stderr=log, cwd=self._folder)
        for _ in range(WAIT_S * 10):
            ready = [str(self._programs / "pg_isready"), "-q", "-t", "1", "-h", str(self._folder)]
            if subprocess.run(ready, check=False).returncode == 0:
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise NoPostgres(f"postgres did not start: {(self._folder / 'log').read_text()[-300:]}")

    @property
    def folder(self) -> Path:
        """What clients elsewhere must see: its socket lies there."""
        return self._folder

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Stop it at once, as a crash would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(WAIT_S)

    def new(self) -> str:
        """The address of an empty database."""
        import psycopg

        self._number += 1
        with psycopg.connect(self.address("postgres"), autocommit=True) as db:
            db.execute(f"CREATE DATABASE d{self._number}".encode())
        return self.address(f"d{self._number}")


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server, for the block. Raises `NoPostgres`."""
    programs, user = _programs(), _user()
    with tempfile.TemporaryDirectory(prefix="hv-pg-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)
        server = Postgres(programs, folder, user)
        try:
            yield server
        finally:
            server.stop()
