"""``python -m bench.harness.load.online_client``: sends the online requests of a plan, each at its time, and notes when every token came.

A process of its own, so that nothing else delays it. It prints ``ready`` when its warm-up is over and reads the start, in seconds of the
monotonic clock, from its standard input. Chunks are only noted while the load runs and read afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import numpy as np

WARM_UP = 3  # requests before the load, one after the other
IDLE_S = 2.0  # after which a connection is used no more: servers close theirs after 5 s, and a request would fail that meets it


def session() -> aiohttp.ClientSession:
    """A client without limits of its own. Call it within the event loop."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


class Player:
    """``plan``: url, model, seed, vocabulary [least id, one past the last], limit_s, requests [[at_s, prompt and output tokens, values of
    the body], ...].
    """

    def __init__(self, plan: dict[str, Any], http: aiohttp.ClientSession) -> None:
        self._url = f"{plan['url']}/v1/completions"
        self._http = http
        self._generator = np.random.default_rng(plan["seed"])
        self._model = plan["model"]
        self._least, self._end = (int(end) for end in plan["vocabulary"])
        self.start_s = 0.0
        self.done: list[dict[str, Any]] = []

    def body(self, prompt_tokens: int, output_tokens: int, own: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        """Random token ids, so that no prompt is found in a prefix cache; usage in every chunk, as one may hold several tokens.

        ``own``: values laid over these.
        """
        prompt = self._generator.integers(self._least, self._end, size=prompt_tokens).tolist()
        values = {"model": self._model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        values |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        return json.dumps(values | dict(own)).encode()

    async def send(self, index: int, at_s: float, body: bytes) -> None:
        note: dict[str, Any] = {"index": index, "chunks": [], "error": None, "ended": False, "refused": False}
        await asyncio.sleep(max(0.0, self.start_s + at_s - time.monotonic()))
        note["sent_s"] = time.monotonic() - self.start_s
        self.done.append(note)
        try:
            async with self._http.post(self._url, data=body, headers={"content-type": "application/json"}) as answer:
                note["refused"] = answer.status == 429
                if answer.status not in {200, 429}:
                    note["error"] = f"{answer.status}: {(await answer.text())[:300]}"
                    return
                async for chunk in answer.content.iter_any():
                    note["chunks"].append((time.monotonic() - self.start_s, chunk))
            note["ended"] = not note["refused"]
        except aiohttp.ClientError as error:
            note["error"] = f"{type(error).__name__}: {error}"
        finally:
            note["ended_s"] = time.monotonic() - self.start_s


def tokens(chunks: list[tuple[float, bytes]]) -> tuple[list[tuple[float, int]], str | None]:
    """When how many tokens had come, from the pieces of an event stream; and the error that the server sent in it."""
    found: list[tuple[float, int]] = []
    rest = b""
    for at_s, chunk in chunks:
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: {"):
                continue
            values = json.loads(event[6:])
            if "error" in values:
                return found, str(values["error"])[:300]
            count = (values.get("usage") or {}).get("completion_tokens", 0)
            if count > (found[-1][1] if found else 0):
                found.append((at_s, count))
    return found, None


def written(note: dict[str, Any], at_s: float, end_s: float) -> str:
    """One line of the result. A refused request counts as one that waits until ``end_s``."""
    times, error = ([], None) if note["refused"] else tokens(note["chunks"])
    line = {"at_s": at_s, "sent_s": note["sent_s"], "tokens": times, "ended": note["ended"], "error": note["error"] or error}
    return json.dumps(line | {"refused": note["refused"], "seen_until_s": end_s if note["refused"] else note.get("ended_s", end_s)})


async def play(plan: dict[str, Any], output: Path) -> None:
    async with session() as http:
        player = Player(plan, http)
        for _ in range(WARM_UP):
            await player.send(0, 0.0, player.body(64, 4))
        bodies = [player.body(prompt, answer, own) for _, prompt, answer, own in plan["requests"]]
        for note in player.done:
            if note["error"] or note["refused"]:
                raise SystemExit(f"warm-up failed: {note['error'] or 'refused'}")
        player.done.clear()
        gc.collect()
        gc.disable()
        print("ready", flush=True)
        player.start_s = float(await asyncio.to_thread(sys.stdin.readline))
        sends = [asyncio.create_task(player.send(i, request[0], bodies[i])) for i, request in enumerate(plan["requests"])]
        _, late = await asyncio.wait(sends, timeout=player.start_s + plan["limit_s"] - time.monotonic()) if sends else (set(), set())
        end_s = time.monotonic() - player.start_s
        for task in late:
            task.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
    lines = [written(note, plan["requests"][note["index"]][0], end_s) for note in sorted(player.done, key=lambda note: note["index"])]
    output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--core", type=int, help="run on this core alone")
    given = parser.parse_args()
    if given.core is not None:
        os.sched_setaffinity(0, {given.core})
    asyncio.run(play(json.loads(given.plan.read_text(encoding="utf-8")), given.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
