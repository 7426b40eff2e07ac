"""What a session does where Ray does not do what it should."""

from __future__ import annotations

import multiprocessing
import os
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.serve.session import look_after


class Ended(Exception):
    pass


def test_a_session_whose_gcs_does_not_come_back_says_so_and_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def restart() -> None:
        raise RuntimeError("Failed to start GCS.\nSee the log.")

    def end(code: int) -> None:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    node = SimpleNamespace(raylet_is_gone=lambda: False, gcs_is_gone=lambda: True, restart_gcs=restart)
    cluster: Any = SimpleNamespace(node=node)
    ours, its = multiprocessing.Pipe(duplex=False)
    with pytest.raises(Ended):
        look_after(cluster, None, its)
    assert ours.recv()[0] == "warning"
    assert ours.recv() == ("lost", "Ray's GCS has died, and another one does not start: Failed to start GCS.")
