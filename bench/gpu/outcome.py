"""The file of results: written after each run of each part, and read again to resume."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.gpu.run_config import RunConfig
from harvester.errors import UsageError


class Outcome:
    """``path`` None: nothing is kept."""

    def __init__(self, path: Path | None, run_config: RunConfig, about: Mapping[str, Any]) -> None:
        """Raises `UsageError` for a file that is no result, or one of other arguments."""
        self._path = path
        self.values: dict[str, Any] = {**about, "scenario": "gpu", "run_config": asdict(run_config), "parts": {}}
        if path is None or not path.exists():
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            same, parts = found["run_config"] == asdict(run_config), dict(found["parts"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{path} is no result of this bench; name another file with --json") from error
        if not same:
            raise UsageError(f"{path} has results of other arguments ({found['run_config']}); name another file with --json")
        self.values["parts"] = parts

    def runs(self, part: str) -> dict[str, dict[str, Any]]:
        """Runs of the part that are done, without those that failed."""
        runs = self.values["parts"].get(part, {}).get("runs", {})
        return {name: run for name, run in runs.items() if "error" not in run}

    def is_done(self, part: str) -> bool:
        return "summary" in self.values["parts"].get(part, {})

    def drop(self, part: str) -> None:
        self.values["parts"].pop(part, None)

    def add(self, part: str, run: str, found: dict[str, Any]) -> None:
        self.values["parts"].setdefault(part, {"runs": {}})["runs"][run] = found
        self._write()

    def close(self, part: str, summary: dict[str, Any]) -> None:
        """Store the summary of a part; all of its runs are done."""
        self.values["parts"].setdefault(part, {"runs": {}})["summary"] = summary
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        draft.write_text(json.dumps(self.values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(self._path)
