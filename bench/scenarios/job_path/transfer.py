"""Scenario ``transfer``: what client, server and its processes for SQL take while a table goes to a server and its results come back.

Server and client are processes of their own, joined by HTTP alone. The engine is scripted; the table's column ``blob`` is kept, so that the
results are as large as the table. What comes back is compared by checksum.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness.measure.peak import Below, peak_bytes, reset_peak, resident_bytes
from bench.harness.options import Options
from harvester.errors import EngineError, UsageError
from harvester.ports import free_port

ROW_BYTES = 32 << 10
GROUP_ROWS = 512
FULL_MIB, QUICK_MIB = 10 << 10, 256
GOAL_MIB = 300.0
SIDES = ("client", "server", "sql", "server_and_sql")
LOOK_S = 0.05
STARTED_S, HARVEST_S = 120.0, 7200.0


def run(options: Options) -> dict[str, Any]:
    """``--set mib=N``: size of the table. Raises `EngineError` where rows are lost or changed on the way."""
    if set(options.set) - {"mib"}:
        raise UsageError(f"--set {', '.join(sorted(options.set))}: this scenario has mib, the size of the table")
    size_mib = int(options.set.get("mib", QUICK_MIB if options.quick else FULL_MIB))
    with tempfile.TemporaryDirectory(prefix="harvester-transfer-") as name, _Server(Path(name, "state")) as server:
        source = Path(name, "docs.parquet")
        rows, checksum = write_table(source, size_mib << 20, options.seed)
        up = server.measured("upload", str(source))
        source.unlink()  # the server has its own
        harvest = server.harvested(str(up.pop("job")))
        down = {phase: server.measured(phase, harvest["job"]) for phase in ("results", "sql")}
        for phase, found in down.items():
            if (found.pop("rows"), found.pop("crc32")) != (rows, checksum):
                raise EngineError(f"{phase} gave back other rows than the table has")
    phases = {"upload": up, **down}
    most = {side: max(phase.get(f"{side}_above_idle_mib", 0.0) for phase in (*phases.values(), harvest)) for side in SIDES}
    return {
        "table": {"mib": size_mib, "rows": rows},
        "goals": {f"{side}_above_idle_mib": {"goal": GOAL_MIB, "is_met": most[side] <= GOAL_MIB} for side in ("client", "server_and_sql")},
        "systems": {"harvester": {"phases": phases, "most": most, "harvest": harvest}},
        "ratios": {},
    }


def write_table(path: Path, size_bytes: int, seed: int) -> tuple[int, int]:
    """Rows that no compression makes smaller; their number, and the checksum of the column ``blob``. One row group is in memory."""
    draw = random.Random(seed)
    schema = pa.schema([("text", pa.string()), ("blob", pa.binary())])
    rows = max(1, size_bytes // ROW_BYTES)
    checksum = 0
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False, write_page_checksum=True) as writer:
        for start in range(0, rows, GROUP_ROWS):
            count = min(GROUP_ROWS, rows - start)
            blobs = [draw.randbytes(ROW_BYTES) for _ in range(count)]
            for blob in blobs:
                checksum = zlib.crc32(blob, checksum)
            writer.write_table(pa.table({"text": [f"row {start + i}" for i in range(count)], "blob": blobs}, schema=schema))
    return rows, checksum


class _Server:
    """`bench.harness.servers.jobs_server` in a process of its own."""

    def __init__(self, state: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "bench.harness.servers.jobs_server", "--state", str(state), "--port", str(port)]

    def __enter__(self) -> _Server:
        self._process = subprocess.Popen(self._command)
        end_s = time.monotonic() + STARTED_S
        while True:
            try:
                httpx.get(f"{self.url}/api/server", timeout=5.0)
                break
            except httpx.HTTPError as error:
                if self._process.poll() is not None or time.monotonic() > end_s:
                    self.__exit__()
                    raise EngineError("the jobs server did not start") from error
                time.sleep(0.1)
        httpx.post(f"{self.url}/api/sql", json={"query": "select 1"}, timeout=60.0).raise_for_status()  # starts its processes for SQL
        self._idle_bytes, self._sql_idle_bytes = resident_bytes(self._process.pid), Below.of(self._process.pid).bytes
        return self

    def __exit__(self, *given: object) -> None:
        self._process.terminate()
        self._process.wait()

    def measured(self, phase: str, what: str) -> dict[str, Any]:
        """Run one phase. Memory counts above idle.

        The client's idle memory is what it held once connected; the server's, with its processes for SQL, what they held before any work.
        """
        reset_peak(self._process.pid)
        found, below = _client(phase, self.url, what, self._process.pid)
        return {
            "bytes": found.pop("bytes"),
            "seconds": found["seconds"],
            "client_idle_mib": found.pop("idle_bytes") / 2**20,
            "client_above_idle_mib": found.pop("above_idle_bytes") / 2**20,
            **self._load(below),
        } | found

    def _load(self, below: Below) -> dict[str, float]:
        """MiB and seconds of processor time: of the server's own process, of its processes for SQL; memory of all of them too."""
        own_bytes = peak_bytes(self._process.pid) - self._idle_bytes
        together_bytes = below.whole_bytes - self._idle_bytes - self._sql_idle_bytes
        return {
            "server_idle_mib": self._idle_bytes / 2**20,
            "server_above_idle_mib": own_bytes / 2**20,
            "server_and_sql_above_idle_mib": max(own_bytes, together_bytes) / 2**20,
            "sql_idle_mib": self._sql_idle_bytes / 2**20,
            "sql_above_idle_mib": (below.bytes - self._sql_idle_bytes) / 2**20,
            "query_resident_mib": below.one_bytes / 2**20,
            "server_cpu_s": round(below.server_cpu_s, 2),
            "sql_cpu_s": round(below.cpu_s, 2),
        }

    def harvested(self, job: str) -> dict[str, Any]:
        began_s, end_s = time.monotonic(), time.monotonic() + HARVEST_S
        reset_peak(self._process.pid)
        below = Below.of(self._process.pid)
        while (view := httpx.get(f"{self.url}/api/jobs/{job}", timeout=60.0).json())["state"] != "completed" or view["rows_running"]:
            if time.monotonic() > end_s or view["state"] == "failed":
                raise EngineError(f"the job is {view['state']}: {view['message']}")
            below.look()
            time.sleep(0.5)
        below.look()
        return {"job": job, "seconds": time.monotonic() - began_s, **self._load(below)}


def _client(phase: str, url: str, what: str, server: int) -> tuple[dict[str, Any], Below]:
    """Run one phase. Returns its output, and what the processes below ``server`` (for SQL) took."""
    command = [sys.executable, "-m", "bench.harness.load.transfer_client", phase, url, what]
    below = Below.of(server)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        while process.poll() is None:
            below.look()
            time.sleep(LOOK_S)
        text = output.read()
    if process.returncode:
        raise EngineError(f"the client of phase {phase} ended with status {process.returncode}")
    return dict(json.loads(text)), below
