"""``python -m bench.harness.load.prober``: asks paths of a server in turn at a fixed rate and writes what it saw.

It ends when its standard input does.

A process of its own, so that nothing the benchmark does makes it late; how late it was all the same is part of what it writes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench.harness.measure.latency import percentiles

PERIOD_S = 0.1  # from one request to the next, whichever path
GIVE_UP_S = 30.0
END_S = GIVE_UP_S + 10.0


async def probe(url: str, paths: Sequence[str]) -> list[dict[str, Any]]:
    """One line for each request: ``path``, ``late_ms`` behind its planned time when it was sent, ``ms`` until its whole answer was there,
    ``status`` (None: no answer)."""
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    lines: list[dict[str, Any]] = []
    async with httpx.AsyncClient(base_url=url, timeout=GIVE_UP_S, trust_env=False) as client, asyncio.TaskGroup() as group:
        print("ready", flush=True)
        began_s, number = time.perf_counter(), 0
        while not over.done():
            planned_s = began_s + number * PERIOD_S
            await asyncio.sleep(max(0.0, planned_s - time.perf_counter()))
            group.create_task(_ask(client, paths[number % len(paths)], planned_s, lines))
            number += 1
    return lines


async def _ask(client: httpx.AsyncClient, path: str, planned_s: float, lines: list[dict[str, Any]]) -> None:
    sent_s = time.perf_counter()
    try:
        status = (await client.get(path)).status_code
    except httpx.HTTPError:
        status = None
    lines.append(
        {"path": path, "late_ms": (sent_s - planned_s) * 1e3, "ms": (time.perf_counter() - sent_s) * 1e3, "status": status},
    )


def summary(lines: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
    """Latency by path, under the names given to the paths. What was not answered with 200 counts in ``failed`` as well."""
    return {
        "paths": {
            name: {
                "ms": percentiles([line["ms"] for line in lines if line["path"] == path]),
                "slowest_ms": round(max((line["ms"] for line in lines if line["path"] == path), default=0.0), 2),
                "requests": sum(line["path"] == path for line in lines),
                "failed": sum(line["path"] == path and line["status"] != 200 for line in lines),
            }
            for path, name in names.items()
        },
        "prober_late_ms": percentiles([line["late_ms"] for line in lines]),
    }


@contextmanager
def probing(url: str, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Probe while the block runs. The dictionary holds the `summary` after it."""
    found: dict[str, Any] = {}
    with tempfile.NamedTemporaryFile() as out:
        command = [sys.executable, "-m", "bench.harness.load.prober", "--url", url, "--out", out.name, *names]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it has started
            yield found
            process.communicate(timeout=END_S)  # closes its standard input
        finally:
            process.kill()
            process.wait()
        lines = [json.loads(line) for line in Path(out.name).read_text(encoding="utf-8").splitlines()]
    found.update(summary(lines, names))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("paths", nargs="+")
    given = parser.parse_args()
    lines = asyncio.run(probe(given.url, given.paths))
    given.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
