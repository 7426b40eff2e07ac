"""The files application goes on where its sweep finds a file that is damaged, or no storage; without a server."""

from __future__ import annotations

import asyncio
import json
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from harvester.config import ServeConfig
from jobs.storage.folder import StateFolder

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own
    from harvester.serve.deployments import openai_app

pytestmark = pytest.mark.serve


async def test_a_damaged_file_does_not_end_the_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_app, "lower_priority", lambda: None)
    monkeypatch.setattr(openai_app, "SWEEP_S", 0.001)
    folder = StateFolder(tmp_path)
    folder.prepare()
    folder.files.mkdir()
    damaged = folder.files / f"file-{'0' * 24}.json"
    damaged.write_text("damaged")
    app = openai_app.FilesApp(ServeConfig(), str(tmp_path))
    loop, swept = asyncio.get_running_loop(), asyncio.Event()
    monkeypatch.setattr(app._files, "sweep", lambda: loop.call_soon_threadsafe(swept.set))
    await app.__serve_build_asgi_app__()
    sweeping = app._sweeping
    assert sweeping is not None
    await asyncio.sleep(0.1)
    await app.check_health()
    assert not swept.is_set(), "the list comes first, and it cannot be read"
    about = {"id": damaged.stem, "filename": "a", "purpose": "batch", "bytes": 1, "created_at_s": 1.0}
    damaged.write_text(json.dumps(about))
    await swept.wait()  # the next one tries again
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
