"""One phase of `bench.scenarios.job_path.transfer` as a client's own process, so that its memory is that phase's alone.

``python -m bench.harness.load.transfer_client upload|results|sql URL FILE|JOB`` prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import harvester
from bench.harness.measure.peak import peak_bytes, reset_peak, resident_bytes
from harvester.api.client import Harvester


def main(phase: str, url: str, what: str) -> None:
    with harvester.connect(url) as client:
        client.sql("select 1 as one").arrow()  # so that all modules are loaded
        reset_peak()
        idle_bytes, began_s = resident_bytes(), time.monotonic()
        found = PHASES[phase](client, what)
        seconds = time.monotonic() - began_s
        print(json.dumps({**found, "seconds": seconds, "idle_bytes": idle_bytes, "above_idle_bytes": peak_bytes() - idle_bytes}))


def _upload(client: Harvester, file: str) -> dict[str, Any]:
    job = client.submit(Path(file), prompt="Name the {text}")
    return {"job": job.id, "bytes": Path(file).stat().st_size}


def _results(client: Harvester, job: str) -> dict[str, Any]:
    return _read(client.job(job).results().batches())


def _sql(client: Harvester, job: str) -> dict[str, Any]:
    return _read(client.sql(f"select row_id, blob from results('{job}')").batches())


def _read(batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
    """Rows, bytes, and a checksum of the column ``blob`` in the order of rows."""
    rows = count = checksum = 0
    for batch in batches:
        rows, count = rows + batch.num_rows, count + batch.nbytes
        for cell in batch["blob"]:
            checksum = zlib.crc32(cell.as_buffer(), checksum)
    return {"rows": rows, "bytes": count, "crc32": checksum}


PHASES = {"upload": _upload, "results": _results, "sql": _sql}

if __name__ == "__main__":
    main(*sys.argv[1:])
