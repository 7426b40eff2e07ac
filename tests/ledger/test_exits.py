"""However the ledger's process ends, and whatever made an opening fail: the next one finds the file as it was written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.errors import DamageError
from jobs.ledger.store.commits import CommitCount
from jobs.ledger.store.place import check_ledger
from jobs.ledger.store.sqlite import SqliteStore
from jobs.ledger.store.sums import PageSums
from tests.fakes.ledger_file import add_job

PROCESS = """
import os, signal, sys
from pathlib import Path
from jobs.ledger.ledger import Ledger
from jobs.testing import scripted_plan

def end(*_):
    raise SystemExit(15)  # as in a worker of Ray

folder, how = Path(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGTERM, end)
ledger = Ledger(folder / "ledger.sqlite", folder / "jobs", lease_s=15.0, now_s=1.0, new_server=True)
ledger.submit(scripted_plan("docs", 1000, 10), new=True)
ledger.lease("a", "scripted", 2.0)
if how == "dropped":
    del ledger
elif how == "SystemExit":
    sys.exit(0)
else:
    os.kill(os.getpid(), signal.Signals[how])
"""


def open_and_end(folder: Path, how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROCESS, str(folder), how], check=False, cwd=Path(__file__).parents[2])
    return done.returncode


@pytest.mark.parametrize(("how", "code"), [("dropped", 0), ("SystemExit", 0), ("SIGTERM", 15)])
def test_a_ledger_that_its_process_never_closed_is_whole(tmp_path: Path, how: str, code: int) -> None:
    (store := SqliteStore(tmp_path / "ledger.sqlite")).close()  # its pages have sums
    assert open_and_end(tmp_path, how) == code
    check_ledger(tmp_path)
    store = SqliteStore(tmp_path / "ledger.sqlite")
    assert [row["id"] for row in store.rows("job_rows")] == ["docs"]
    assert store.missing() == 0
    store.close()
    assert (PageSums(store.path).damaged(), PageSums(store.path).known()) == (None, True)


def test_an_opening_that_fails_leaves_the_pages_as_their_sums_tell(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    SqliteStore(path).close()
    assert open_and_end(tmp_path, "SIGKILL") == -signal.SIGKILL
    count = CommitCount(path.with_suffix(".commits"))
    told = count.read()
    assert told is not None
    count.write(told + 3)
    for _ in range(2):
        with pytest.raises(DamageError, match="lacks its last"):
            SqliteStore(path)
    count.write(told)
    count.close()
    store = SqliteStore(path)
    assert [row["id"] for row in store.rows("job_rows")] == ["docs"]
    store.close()


def test_a_damaged_page_is_still_damaged_after_an_opening_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    store = SqliteStore(path)
    for number in range(40):
        add_job(store, f"docs-{number}", float(number))
    store.close()
    path.with_suffix(".sums").unlink()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    for _ in range(2):
        with pytest.raises(DamageError, match="is damaged"):
            SqliteStore(path)
        assert not PageSums(path).known()


def test_a_store_whose_sums_cannot_be_written_leaves_the_log_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path / "ledger.sqlite")
    add_job(store, "docs", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(PageSums, "_write", _full_disk)
        store.close()
    assert (tmp_path / "ledger.sqlite-wal").stat().st_size > 0
    again = SqliteStore(tmp_path / "ledger.sqlite")
    assert [row["id"] for row in again.rows("job_rows")] == ["docs"]
    again.close()


def _full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")
