"""A web server of files on this machine."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site:
    """Serves ``files`` by path, parts of them on request; those below ``/plain/`` only whole, and of unknown length.

    ``headers``: what it tells of a file beside its bytes.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = site.files.get(self.path)
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
                is_plain = self.path.startswith("/plain/")
                if body is not None and asked and not is_plain:
                    self.send_response(206)
                    body = body[int(asked[1]) : int(asked[2]) + 1]
                else:
                    self.send_response(404 if body is None else 200)
                if not is_plain:
                    self.send_header("content-length", str(len(body or b"")))
                for name, value in site.headers.get(self.path, {}).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body or b"")

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextmanager
def web_site() -> Iterator[Site]:
    """For the block."""
    site = Site()
    try:
        yield site
    finally:
        site.close()
