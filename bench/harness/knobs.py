"""Settings of the scheduling benches beyond the common options: ``--set NAME=VALUE``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from bench.harness.device import on_cpu
from bench.harness.models import bench_model
from bench.harness.options import Options
from bench.harness.servers.systems import CPU_ENGINE, SystemSetup
from harvester.errors import ConfigError, UsageError

LEAD_S = 10.0  # of chat that is not measured, at each server


@dataclass(frozen=True, slots=True)
class Knobs:
    """Defaults are for the bench model on two cores. Times in seconds, rates in online requests a second."""

    seconds: float = 120.0  # of one stretch under load
    idle_s: float = 45.0  # of offline work alone
    warm_s: float = 15.0  # from the first offline answer until anything is measured
    window_s: float = 5.0
    drain_s: float = 30.0  # how long after a load its answers are waited for
    settle_s: float = 15.0  # of chat, after which tokens, rows and work are counted a second time
    measure_s: float = 12.0  # of a full batch of chats, to measure the engine's capacity
    # A prompt takes about as long as five to ten steps that only decode, as in the papers. If chat is paced by shares, this is the
    # rate of the load whose request lengths define the capacity.
    rate: float = 3.0
    cv: float = 1.0
    prompt_tokens: float = 160
    output_tokens: float = 32
    trace_scale: float = 0.15  # of the trace's prompt and answer lengths
    slots: float = 32  # max_num_seqs
    step_tokens: float = 2048  # max_num_batched_tokens of the stock peers and of harvester
    concurrency: float = 64  # offline requests that a stock peer has open
    kv_mib: float = 2048  # KV cache; less of it is the memory pressure of ConServe's Fig. 5
    doc_chars: float = 6000  # most characters of an offline row; the least is a third of it
    max_tokens: float = 96  # of an offline answer
    rows_per_s: float = 20  # offline rows prepared for each second of the run: more than any system finishes

    @property
    def lengths(self) -> tuple[int, int]:
        return round(self.prompt_tokens), round(self.output_tokens)


# The first offline prompts, which come all at once, take two or three seconds here, so that little time is spent waiting for them.
SHORT = Knobs(warm_s=2.0, window_s=4.0, settle_s=4.0, measure_s=10.0, drain_s=8.0, slots=16, concurrency=32, doc_chars=3000, max_tokens=64)
QUICK = replace(SHORT, seconds=16.0, idle_s=6.0)


def knobs(options: Options, full: Knobs | None = None, quick: Knobs | None = None) -> Knobs:
    """The scenario's knobs with the user's values over them. Raises `UsageError` for an unknown name, and for a value not above 0."""
    chosen = (quick or QUICK) if options.quick else (full or Knobs())
    known = [field.name for field in fields(Knobs)]
    for name, value in options.set.items():
        if name not in known:
            raise UsageError(f"--set {name}: there is no such knob; there are {', '.join(known)}")
        if value <= 0:
            raise UsageError(f"--set {name}={value:g}: give a number above 0")
    chosen = replace(chosen, **({"seconds": options.seconds} if options.seconds else {}))
    return replace(chosen, **options.set)


@contextmanager
def set_up(options: Options, given: Knobs, total_s: float) -> Iterator[SystemSetup]:
    """Prepare what all systems share, in a temporary folder. ``total_s``: how long offline work runs on one system."""
    path = Path(options.model).absolute() if options.model is not None else bench_model()
    if not (path / "config.json").is_file():
        raise ConfigError(f"model folder {path} has no config.json; give a Hugging Face model folder, or leave --model out")
    vocabulary = int(json.loads((path / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    engine: dict[str, Any] = {"max_num_seqs": round(given.slots), "max_num_batched_tokens": round(given.step_tokens)}
    engine |= {"max_model_len": 8192, "enable_prefix_caching": True}
    engine |= CPU_ENGINE | {"kv_cache_memory_bytes": round(given.kv_mib) << 20} if on_cpu() else {}
    with tempfile.TemporaryDirectory(prefix="harvester-bench-") as name:
        # Special tokens stand at the ends of a vocabulary.
        found = SystemSetup(Path(name), str(path), path.name, (vocabulary // 16, vocabulary * 15 // 16), engine, round(given.max_tokens))
        rows = max(round(2 * given.concurrency), round(given.rows_per_s * (total_s + LEAD_S + given.drain_s)))
        found.write_rows(rows, options.seed, (round(given.doc_chars / 3), round(given.doc_chars)))
        yield found


def described(given: Knobs, place: SystemSetup) -> dict[str, Any]:
    """The setup, as every result shows it."""
    return {"model": place.name, "knobs": asdict(given), "engine": place.engine}
