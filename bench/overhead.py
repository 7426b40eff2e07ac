"""What the way to the engine costs: one stream at a time, through raw vLLM, through harvester's ingress, and through Serve's default proxy.

All servers are up at the same time, idle but for the one asked; each round asks each once, in random order, on a new connection.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from bench.rawserver import RawServer
from bench.scenario import Options
from bench.server import ServerProcess
from harvester.config import ServeConfig
from harvester.engine.arguments import engine_arguments
from harvester.engine.models import choose_model

TOKENS = 32
SYSTEMS = ("raw", "harvester", "default_proxy")


def run(options: Options) -> dict[str, Any]:
    rounds = 40 if options.quick else 200
    with tempfile.TemporaryDirectory(prefix="bench-overhead-") as folder, ExitStack() as stack:
        root = Path(folder)
        choice = choose_model(options.model, None, root / "models")
        arguments = engine_arguments(ServeConfig(), choice.path, choice.name, cpu=True, embedded=choice.embedded)
        urls = {"raw": stack.enter_context(RawServer(arguments, root / "raw.log")).url}
        for name, ingress in (("harvester", "haproxy"), ("default_proxy", "proxy")):
            config = root / f"{name}.yaml"
            config.write_text(json.dumps({"ingress": ingress, "model": choice.path, "engine": {"dtype": "float32", "max_model_len": 8192}}))
            server = ServerProcess(["-m", "harvester", "serve", "--config", str(config)], root / name)
            urls[name] = stack.enter_context(server).url
        samples = _measure(urls, choice.name, rounds, random.Random(options.seed))
    systems = {name: _summary(found) for name, found in samples.items()}
    ratios = {f"{kind}_p50_over_raw_{name}": _ratio(systems, name, kind) for name in SYSTEMS[1:] for kind in ("ttft_ms", "total_ms")}
    extra = {f"ttft_p50_minus_raw_ms_{name}": systems[name]["ttft_ms"]["p50"] - systems["raw"]["ttft_ms"]["p50"] for name in SYSTEMS[1:]}
    return {"model": choice.name, "rounds": rounds, "tokens": TOKENS, "systems": systems, "ratios": ratios, **extra}


def _measure(urls: dict[str, str], model: str, rounds: int, chance: random.Random) -> dict[str, list[tuple[float, float]]]:
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in urls}
    order = list(urls)
    for turn in range(rounds + 5):
        chance.shuffle(order)
        for name in order:
            sample = _stream(urls[name], model, f"Hello number {turn}")
            if turn >= 5:  # the first ones warm caches and code
                samples[name].append(sample)
    return samples


def _stream(url: str, model: str, question: str) -> tuple[float, float]:
    """Milliseconds to the first token and to the end of one streamed answer."""
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
    began_s, first_s = time.perf_counter(), None
    with httpx.Client(timeout=60) as client, client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if first_s is None and line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                first_s = time.perf_counter()
    assert first_s is not None, f"{url} sent no token"
    return (first_s - began_s) * 1000, (time.perf_counter() - began_s) * 1000


def _summary(samples: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    return {"ttft_ms": _percentiles([s[0] for s in samples]), "total_ms": _percentiles([s[1] for s in samples])}


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{p}": round(ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))], 2) for p in (50, 90, 99)}


def _ratio(systems: dict[str, Any], name: str, kind: str) -> float:
    return float(round(systems[name][kind]["p50"] / systems["raw"][kind]["p50"], 3))
