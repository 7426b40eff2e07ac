"""A server that speaks S3 over HTTP, for tests and benchmarks: moto's, on this machine."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # rclone takes no others
}


@dataclass(frozen=True)
class S3:
    host: str
    port: int

    @property
    def options(self) -> str:
        """The query string that makes an S3 address lead to this server."""
        return f"?endpoint_override={self.host}:{self.port}&scheme=http&region=us-east-1"

    def bucket(self, name: str) -> str:
        """Make a bucket; returns its address, without `options`."""
        httpx.put(f"http://{self.host}:{self.port}/{name}", timeout=60.0).raise_for_status()
        return f"s3://{name}"


@contextmanager
def s3_server(host: str = "127.0.0.1") -> Iterator[S3]:
    """A server, for the block. Its clients need `CREDENTIALS` in their environment. Raises `ImportError` where moto is not installed."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = importlib.import_module("moto.server").ThreadedMotoServer(host, port=0, verbose=False)
    server.start()
    try:
        yield S3(*server.get_host_and_port())
    finally:
        server.stop()
