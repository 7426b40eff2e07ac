"""harvester's scheduler, recording each step that it learns from: its load, and its predicted and actual seconds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from harvester.engine.vllm.core.scheduler import AsyncHarvestScheduler, HarvestScheduler

KEY = "bench_steps"  # in vLLM's additional_config: the file
PERIOD_S = 0.25


class Recording:
    """Mixed into a scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._file = Path(self.vllm_config.additional_config[KEY])  # type: ignore[attr-defined]
        self._lines: list[str] = []
        self._written_s = float("-inf")
        model = self._brain.parts.model  # type: ignore[attr-defined]
        observe = model.observe

        def recorded(load: Any, seconds: float, *rest: Any, **named: Any) -> None:
            self._record(load, model.predict(load) if model.ready else None, seconds)
            observe(load, seconds, *rest, **named)

        model.observe = recorded

    def _record(self, load: Any, predicted_s: float | None, seconds: float) -> None:
        now_s = time.monotonic()
        self._lines.append(json.dumps([now_s, load.prefill_tokens, load.decode_seqs, load.decode_context, predicted_s, seconds]))
        if now_s - self._written_s >= PERIOD_S:
            self._written_s = now_s
            with self._file.open("a", encoding="utf-8") as file:
                file.write("\n".join(self._lines) + "\n")
            self._lines.clear()


class RecordedHarvest(Recording, HarvestScheduler):
    """On a CPU."""


class RecordedAsyncHarvest(Recording, AsyncHarvestScheduler):
    """On a GPU."""
