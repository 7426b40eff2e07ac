"""The file that keeps the latency model of one engine core between its runs."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from threading import Thread
from typing import Any

from harvester.errors import ConfigError
from harvester.policy.model.graphs import GraphSizes
from harvester.policy.model.latency import LatencyModel

log = logging.getLogger(__name__)


class Profile:
    """``path`` None: the model is learnt anew and not kept. ``graphs``: the CUDA graphs that the steps run as."""

    def __init__(self, path: Path | None, graphs: GraphSizes | None = None) -> None:
        self._path = path
        self._writer: Thread | None = None
        self.model = _load(path, graphs) if path is not None else LatencyModel(graphs)

    @property
    def is_saving(self) -> bool:
        """Whether the file is being written."""
        return self._writer is not None and self._writer.is_alive()

    def save(self) -> None:
        """Begin to write the file, with the model as it is now. A disk error is logged as a warning.

        Not called while `is_saving`. The caller schedules steps, and a network file system may take long or not answer: a thread writes,
        which does not keep the process from ending.
        """
        if self._path is None:
            return
        assert not self.is_saving, "a save is begun before the last one has ended"
        self._writer = Thread(target=_write, args=(self._path, self.model.state()), name="profile", daemon=True)
        self._writer.start()


def _write(path: Path, state: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(state) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        log.warning("the latency profile was not written to %s: %s", path, error.strerror)


def _load(path: Path, graphs: GraphSizes | None) -> LatencyModel:
    try:
        return LatencyModel.from_state(json.loads(path.read_text(encoding="utf-8")), graphs)
    except FileNotFoundError:
        return LatencyModel(graphs)
    except (OSError, ValueError, ConfigError) as error:
        log.warning("the latency profile %s is not usable and is learnt anew: %s", path, error)
        return LatencyModel(graphs)
