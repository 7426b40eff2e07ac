"""Cost of the path to the engine: one stream at a time, through raw vLLM, through harvester's ingress, and through Serve's default proxy.

One system after the other, each alone on the machine, one request at a time, each on a new connection. ``raw`` is vLLM as it comes. On few
cores its engine spins where the client should run, and that noise hides the overhead, so ``raw_patient`` is the same server with
harvester's way of waiting (`harvester.engine.shared.backoff`), and the one that the others are compared with. On a GPU machine cores are
plenty and harvester waits as vLLM does: there the others are compared with ``raw``.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.harness.device import on_cpu
from bench.harness.options import Options
from bench.harness.servers.raw_server import RawServer
from bench.harness.servers.server import ServerProcess
from harvester.config import ServeConfig
from harvester.engine.launch.arguments import engine_arguments
from harvester.engine.launch.defaults import CUDA_SLOTS, CUDA_STEP_TOKENS, embedded_defaults
from harvester.engine.launch.models import ModelChoice, choose_model

TOKENS = 32
WARM_UP = 5  # requests that fill caches
PATIENT = "raw_patient"
ON_CUDA = {"max_num_seqs": CUDA_SLOTS, "max_num_batched_tokens": CUDA_STEP_TOKENS}  # vLLM's own server has other defaults there
SERVED = ("harvester", "default_proxy")


def run(options: Options) -> dict[str, Any]:
    requests = 60 if options.quick else 300
    with tempfile.TemporaryDirectory(prefix="bench-overhead-") as folder:
        root = Path(folder)
        choice = choose_model(options.model, None)
        raw, base = (("raw", PATIENT), PATIENT) if on_cpu() else (("raw",), "raw")
        samples = {name: _measure(_server(name, root, choice), choice.name, requests) for name in (*raw, *SERVED)}
    systems = {name: _summary(found) for name, found in samples.items()}
    others = [name for name in systems if name != base]
    ratios = {f"{kind}_p50_over_{base}_{name}": _ratio(systems, name, base, kind) for name in others for kind in ("ttft_ms", "total_ms")}
    extra = {f"ttft_p50_minus_{base}_ms_{name}": _difference(systems, name, base) for name in others}
    return {"model": choice.name, "requests": requests, "tokens": TOKENS, "systems": systems, "ratios": ratios, **extra}


def _server(name: str, root: Path, choice: ModelChoice) -> RawServer | ServerProcess:
    """A server of its own for one system; all with the same engine arguments, but for the scheduler and worker that are harvester's."""
    cpu = on_cpu()
    engine = (embedded_defaults(cpu=cpu) if choice.embedded else {}) | ({} if cpu else ON_CUDA)
    if name.startswith("raw"):
        arguments = engine_arguments(ServeConfig(engine=engine), choice.path, choice.name, cpu=cpu, embedded=choice.embedded)
        return RawServer(arguments, root / f"{name}.log", patient=name == PATIENT)
    ingress = "haproxy" if name == "harvester" else "proxy"
    values = {"ingress": ingress, "model": choice.path, "served_model_name": choice.name, "engine": engine}
    config = root / f"{name}.yaml"
    config.write_text(json.dumps(values))
    return ServerProcess(["-m", "harvester", "serve", "--config", str(config)], root / name)


def _measure(server: RawServer | ServerProcess, model: str, requests: int) -> list[tuple[float, float]]:
    with server:
        samples = [_stream(server.url, model, f"Hello number {turn}") for turn in range(requests + WARM_UP)]
    return samples[WARM_UP:]


def _stream(url: str, model: str, question: str) -> tuple[float, float]:
    """Milliseconds to the first token and to the end of one streamed answer."""
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
    first_s = None
    with httpx.Client(timeout=60, verify=False) as client:  # made before the clock starts: it costs more than a token
        began_s = time.perf_counter()
        with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
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


def _ratio(systems: dict[str, Any], name: str, base: str, kind: str) -> float:
    return float(round(systems[name][kind]["p50"] / systems[base][kind]["p50"], 3))


def _difference(systems: dict[str, Any], name: str, base: str) -> float:
    return float(round(systems[name]["ttft_ms"]["p50"] - systems[base]["ttft_ms"]["p50"], 2))
