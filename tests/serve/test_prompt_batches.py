"""The batches application's event loop is woken in time, unlike the rest of Ray's processes; without a server."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.timers import PATIENT_S, USUAL_S, set_timer_slack, timer_slack_s

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own
    from harvester.serve.deployments import openai_app

pytestmark = [pytest.mark.serve, pytest.mark.skipif(sys.platform != "linux", reason="timer slack is Linux's")]


class Batches(openai_app.BatchesApp):
    def __del__(self) -> None:  # type: ignore[override]
        """Serve awaits the other one, Python cannot."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This thread as Ray starts its own."""
    monkeypatch.setattr(openai_app, "lower_priority", lambda: None)
    switch_s = sys.getswitchinterval()
    set_timer_slack(PATIENT_S)
    yield
    set_timer_slack(USUAL_S)
    sys.setswitchinterval(switch_s)


@pytest.mark.usefixtures("patient")
async def test_the_event_loop_of_batches_gets_pythons_lock_back_in_time(tmp_path: Path) -> None:
    (tmp_path / "batches").mkdir()
    app = Batches(ServeConfig(), ModelChoice("/model", "tiny", None, embedded=True), str(tmp_path), "ledger")
    assert timer_slack_s() == pytest.approx(PATIENT_S)
    await app.__serve_build_asgi_app__()
    assert timer_slack_s() == pytest.approx(USUAL_S)
    assert app._keeping is not None
    app._keeping.cancel()
    with suppress(asyncio.CancelledError):
        await app._keeping
