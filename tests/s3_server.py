"""The S3 server of the tools, with credentials in this process's environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tools import s3
from tools.s3 import CREDENTIALS, S3


@contextmanager
def credentials() -> Iterator[None]:
    """In this process's environment, for the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


@contextmanager
def s3_server(host: str = "127.0.0.1") -> Iterator[S3]:
    """For the block. Skips the test where moto is not installed."""
    pytest.importorskip("moto.server")
    with s3.s3_server(host) as server, credentials():
        yield server
