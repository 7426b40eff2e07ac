"""``python -m bench.harness.load.offline_client``: keeps a fixed number of chat requests open at a server.

It goes on until it is ended or has sent them all.

This is the batch side of the stock peers. The lines are those that vLLM's ``run-batch`` takes; answers are not streamed.
Exit code 3: no request was left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from bench.harness.load.online_client import session

USED_UP = 3


async def _keep(http: aiohttp.ClientSession, url: str, bodies: Iterator[bytes]) -> None:
    for body in bodies:
        async with http.post(url, data=body, headers={"content-type": "application/json"}) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise SystemExit(f"an offline request was refused with {answer.status}: {text[:300]}")


def bodies(requests: Path, priority: int | None) -> Iterator[bytes]:
    with requests.open(encoding="utf-8") as lines:
        for line in lines:
            body = json.loads(line)["body"]
            yield json.dumps(body if priority is None else body | {"priority": priority}).encode()


async def run(url: str, requests: Path, concurrency: int, priority: int | None) -> None:
    async with session() as http:
        left = bodies(requests, priority)
        await asyncio.gather(*(_keep(http, f"{url}/v1/chat/completions", left) for _ in range(concurrency)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--priority", type=int)
    given = parser.parse_args()
    asyncio.run(run(given.url, given.requests, given.concurrency, given.priority))
    return USED_UP


if __name__ == "__main__":
    sys.exit(main())
