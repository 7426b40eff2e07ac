"""The file that keeps the latency model of one engine core between its runs."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from harvester.errors import ConfigError
from harvester.policy.model.graphs import GraphSizes
from harvester.policy.model.latency import LatencyModel

log = logging.getLogger(__name__)


class Profile:
    """``path`` None: the model is learnt anew and not kept. ``graphs``: the CUDA graphs that the steps run as."""

    def __init__(self, path: Path | None, graphs: GraphSizes | None = None) -> None:
        self._path = path
        self.model = _load(path, graphs) if path is not None else LatencyModel(graphs)

    def save(self) -> None:
        """Write the file. A disk error is logged as a warning."""
        if self._path is None:
            return
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(self.model.state()) + "\n", encoding="utf-8")
            draft.replace(self._path)
        except OSError as error:
            log.warning("the latency profile was not written to %s: %s", self._path, error.strerror)


def _load(path: Path, graphs: GraphSizes | None) -> LatencyModel:
    try:
        return LatencyModel.from_state(json.loads(path.read_text(encoding="utf-8")), graphs)
    except FileNotFoundError:
        return LatencyModel(graphs)
    except (OSError, ValueError, ConfigError) as error:
        log.warning("the latency profile %s is not usable and is learnt anew: %s", path, error)
        return LatencyModel(graphs)
