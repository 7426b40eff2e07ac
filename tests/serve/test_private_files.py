"""What a running server leaves on disk is its user's alone."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvester.serve.runtime import MAX_PATH_BYTES, runtime_folder
from jobs.storage.folder import StateFolder
from tests.real_server import RealServer

pytestmark = pytest.mark.serve
RAYS_OWN = "session_"  # Ray gives the folders of its session to everybody; the folder above keeps them out


def entries(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if not path.is_symlink():
            yield path
            if path.is_dir() and not path.name.startswith(RAYS_OWN):
                yield from entries(path)


def test_nothing_in_the_state_folder_is_open_to_others(server: RealServer, tmp_path: Path) -> None:
    source = tmp_path / "docs.parquet"
    pq.write_table(pa.table({"text": ["Hello there. All is well."] * 4}), source)
    job = server.submit(source={"uri": str(source)}, task="summarize")["id"]
    assert server.wait_rows(job, 4)["rows_ok"] == 4
    found = [server.state, *entries(server.state)]
    assert {"ledger.sqlite", "ledger.commits", "server.json", "job.json"} <= {path.name for path in found}
    open_to_others = [str(path) for path in found if path.stat().st_mode & 0o077 and path.name != "ray"]
    assert open_to_others == []


def test_sockets_are_in_a_private_folder_with_a_short_path(server: RealServer) -> None:
    folder = runtime_folder(StateFolder(server.state), server.mark)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(str(folder)) <= MAX_PATH_BYTES
    assert [path.name for path in folder.glob("*/admin.sock")] == ["admin.sock"]
    assert list(folder.glob("ray/session_*/sockets/raylet"))
