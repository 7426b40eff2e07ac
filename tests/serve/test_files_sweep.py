"""The files application goes on where its sweep finds a file that is damaged; without a server."""

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
PATIENCE_S = 60.0


async def test_a_damaged_file_does_not_end_the_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_app, "lower_priority", lambda: None)
    monkeypatch.setattr(openai_app, "SWEEP_S", 0.001)
    folder = StateFolder(tmp_path)
    folder.prepare()
    folder.files.mkdir()
    (folder.files / f"file-{'0' * 24}.json").write_text("damaged")
    over = folder.files / f"file-{'1' * 24}.json"
    about = {"id": over.stem, "filename": "a", "purpose": "batch", "bytes": 1, "created_at_s": 1.0, "expires_at_s": 2.0}
    app = openai_app.FilesApp(ServeConfig(), str(tmp_path))
    await app.__serve_build_asgi_app__()
    sweeping = app._sweeping
    assert sweeping is not None
    for _ in range(2):
        over.write_text(json.dumps(about))
        async with asyncio.timeout(PATIENCE_S):
            while over.exists():
                await app.check_health()
                await asyncio.sleep(0.001)
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
